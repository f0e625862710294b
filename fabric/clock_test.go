package fabric

import (
	"sync"
	"testing"
	"time"

	"rivulet/fabric/peer"
)

// watch is a Clock that is wrong by some years.
type watch struct {
	ahead        time.Duration
	synchronized bool
	mu           sync.Mutex
	heard        map[string]time.Duration // by name: how far ahead of real time the peer is
	known        map[string]bool
}

func (w *watch) Reading() (time.Time, bool) { return time.Now().Add(w.ahead), w.synchronized }

func (w *watch) Received(_, name string, now time.Time, synchronized bool, roundTrip time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.heard == nil {
		w.heard, w.known = map[string]time.Duration{}, map[string]bool{}
	}
	w.heard[name], w.known[name] = time.Until(now.Add(roundTrip/2)), synchronized
}

func (w *watch) of(name string) (ahead time.Duration, synchronized, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	ahead, ok = w.heard[name]
	return ahead, w.known[name], ok
}

// A device in 1986 hears the time of its peers, through TLS that no date stops,
// and who of them knows it.
func TestPeersTellTheTime(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const years = 365 * 24 * time.Hour
	clocks := map[string]*watch{"a": {ahead: -40 * years}, "b": {synchronized: true}, "c": {ahead: 10 * years}}
	clusters := map[string]*cluster{}
	for i, name := range []string{"a", "b", "c"} {
		clusters[name] = w.cluster(byte(i+1), name, func(c *Config) { c.Clock = clocks[name] })
	}
	for _, from := range clusters {
		for name, to := range clusters {
			if from == to {
				continue
			}
			from.awaitState(to, peer.Connected)
			from.await("time of "+name, func() bool { _, _, ok := clocks[from.cfg.Name].of(name); return ok })
			ahead, synchronized, _ := clocks[from.cfg.Name].of(name)
			if (ahead-clocks[name].ahead).Abs() > 2*time.Second || synchronized != clocks[name].synchronized {
				t.Errorf("%s hears that %s is %s ahead, synchronized %v", from.cfg.Name, name, ahead, synchronized)
			}
		}
	}
}

func TestTimeHeader(t *testing.T) {
	now := time.Unix(1795261502, 123456789)
	for _, synchronized := range []bool{false, true} {
		if got, s, ok := parseTime(formatTime(now, synchronized)); !ok || !got.Equal(now) || s != synchronized {
			t.Errorf("%v %v %v", got, s, ok)
		}
	}
	for _, bad := range []string{"", "x", " synchronized", "99999999999999999999", "1.5 synchronized"} {
		if _, _, ok := parseTime(bad); ok {
			t.Errorf("%q was read", bad)
		}
	}
	// What a newer version may add is no claim that we know of.
	if _, s, ok := parseTime("1 synchronized-by-magic"); !ok || s {
		t.Error("an unknown word counts as synchronized, or the number does not count")
	}
}
