package config

import (
	"net/netip"
	"strings"
	"testing"
)

func TestParsePeer(t *testing.T) {
	at := func(s string) Where { return Where{Addr: netip.MustParseAddrPort(s)} }
	for text, want := range map[string]Where{
		"192.0.2.7":                      at("192.0.2.7:7442"),
		"192.0.2.7:7000":                 at("192.0.2.7:7000"),
		"::ffff:192.0.2.7":               at("192.0.2.7:7442"),
		"2001:db8::7":                    at("[2001:db8::7]:7442"),
		"[2001:db8::7]":                  at("[2001:db8::7]:7442"),
		"[2001:db8::7]:7000":             at("[2001:db8::7]:7000"),
		"fe80::7%eth0":                   at("[fe80::7%eth0]:7442"),
		"campus":                         {Host: "campus", Port: 7442},
		"Campus.Example.:7000":           {Host: "campus.example", Port: 7000},
		"srv:_rivulet._tcp.Lab.example":  {Service: "_rivulet._tcp.lab.example"},
		"srv:_rivulet._tcp.lab.example.": {Service: "_rivulet._tcp.lab.example"},
	} {
		if got, err := ParsePeer(text); err != nil || got != want {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "a b", "192.0.2", "192.0.2.300", "192.0.2.7:0", "192.0.2.7:70000", "127.0.0.1", "0.0.0.0", "::", "224.0.0.1", "fe80::7", "campus:", "campus:x", "srv:", "srv:x", "srv:a b.c", "http://campus", "-a", strings.Repeat("a", 300)} {
		_, err := ParsePeer(text)
		if err == nil || !strings.Contains(err.Error(), "; ") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// Whatever is accepted is one of the three, and comes out the same when written again.
func FuzzParsePeer(f *testing.F) {
	for _, s := range []string{"192.0.2.7", "[::1]:7442", "campus:7", "srv:_a._b.c", "%", ":", "[", "a.b.:1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		w, err := ParsePeer(s)
		if err != nil {
			return
		}
		kinds := 0
		for _, is := range []bool{w.Addr.IsValid(), w.Host != "", w.Service != ""} {
			if is {
				kinds++
			}
		}
		if kinds != 1 {
			t.Fatalf("%q is %+v", s, w)
		}
		if w.Addr.IsValid() {
			if again, err := ParsePeer(w.Addr.String()); err != nil || again != w {
				t.Fatalf("%q: %+v, then %+v, %v", s, w, again, err)
			}
		}
	})
}
