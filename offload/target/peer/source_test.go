package peer

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"rivulet/fabric/changes"
	"rivulet/fabric/peer"
	"rivulet/offload/target"
)

// incomplete is a fabric with one peer, which has no tunnel.
type incomplete struct {
	mu      sync.Mutex
	linked  bool
	gone    []peer.ID
	changed chan struct{}
}

func (f *incomplete) set(do func()) {
	f.mu.Lock()
	do()
	f.mu.Unlock()
	f.changed <- struct{}{}
}

func (f *incomplete) Peerings() (linked []peer.Link, others []peer.Unlinked) {
	f.mu.Lock()
	defer f.mu.Unlock()
	l := peer.Link{ID: "id-of-b", Name: "b"}
	switch {
	case len(f.gone) > 0:
	case f.linked:
		l.Addr = netip.MustParseAddrPort("240.3.0.1:7442")
		linked = append(linked, l)
	default:
		others = append(others, peer.Unlinked{Link: l, Why: "its key is another peer's"})
	}
	return linked, others
}

func (f *incomplete) Links() []peer.Link {
	linked, _ := f.Peerings()
	return linked
}
func (f *incomplete) Departed() []peer.ID                { f.mu.Lock(); defer f.mu.Unlock(); return f.gone }
func (f *incomplete) Changed() (<-chan struct{}, func()) { return f.changed, func() {} }
func (f *incomplete) Link(peer.ID) (peer.Link, bool)     { return peer.Link{}, false }
func (f *incomplete) TLS(peer.ID) (cert, key, server []byte, name string, err error) {
	return nil, nil, nil, "", nil
}
func (f *incomplete) Client(peer.ID) (*http.Client, string, error) {
	return http.DefaultClient, "https://240.3.0.1:7442", nil
}
func (f *incomplete) Dial(context.Context, string, string) (net.Conn, error) { panic("dialled") }

// received is a consumer that keeps what it was given last.
type received struct {
	t     *testing.T
	mu    sync.Mutex
	specs []target.Spec
	ended map[string]bool
}

func (c *received) SetTargets(kind target.Kind, all []target.Spec, complete bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if kind != target.Peer || complete {
		c.t.Errorf("%s, complete: %v", kind, complete)
	}
	c.specs = all
}

func (c *received) End(ids ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, id := range ids {
		c.ended[id] = true
	}
}

func (c *received) Existing(context.Context, target.Kind) (nodes, used map[string]bool, err error) {
	return nil, nil, nil
}
func (c *received) Busy(string) bool { return false }

// TestAPeerWithoutATunnelIsATarget: a peer whose record is not complete stays a target, however long, and no list of
// targets is ever said to be all of them. Its revocation ends it.
func TestAPeerWithoutATunnelIsATarget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &incomplete{changed: make(chan struct{}, 1)}
		c := &received{t: t, ended: map[string]bool{}}
		s := &Source{Fabric: f, Consumer: c, Moved: new(changes.Signal)}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go s.Run(ctx)
		has := func(what string, n int) []target.Spec {
			t.Helper()
			time.Sleep(2 * target.Patience)
			synctest.Wait()
			c.mu.Lock()
			defer c.mu.Unlock()
			if len(c.specs) != n {
				t.Fatalf("%s: %d targets, want %d", what, len(c.specs), n)
			}
			return c.specs
		}
		silent := has("without a tunnel", 1)[0]
		if silent.ID != "id-of-b" || silent.Withdrawn || silent.Unchosen || len(c.ended) > 0 {
			t.Errorf("%+v, ended %v", silent, c.ended)
		}
		made, err := silent.New("b", slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		offers, stop := context.WithCancel(ctx)
		if o := <-made.Offers(offers); o.Ready || o.Withdrawn || !strings.Contains(o.Reason, "its key is another peer's") {
			t.Errorf("it offers %+v", o)
		}
		stop()
		if _, err := made.Twins(ctx); err == nil {
			t.Error("it answers")
		}
		f.set(func() { f.linked = true })
		if now := has("with a tunnel", 1)[0]; now.Key == silent.Key {
			t.Error("its target is not made anew")
		}
		f.set(func() { f.gone = []peer.ID{"id-of-b"} })
		if has("after its end", 0); !c.ended["id-of-b"] {
			t.Error("its end is not told")
		}
	})
}
