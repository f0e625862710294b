package fabric

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"rivulet/fabric/discovery"
	"rivulet/fabric/discovery/mdns"
	"rivulet/fabric/netmon"
	"rivulet/fabric/tunnel"
	"rivulet/test/harness/testlan"
)

// On a real LAN with real multicast, with the timing of the product; only the
// data plane is a fake, which prints what it is told.

const roleEnv = "RIVULET_TEST_FABRIC"

func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		if name, far := strings.CutPrefix(role, farRole); far {
			runFarDevice(name)
		} else {
			runDevice(role)
		}
		return
	}
	os.Exit(m.Run())
}

type printer struct{ fakePlane }

func (p *printer) Apply(ctx context.Context, c tunnel.Config) error {
	json.NewEncoder(os.Stdout).Encode(c)
	return p.fakePlane.Apply(ctx, c)
}

func runDevice(name string) {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	ctx, cancel := context.WithCancel(context.Background())
	lans := netmon.New(log)
	go lans.Run(ctx)
	cfg := baseConfig(name[0], name, log)
	cfg.Port, cfg.PodCIDR, cfg.TunnelAddress = 7442, netip.MustParsePrefix("10.42.0.0/16"), netip.MustParseAddr("10.42.255.254")
	cfg.LANs, cfg.Sources, cfg.DataPlane = lans, []discovery.Source{mdns.New(lans, mdns.DefaultTiming, log)}, &printer{}
	f, err := New(cfg)
	if err != nil {
		panic(err)
	}
	go func() {
		io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	f.Run(ctx)
}

type device struct {
	*testlan.Device
	t       *testing.T
	name    string
	configs chan tunnel.Config
}

func bootDevice(t *testing.T, lan *testlan.LAN, name string) *device {
	d := &device{Device: lan.Device(), t: t, name: name, configs: make(chan tunnel.Config, 64)}
	out := json.NewDecoder(d.Start(roleEnv + "=" + name).Out)
	go func() {
		for {
			var c tunnel.Config
			if out.Decode(&c) != nil {
				return
			}
			d.configs <- c
		}
	}()
	return d
}

// awaitEndpoint waits until the one peer is at the address.
func (d *device) awaitEndpoint(addr string, within time.Duration) tunnel.Peer {
	d.t.Helper()
	deadline := time.After(within)
	var last tunnel.Config
	for {
		select {
		case last = <-d.configs:
			if len(last.Peers) == 1 && last.Peers[0].Endpoint == netip.MustParseAddrPort(addr) {
				return last.Peers[0]
			}
		case <-deadline:
			d.t.Fatalf("%s: no peer at %s within %v; last told: %+v", d.name, addr, within, last)
		}
	}
}

func TestOnALAN(t *testing.T) {
	t.Parallel()
	lan := testlan.New(t)
	a, b := bootDevice(t, lan, "a"), bootDevice(t, lan, "b")
	a.SetAddr("192.0.2.1/24")
	b.SetAddr("192.0.2.2/24")
	atA, atB := a.awaitEndpoint("192.0.2.2:7442", 5*time.Second), b.awaitEndpoint("192.0.2.1:7442", 5*time.Second)
	if atA.PeerMappedCIDR != atB.LocalMappedCIDR || atA.LocalMappedCIDR != atB.PeerMappedCIDR {
		t.Errorf("they disagree: %+v, %+v", atA, atB)
	}
	b.SetAddr("192.0.2.99/24") // DHCP
	if moved := a.awaitEndpoint("192.0.2.99:7442", 10*time.Second); moved.PeerMappedCIDR != atA.PeerMappedCIDR {
		t.Errorf("moving changed the prefix from %s to %s", atA.PeerMappedCIDR, moved.PeerMappedCIDR)
	}
}
