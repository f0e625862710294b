package translate

import "testing"

// Options that name further hops, or that cannot be read to their end, are told from others.
func TestSourceRouted(t *testing.T) {
	for _, c := range []struct {
		options string
		routed  bool
	}{
		{"", false}, {"\x00\x83", false}, {"\x01\x01\x00", false},
		{"\x44\x04\x05\x00", false}, {"\x01\x44\x03\x00", false}, {"\x44\x02\x44\x02", false},
		{"\x83\x03\x04", true}, {"\x89\x03\x04", true}, {"\x01\x83", true}, {"\x44\x04\x05\x00\x89\x03\x04", true},
		{"\x44", true}, {"\x44\x01", true}, {"\x44\x00", true}, {"\x44\x03", true}, {"\x44\x04\x00", true}, {"\x01\x44", true},
	} {
		if got := sourceRouted([]byte(c.options)); got != c.routed {
			t.Errorf("%x: %v", c.options, got)
		}
	}
}
