package pairing

import (
	"errors"
	"fmt"
	"strings"

	"rivulet/fabric/rpc"
	"rivulet/fabric/trust"
)

// Refusal replaces the text of another cluster's refusal by this cluster's own text for its code, with a cure for this
// side. Here and there are the names of both. An unknown code comes from a newer version: then the cleaned text of the
// other cluster is shown.
func Refusal(e *rpc.Error, here, there string) *rpc.Error {
	refusal := func(format string, args ...any) *rpc.Error {
		return &rpc.Error{Code: e.Code, Message: fmt.Sprintf(format, args...), Cure: cures[e.Code]}
	}
	switch e.Code {
	case "version":
		out := refusal("%s speaks no version of the peering protocol that %s speaks", there, here)
		out.Cure = "upgrade rivulet on both sides to the same release"
		return out
	case "bad-message", "bad-request", "too-large", "bad-answer":
		out := refusal("%s does not understand %s", there, here)
		out.Cure = cures["bad-message"]
		return out
	case "identity":
		return refusal("%s was called by another cluster than %s in its name", there, here)
	case "clone":
		return refusal("%s has the identity of this cluster", there)
	case "same-key":
		return refusal("%s knows the WireGuard key of %s as that of another cluster", there, here)
	case "not-on-link":
		return refusal("%s is not known on %s, and a router is between; only clusters on the same link are trusted at first sight", here, there)
	case "closed":
		return refusal("%s trusts nobody new", there)
	case "unpeered":
		return refusal("%s has ended the peering with %s", there, here)
	case "denied":
		return refusal("%s was denied on %s", here, there)
	case "name-taken":
		return refusal("another cluster is known on %s as %s, with another key", there, here)
	case "no-proof":
		return refusal("%s has a group and %s has shown no proof of its secret", there, here)
	case "wrong-proof":
		return refusal("%s and %s have different group secrets", here, there)
	case "pending":
		out := refusal("%s waits on %s for somebody to say yes", here, there)
		out.Cure = fmt.Sprintf("run on %s: rivulet approve %s", there, here)
		return out
	case "invite", "token":
		for _, why := range trust.Refusals {
			if strings.Contains(e.Message, why.Error()) {
				return refusal("%s does not take the %s: %v", there, e.Code, why)
			}
		}
		return refusal("%s does not take the %s", there, e.Code)
	case "prefix":
		return refusal("the pod CIDRs of %s and %s are of different sizes", here, there)
	case "no-prefix":
		return refusal("no prefix is free on %s for the pods of %s", there, here)
	case "full":
		return FullError(there, here)
	case "store":
		return refusal("%s cannot keep the record of %s", there, here)
	case "busy":
		return refusal("%s has too much to do at this moment; it is tried again", there)
	case "leaving":
		return refusal("%s is being reset", there)
	case "not-a-peer":
		return refusal("%s does not know %s as its peer", there, here)
	}
	return &rpc.Error{Code: e.Code, Message: fmt.Sprintf("%s refuses (%s), in its own words: %q", there, e.Code, e.Message), Cure: "run the same version of rivulet on both sides"}
}

// AsRefusal is err, with a refusal of the other side replaced as by Refusal.
func AsRefusal(err error, here, there string) error {
	var e *rpc.Error
	if errors.As(err, &e) && e.Remote {
		return Refusal(e, here, there)
	}
	return err
}
