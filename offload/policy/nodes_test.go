package policy

import (
	"strings"
	"testing"
)

func TestParseNodes(t *testing.T) {
	lab := map[string]string{"room": "lab"}
	for text, want := range map[string]bool{"": true, "all": true, "3 nearest": true, "room=lab": true, "room in (lab, hall)": true, "room=hall": false, "!room": false, "room!=lab": false} {
		rule, err := ParseNodes(text)
		if err != nil || rule.Matches(lab) != want {
			t.Errorf("%q: %v, %v", text, rule.Matches(lab), err)
		}
	}
	for _, text := range []string{"none", "0 nearest", "-1 nearest", "x nearest", "10", "room=lab=x", strings.Repeat("x", 1000)} {
		if rule, err := ParseNodes(text); err == nil {
			t.Errorf("%q: %+v", text, rule)
		}
	}
}
