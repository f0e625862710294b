package fabric

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"rivulet/fabric/discovery"
	"rivulet/fabric/discovery/mdns"
	"rivulet/fabric/netmon"
	"rivulet/fabric/peer"
	"rivulet/fabric/tunnel"
	"rivulet/test/harness/badline"
	"rivulet/test/harness/testlan"
)

// farRole is a device with a tunnel of its own, in this process.
const farRole = "far "

type ownPlane struct{ server *tunnel.Server }

func (p ownPlane) Apply(_ context.Context, cfg tunnel.Config) error { return p.server.Apply(cfg) }
func (p ownPlane) Status(context.Context) (tunnel.Status, error)    { return p.server.Status() }

// seen is what a far device prints whenever a peer is in another state.
type seen struct {
	State peer.State
	RTT   time.Duration
}

func runFarDevice(name string) {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	lans := netmon.New(log)
	go lans.Run(ctx)
	server := tunnel.NewServer(tunnel.HelperVersion, log)
	dir, err := os.MkdirTemp("", "far-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, filepath.Join(dir, "tunnel.sock")) }()
	cfg := baseConfig(name[0], name, log)
	cfg.Port, cfg.PodCIDR, cfg.TunnelAddress = 7442, netip.MustParsePrefix("10.42.0.0/16"), netip.MustParseAddr("10.42.255.254")
	cfg.LANs, cfg.Sources, cfg.DataPlane = lans, []discovery.Source{mdns.New(lans, mdns.DefaultTiming, log)}, ownPlane{server}
	f, err := New(cfg)
	if err != nil {
		panic(err)
	}
	go func() {
		changed, stop := f.Changed()
		defer stop()
		out := json.NewEncoder(os.Stdout)
		for {
			for _, l := range f.Links() {
				out.Encode(seen{State: l.State, RTT: l.RTT})
			}
			select {
			case <-ctx.Done():
				return
			case <-changed:
			}
		}
	}()
	f.Run(ctx)
	<-served
}

// Two clusters with a line between them that takes 100 ms there and back, now more and
// now less, and loses a twentieth each way: they find each other, become peers, and stay so.
func TestPeeringOverABadLine(t *testing.T) {
	t.Parallel()
	lan := testlan.New(t)
	a, b := lan.Device(), lan.Device()
	in := func(d *testlan.Device) func(func() error) error {
		return func(what func() error) (err error) {
			d.Do(func() error { err = what(); return nil })
			return err
		}
	}
	line := badline.New(t, badline.End{In: in(a), Name: "eth1"}, badline.End{In: in(b), Name: "eth1"},
		badline.Quality{Delay: 50 * time.Millisecond, Jitter: 15 * time.Millisecond, Loss: 0.05})
	states := map[string]chan seen{}
	for name, d := range map[string]*testlan.Device{"a": a, "b": b} {
		d.Unplug()
		d.Do(func() error {
			link, err := netlink.LinkByName("eth1")
			if err != nil {
				return err
			}
			addr, err := netlink.ParseAddr(map[string]string{"a": "10.9.0.1/24", "b": "10.9.0.2/24"}[name])
			if err != nil {
				return err
			}
			if err := netlink.AddrAdd(link, addr); err != nil {
				return err
			}
			return netlink.LinkSetUp(link)
		})
		ch := make(chan seen, 1000)
		states[name] = ch
		out := json.NewDecoder(d.Start(roleEnv + "=" + farRole + name).Out)
		go func() {
			defer close(ch)
			for {
				var s seen
				if out.Decode(&s) != nil {
					return
				}
				ch <- s
			}
		}()
	}
	for name, ch := range states {
		limit := time.After(90 * time.Second)
		for connected := false; !connected; {
			select {
			case s, ok := <-ch:
				if !ok {
					t.Fatalf("%s has ended", name)
				}
				connected = s.State == peer.Connected
				if connected && (s.RTT < 60*time.Millisecond || s.RTT > 3*time.Second) {
					t.Errorf("%s: the round trip is %v", name, s.RTT)
				}
			case <-limit:
				t.Fatalf("%s is not connected", name)
			}
		}
	}
	// For a while nothing but what the line does: one lost ping is no lost peer.
	quiet := time.After(10 * time.Second)
	for {
		select {
		case s := <-states["a"]:
			if s.State == peer.Lost {
				t.Error("a lost b on a line that loses a twentieth")
			}
		case s := <-states["b"]:
			if s.State == peer.Lost {
				t.Error("b lost a on a line that loses a twentieth")
			}
		case <-quiet:
			if line.Lost.Load() == 0 {
				t.Error("the line has lost nothing")
			}
			return
		}
	}
}
