package host

import (
	"strings"
	"testing"
)

type oneName struct{ name string }

func (o *oneName) NodeName() (string, error)  { return o.name, nil }
func (o *oneName) PutNodeName(n string) error { o.name = n; return nil }

func TestTheNodeKeepsItsFirstName(t *testing.T) {
	called := func(h string) func() (string, error) { return func() (string, error) { return h, nil } }
	st := &oneName{}
	for _, tc := range []struct{ given, want string }{{"pi", "pi"}, {"other", "pi"}, {"", "pi"}} {
		if got, err := NodeName(st, tc.given, called("else"), "rivulet-abc"); got != tc.want || err != nil {
			t.Errorf("--name %q: node %q, %v; want %q", tc.given, got, err, tc.want)
		}
	}
	const byID = "rivulet-abc"
	for hostname, want := range map[string]string{
		"": byID, "localhost": byID, "localhost.localdomain": byID, "(none)": "none", "PI": "pi", "pi.example.org": "pi",
		strings.Repeat("h", 64): strings.Repeat("h", NameMax),
	} {
		if got, err := NodeName(&oneName{}, "", called(hostname), "rivulet-abc"); got != want || err != nil || Name(got) != got {
			t.Errorf("a host called %q: node %q, %v; want %q", hostname, got, err, want)
		}
	}
}
