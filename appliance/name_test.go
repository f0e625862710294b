package appliance

import (
	"bytes"
	"crypto/ed25519"
	"strings"
	"testing"

	"rivulet/appliance/config"
	"rivulet/appliance/host"
	"rivulet/appliance/identity"
)

type oneName struct{ name string }

func (o *oneName) NodeName() (string, error)  { return o.name, nil }
func (o *oneName) PutNodeName(n string) error { o.name = n; return nil }

func TestTheNodeKeepsItsFirstName(t *testing.T) {
	id := identity.Identity{Key: ed25519.NewKeyFromSeed(bytes.Repeat([]byte{1}, 32))}
	called := func(h string) func() (string, error) { return func() (string, error) { return h, nil } }
	st := &oneName{}
	for _, tc := range []struct{ given, want string }{{"pi", "pi"}, {"other", "pi"}, {"", "pi"}} {
		if got, err := nameNode(st, tc.given, called("else"), id); got != tc.want || err != nil {
			t.Errorf("--name %q: node %q, %v; want %q", tc.given, got, err, tc.want)
		}
	}
	byID := "rivulet-" + id.ID().Short()
	for hostname, want := range map[string]string{
		"": byID, "localhost": byID, "localhost.localdomain": byID, "(none)": "none", "PI": "pi", "pi.example.org": "pi",
		strings.Repeat("h", 64): strings.Repeat("h", host.NameMax),
	} {
		if got, err := nameNode(&oneName{}, "", called(hostname), id); got != want || err != nil || host.Name(got) != got {
			t.Errorf("a host called %q: node %q, %v; want %q", hostname, got, err, want)
		}
	}
}

func TestNamesThatCannotBe(t *testing.T) {
	for given, example := range map[string]string{
		"Bad Name": "bad-name", "localhost": "lab-1", "a.b": "for example a", "-": "lab-1",
		strings.Repeat("x", 64): strings.Repeat("x", host.NameMax),
	} {
		if err := config.CheckName(given); err == nil || !strings.Contains(err.Error(), example) {
			t.Errorf("CheckName(%q) = %v, want the example %s", given, err, example)
		}
	}
	for _, given := range []string{"", "pi", "lab-1", "42"} {
		if err := config.CheckName(given); err != nil {
			t.Errorf("CheckName(%q) = %v", given, err)
		}
	}
}
