package fakepeer

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"rivulet/test/harness/await"
	"rivulet/test/harness/testlan"
)

func TestMain(m *testing.M) {
	if os.Getenv(nameEnv) != "" {
		if err := Main(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

const (
	idlePeers = 12
	// settling is longer than the pings that follow soon after a peer is new, and than one heartbeat of offers.
	settling = 75 * time.Second
	counting = 60 * time.Second
	// perPeer bounds the packets of an idle peer in that time, in both directions: a ping with its answer each half
	// minute, an offer in each direction each minute, HTTP/2's pings of both sides every 20 s, and on the LAN the pings of the path, every 2 s by one side.
	perPeerInside, perPeerLAN = 48, 140
	// promptly is how soon a new peer answers through the tunnel. A handshake that got lost takes more than 5 s.
	promptly = 5.0
)

// crowd is a LAN with a hub, and peers that came one after the other.
func crowd(t *testing.T) (hub *testlan.Device) {
	lan, dir := testlan.New(t), t.TempDir()
	start := func(i int) (*testlan.Device, *testlan.Process) {
		d := lan.Device()
		d.SetAddr(fmt.Sprintf("10.77.0.%d/24", 11+i))
		return d, d.Start(nameEnv+"="+fmt.Sprintf("p%d", i), deviceEnv+"=10.77.0.11", dirEnv+"="+dir)
	}
	hub, _ = start(0)
	var took []float64
	for i := range idlePeers {
		_, p := start(1 + i)
		var r Report
		if err := json.NewDecoder(p.Out).Decode(&r); err != nil {
			t.Fatal(err)
		}
		took = append(took, r.Connected)
	}
	t.Logf("connected after %.2f s", took)
	if slow := slices.Max(took); slow > promptly {
		t.Errorf("the slowest peer is connected after %.1f s", slow)
	}
	return hub
}

// Peers that come one after the other are connected soon.
func TestPeersThatCome(t *testing.T) { crowd(t) }

// idleEnv has TestIdlePeers run, as make bench does: it takes two minutes and a half, of which two pass without anything.
const idleEnv = "RIVULET_TEST_IDLE"

// What an idle peer costs is counted in packets, which a busy machine does not change: CPU time follows from them.
func TestIdlePeers(t *testing.T) {
	if os.Getenv(idleEnv) == "" {
		t.Skipf("a measurement: make bench runs it, or set %s=1", idleEnv)
	}
	hub := crowd(t)
	pass(t, settling)
	inside, outside := packets(t, hub, "riv0"), packets(t, hub, "eth0")
	pass(t, counting)
	inside, outside = (packets(t, hub, "riv0")-inside)/idlePeers, (packets(t, hub, "eth0")-outside)/idlePeers
	t.Logf("%d packets in the tunnel and %d on the LAN for each peer in %v", inside, outside, counting)
	if inside > perPeerInside {
		t.Errorf("%d packets in the tunnel for each peer, want %d at most", inside, perPeerInside)
	}
	if outside > perPeerLAN {
		t.Errorf("%d packets on the LAN for each peer, want %d at most", outside, perPeerLAN)
	}
	if inside < 2 || outside < 20 {
		t.Error("the peers are not connected any more")
	}
}

func pass(t *testing.T, d time.Duration) {
	end := time.Now().Add(d)
	await.True(t, 2*d, "quiet time", func() bool { return time.Now().After(end) })
}

// packets is how many the interface of the device has received and sent.
func packets(t *testing.T, d *testlan.Device, name string) (n int) {
	t.Helper()
	d.Do(func() error {
		raw, err := os.ReadFile("/proc/thread-self/net/dev")
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(raw)) {
			if dev, figures, ok := strings.Cut(strings.TrimSpace(line), ":"); ok && dev == name {
				f := strings.Fields(figures)
				var received, sent int
				if _, err := fmt.Sscan(f[1], &received); err != nil {
					return err
				}
				if _, err := fmt.Sscan(f[9], &sent); err != nil {
					return err
				}
				n = received + sent
				return nil
			}
		}
		return fmt.Errorf("no interface %s", name)
	})
	return n
}
