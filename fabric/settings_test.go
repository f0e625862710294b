package fabric

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"rivulet/fabric/pairing"
	"rivulet/fabric/peer"
)

// A cluster that gets another name is called by it everywhere, at once: by its peers
// through the tunnel's exchange, on the LAN by the announcement.
func TestSetName(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.cluster(1, "a"), w.cluster(2, "b")
	stranger := w.cluster(4, "stranger", func(c *Config) { c.Trust = Policy{Why: "it only listens"} })
	a.awaitState(b, peer.Connected)
	b.awaitState(a, peer.Connected)
	stranger.await("b on the LAN", func() bool { return stranger.view(b).Name == "b" })
	before := a.view(b)
	b.SetName("kitchen")
	a.await("the new name", func() bool { return a.view(b).Name == "kitchen" })
	stranger.await("the new name on the LAN", func() bool { return stranger.view(b).Name == "kitchen" })
	if v := a.view(b); v.State != peer.Connected || v.Since != before.Since || v.Trust != before.Trust {
		t.Errorf("%+v, before %+v: a name costs nothing", v, before)
	}
	c := w.cluster(3, "kitchen")
	b.awaitState(c, peer.Connected)
	b.await("a notice of a second kitchen", func() bool { return strings.Contains(b.view(c).Reason, `a second cluster is called "kitchen"`) })
	b.SetName("cellar")
	b.await("no notice", func() bool { return b.view(c).Reason == "" })
	if a.settings.name.get() != "a" {
		t.Error("the other name changed")
	}
}

// While trust is closed nobody new becomes a peer, whichever side begins, and both
// are told so, this one with the reason; peers stay. Opened again, it needs no other event.
func TestClosedTrust(t *testing.T) {
	t.Parallel()
	const why = "the test says so"
	w := newWorld(t)
	a := w.cluster(2, "a", func(c *Config) { c.Trust = Policy{Why: why} })
	low, high := w.cluster(1, "low"), w.cluster(3, "high") // by ID or not, one of them begins
	for _, o := range []*cluster{low, high} {
		for says, v := range map[string]peer.View{why: a.awaitState(o, peer.Refused), "nobody new": o.awaitState(a, peer.Refused)} {
			if !strings.Contains(v.Reason, says) && !strings.Contains(v.Reason, why) || v.Trust.How != "" {
				t.Errorf("%+v", v)
			}
		}
	}
	if a.store.len()+low.store.len()+high.store.len() != 2 { // low and high have each other
		low.await("each other", func() bool { return low.store.len() == 1 && high.store.len() == 1 && a.store.len() == 0 })
	}
	a.SetTrust(Policy{Mode: pairing.ModeLAN})
	begun := time.Now()
	for _, o := range []*cluster{low, high} {
		a.awaitState(o, peer.Connected)
		o.awaitState(a, peer.Connected)
	}
	if d := time.Since(begun); d > 10*time.Second {
		t.Errorf("it took %s: it waited for a retry", d)
	}
	a.SetTrust(Policy{Why: why})
	d := w.cluster(4, "d")
	d.awaitState(a, peer.Refused)
	for _, o := range []*cluster{low, high} {
		if v := a.view(o); v.State != peer.Connected {
			t.Errorf("%s: %s %s", o.cfg.Name, v.State, v.Reason)
		}
	}
	// A peer that comes back is no stranger.
	low.stop()
	a.awaitState(low, peer.Lost)
	low.start()
	a.awaitState(low, peer.Connected)
}

// What a cluster learns of itself after it was met, as the version of its API server,
// its peers learn at once.
func TestPeersHearOfANewVersion(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var version atomic.Value
	version.Store("")
	a := w.cluster(1, "a", func(c *Config) { c.KubeVersion = func() string { return version.Load().(string) } })
	b := w.cluster(2, "b")
	b.awaitState(a, peer.Connected)
	a.awaitState(b, peer.Connected)
	if v := b.view(a).KubeVersion; v != "" {
		t.Fatalf("b knows of version %q before a does", v)
	}
	version.Store("v1.35.0")
	a.Refresh()
	b.await("version of a", func() bool { return b.view(a).KubeVersion == "v1.35.0" })
}
