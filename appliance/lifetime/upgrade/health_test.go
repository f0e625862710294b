package upgrade

import (
	"context"
	"maps"
	"net"
	"strings"
	"testing"
)

// listen is a peer that takes connections until the test, or off, ends it.
func listen(t *testing.T) (addr string, off func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.Addr().String(), func() { l.Close() }
}

// Somebody switches a PC off while a version is tried: that is no fault of the version. A peer that answers and is not
// connected is one, as is a peer of which nobody knows whether it answers.
func TestAPeerThatIsSwitchedOffExcusesItself(t *testing.T) {
	on, _ := listen(t)
	gone, off := listen(t)
	off()
	was := map[string]string{"b": on, "c": gone, "d": gone}
	for what, c := range map[string]struct {
		peers []string
		found []seenPeer
		want  string // in the error; empty: healthy
	}{
		"all are connected":            {[]string{"b", "c"}, []seenPeer{{ID: "b", State: connected}, {ID: "c", State: connected}}, ""},
		"one is switched off":          {[]string{"b", "c"}, []seenPeer{{ID: "b", State: connected}, {ID: "c", Name: "bench-3", State: "Unreachable"}}, ""},
		"the only one is switched off": {[]string{"c"}, []seenPeer{{ID: "c", State: "Unreachable"}}, ""},
		"one answers":                  {[]string{"b", "c"}, []seenPeer{{ID: "b", Name: "bench-2", State: "Unreachable"}, {ID: "c", State: connected}}, "bench-2 (Unreachable)"},
		"one answers, one is off":      {[]string{"b", "c"}, []seenPeer{{ID: "b", Name: "bench-2", State: "Unreachable"}, {ID: "c", State: "Unreachable"}}, "bench-2 (Unreachable)"},
		"all of several are off":       {[]string{"c", "d"}, []seenPeer{{ID: "c", Name: "bench-3", State: "Unreachable"}, {ID: "d", State: "Unreachable"}}, "bench-3 (switched off), d (switched off)"},
		"one is forgotten":             {[]string{"c"}, nil, "c (forgotten)"},
		"one never answered":           {[]string{"b", "e"}, []seenPeer{{ID: "b", State: connected}, {ID: "e", State: "Unreachable"}}, "e (Unreachable)"},
	} {
		err := Attempt{Peers: c.peers, Answered: was}.together(t.Context(), c.found)
		if (err == nil) != (c.want == "") || err != nil && !strings.HasSuffix(err.Error(), ": "+c.want) {
			t.Errorf("%s: %v, want %q", what, err, c.want)
		}
		// As an attempt of a version that did not ask who answers.
		if err := (Attempt{Peers: c.peers}).together(t.Context(), c.found); strings.Contains(what, "off") && err == nil {
			t.Errorf("%s, of an older version: healthy", what)
		}
	}
}

// What this device cannot send, or had no time for, is no silence of a peer.
func TestSilenceIsThePeers(t *testing.T) {
	gone, off := listen(t)
	off()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if silent(ended, map[string]string{"b": gone})["b"] {
		t.Error("a look that was cut short counts")
	}
	if silent(t.Context(), map[string]string{"b": "[fe80::1%none]:7442"})["b"] {
		t.Error("a link that this device does not have counts")
	}
}

// Only those that can be dialled before the trial are dialled in it.
func TestWhoAnswersBeforeTheTrial(t *testing.T) {
	on, _ := listen(t)
	gone, off := listen(t)
	off()
	r := Request{Paths: map[string]string{"b": "direct " + on, "c": "direct " + gone, "d": "relay via b", "e": "stream " + on, "f": ""}}
	if got, want := r.answering(t.Context()), map[string]string{"b": on, "e": on}; !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
