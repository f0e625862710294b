package static_test

import (
	"net/netip"
	"testing"
	"time"

	"rivulet/fabric/discovery"
	"rivulet/fabric/discovery/discoverytest"
	"rivulet/fabric/discovery/static"
)

func TestContract(t *testing.T) {
	discoverytest.Run(t, discoverytest.Traits{Prompt: 5 * time.Second, Addrs: [2]string{"192.0.2.1", "2001:db8::2"}}, func(t *testing.T) discoverytest.Stage {
		s := &stage{source: static.New(), events: make(chan discovery.Event, 16)}
		go s.source.Watch(t.Context(), func(e discovery.Event) { s.events <- e })
		return s
	})
}

// stage: what the user writes down is all that a static source ever hears.
type stage struct {
	source *static.Source
	at     netip.AddrPort
	events chan discovery.Event
}

func (s *stage) Events() <-chan discovery.Event       { return s.events }
func (s *stage) Announce(at netip.AddrPort, _ string) { s.at = at; s.source.Set(at) }
func (s *stage) Second(at netip.AddrPort, _ string)   { s.source.Set(s.at, at) }
func (s *stage) Goodbye()                             { s.source.Set() }
func (s *stage) Die()                                 { s.source.Set() }
