package tunnel

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/conn"

	"rivulet/fabric/tunnel/paths"
	"rivulet/fabric/tunnel/wgdev"
)

// brokerAtC makes c a broker instead of a peer: a hub of the paths, without WireGuard.
func (w *natWorld) brokerAtC() *paths.Manager {
	w.t.Helper()
	key, public := newKeys(w.t)
	hub := paths.New(paths.DefaultTiming, func() {}, slog.New(slog.DiscardHandler))
	bind := paths.NewBind(hub, wgdev.NewBind(slog.New(slog.DiscardHandler)))
	var fns []conn.ReceiveFunc
	w.c.node.must(func() (err error) { fns, _, err = bind.Open(wgPort); return err })
	for _, fn := range fns {
		bufs, sizes, eps := make([][]byte, bind.BatchSize()), make([]int, bind.BatchSize()), make([]conn.Endpoint, bind.BatchSize())
		for i := range bufs {
			bufs[i] = make([]byte, 1<<16)
		}
		go func() {
			for {
				if _, err := fn(bufs, sizes, eps); err != nil {
					return
				}
			}
		}()
	}
	ctx, cancel := context.WithCancel(context.Background())
	go hub.Run(ctx)
	l := w.c.node.listen(":7442")
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			hub.Accept(ctx, c, nil)
		}
	}()
	w.t.Cleanup(func() { cancel(); bind.Close() })
	cfg := paths.Config{Private: key.Bytes(), Public: public.Bytes(), Relay: true, Hub: true}
	at := []netip.AddrPort{netip.MustParseAddrPort("198.51.3.2:7442")}
	for name, d := range map[string]*board{"a": w.a, "b": w.b} {
		cfg.Peers = append(cfg.Peers, paths.Peer{ID: name, Public: d.want.PrivateKey.Public().Bytes(), Room: "r"})
		d.want.Peers = d.want.Peers[:1] // without c
		d.want.Brokers = []Broker{{ID: "c", PublicKey: public, UDP: at, TCP: at}}
	}
	if err := hub.Apply(cfg); err != nil {
		w.t.Fatal(err)
	}
	return hub
}

// A broker that claims the WireGuard key of a peer, or this cluster's, is not used; the peer is.
func TestABrokersKeyIsNoPeers(t *testing.T) {
	t.Parallel()
	key, own := newKeys(t)
	_, peers := newKeys(t)
	_, brokers := newKeys(t)
	cfg := config(key, Peer{ID: "b", PublicKey: peers, LocalMappedCIDR: aSeenByB, PeerMappedCIDR: bSeenByA})
	cfg.Brokers = []Broker{{ID: "as-b", PublicKey: peers}, {ID: "as-a", PublicKey: own}, {ID: "none"}, {ID: "own", PublicKey: brokers}}
	var got []string
	for _, p := range cfg.forPaths().Peers {
		got = append(got, p.ID)
	}
	if !slices.Equal(got, []string{"own", "b"}) {
		t.Errorf("%v have paths, want the broker with a key of its own, and the peer", got)
	}
}

// Two sites behind NATs that have nothing in common but a broker: it relays, and a direct path replaces it.
func TestSitesBehindNATFindEachOtherByABroker(t *testing.T) {
	t.Parallel()
	w := newNATWorld(t, false)
	hub := w.brokerAtC()
	w.apply(w.a, w.b)
	k := newTalk(t, w.a, w.b, "10.200.0.7")
	k.on(3 * reachLimit)
	awaitWay(t, w.a, "b", paths.Direct)
	awaitWay(t, w.b, "a", paths.Direct)
	before := hub.Relayed()
	if before == 0 {
		t.Error("the broker relayed nothing: they did not need it")
	}
	stream(t, w.a.pod, w.b.pod, "10.200.0.7", "10.201.0.5", 4<<20)
	if n := hub.Relayed() - before; n > 100 {
		t.Errorf("the broker relayed %d packets beside the direct path", n)
	}
	st, err := w.a.Status(t.Context())
	if err != nil || len(st.Brokers) != 1 || len(st.Brokers[0].Paths) == 0 || !st.Brokers[0].Paths[0].Alive {
		t.Errorf("the status has %+v, %v", st.Brokers, err)
	}
}

// Behind NATs that admit no direct path the broker stays, by UDP and, where that is blocked, by a stream. Without it
// the path ends at once.
func TestSitesBehindSymmetricNATAreRelayedByABroker(t *testing.T) {
	t.Parallel()
	w := newNATWorld(t, true)
	hub := w.brokerAtC()
	w.apply(w.a, w.b)
	k := newTalk(t, w.a, w.b, "10.200.0.7")
	k.on(3 * reachLimit)
	if got := awaitWay(t, w.a, "b", paths.Relay); got.Via != "c" {
		t.Errorf("%+v, want by the broker", got)
	}
	stream(t, w.a.pod, w.b.pod, "10.200.0.7", "10.201.0.5", 4<<20)
	if hub.Relayed() < 1000 {
		t.Errorf("the broker relayed %d packets", hub.Relayed())
	}
	t.Run("UDP to the broker is blocked for one site", func(t *testing.T) {
		w.noUDP([2]string{"net1", "net3"}, [2]string{"net3", "net1"})
		t.Logf("the same connection goes on after %s", k.on(30*time.Second))
		st, err := w.a.Status(t.Context())
		if err != nil || len(st.Brokers) != 1 || st.Brokers[0].Paths[0].Kind != paths.Stream {
			t.Errorf("a reaches the broker by %+v, %v", st.Brokers, err)
		}
	})
	t.Run("the configuration has no broker any more", func(t *testing.T) {
		w.a.want.Brokers = nil
		w.apply(w.a)
		k.c.SetDeadline(time.Now().Add(2 * time.Second))
		if _, err := k.c.Write([]byte{1}); err == nil {
			if _, err := k.c.Read(make([]byte, 1)); err == nil {
				t.Error("relayed all the same")
			} else if !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%v, want silence", err)
			}
		}
	})
}
