package fabric

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"rivulet/fabric/pairing"
	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
)

// call sends the first message of an exchange to a cluster, and no other.
func (s *stranger) call(t *testing.T, c *cluster) {
	t.Helper()
	var err error
	c.await("an answer", func() bool {
		m := s.self.Hello(peer.Record{})
		m.Sequence = 1
		_, _, err = pairing.PostTo(s.id, c.id(), netip.AddrPortFrom(onLAN, c.cfg.Port), nil)(t.Context(), func(pairing.Sender) pairing.Message { return m })
		return err == nil
	})
}

// refuses has the stranger refuse each exchange with this code.
func (s *stranger) refuses(t *testing.T, code string) {
	t.Helper()
	l, err := tls.Listen("tcp", "127.0.0.1:0", rpc.ServerTLS(s.id))
	if err != nil {
		t.Fatal(err)
	}
	s.self.ControlPort = uint16(l.Addr().(*net.TCPAddr).Port)
	server := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		rpc.Fail(w, http.StatusForbidden, &rpc.Error{Code: code, Message: "no"})
	})}
	go server.Serve(l) // it ends with the test
	t.Cleanup(func() { server.Close() })
}

// A cluster that calls and does not take this one as a peer, since it refuses it or is gone, leaves no key, prefix or place.
func TestOnesidedPeersAreForgotten(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.cluster(1, "a", alone)
	refusing, gone, whole := newStranger(t, 60), newStranger(t, 61), newStranger(t, 62)
	refusing.refuses(t, "name-taken")
	gone.self.ControlPort = freePort(t)
	for _, s := range []*stranger{refusing, gone} {
		s.call(t, a)
		if r, ok := a.record(s.id.ID); !ok || !r.Unconfirmed {
			t.Errorf("a has %+v, %v", r, ok)
		}
	}
	if err := whole.pair(a); err != nil {
		t.Fatal(err)
	}
	a.await("the end of those that are peers for a alone", func() bool {
		return len(a.members.records()) == 1 && len(a.plane.config().Peers) == 1
	})
	if r, ok := a.record(whole.id.ID); !ok || r.Unconfirmed {
		t.Errorf("the one that confirmed: %+v, %v", r, ok)
	}
	if stored, err := a.store.Peers(); err != nil || len(stored) != 1 {
		t.Errorf("%d records are stored, %v", len(stored), err)
	}
	if err := gone.pair(a); err != nil { // it may come back
		t.Error(err)
	}
}

// A cluster that an operator has approved stays a peer, whatever the other side says.
func TestAnApprovedPeerStays(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, s := w.cluster(1, "a", alone), newStranger(t, 60)
	s.refuses(t, "name-taken")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go a.ApproveAt(ctx, s.id.ID, s.at()) //nolint:errcheck // the stranger refuses
	a.await("the refusal", func() bool { return a.viewOf(s.id.ID).State == peer.Refused })
	s.call(t, a)
	if r, ok := a.record(s.id.ID); !ok || r.Unconfirmed || r.Trust.How != peer.TrustApproved {
		t.Errorf("%+v, %v", r, ok)
	}
}

// So does one that an operator approves after it has called, and before it has confirmed.
func TestAPeerThatIsApprovedLaterStays(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, s := w.cluster(1, "a", alone), newStranger(t, 60)
	s.self.ControlPort = freePort(t)
	s.call(t, a)
	if r, ok := a.record(s.id.ID); !ok || !r.Unconfirmed {
		t.Fatalf("%+v, %v", r, ok)
	}
	if _, err := a.ApproveAt(t.Context(), s.id.ID, s.at()); err != nil {
		t.Fatal(err)
	}
	if r, ok := a.record(s.id.ID); !ok || r.Unconfirmed || r.Trust.How != peer.TrustApproved {
		t.Errorf("%+v, %v", r, ok)
	}
}
