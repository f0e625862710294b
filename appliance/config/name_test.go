package config

import (
	"strings"
	"testing"

	"rivulet/appliance/machine/host"
)

func TestNamesThatCannotBe(t *testing.T) {
	for given, example := range map[string]string{
		"Bad Name": "bad-name", "localhost": "lab-1", "a.b": "for example a", "-": "lab-1",
		strings.Repeat("x", 64): strings.Repeat("x", host.NameMax),
	} {
		if err := CheckName(given); err == nil || !strings.Contains(err.Error(), example) {
			t.Errorf("CheckName(%q) = %v, want the example %s", given, err, example)
		}
	}
	for _, given := range []string{"", "pi", "lab-1", "42"} {
		if err := CheckName(given); err != nil {
			t.Errorf("CheckName(%q) = %v", given, err)
		}
	}
}
