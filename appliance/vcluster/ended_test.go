package vcluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"rivulet/appliance/state/paths"
	"rivulet/fabric/peer"
	"rivulet/offload/provider"
)

// asking is a peer that asks about the virtual clusters it has, and records which have ended.
type asking struct {
	has   []peer.ID
	full  bool // it fails when it is told
	ended []string
}

func (a *asking) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var got provider.HostedList
	_ = json.NewDecoder(r.Body).Decode(&got)
	if a.ended = got.Ended; a.full && len(got.Ended) > 0 {
		http.Error(w, "{}", http.StatusInternalServerError)
		return
	}
	_ = json.NewEncoder(w).Encode(provider.HostedTenants{Unlisted: a.has})
}

// TestOnlyWhatHasEndedIsEnded: a peer that asks hears of those virtual clusters alone that were deleted, are being deleted,
// or may not use it any more. It hears of none that this device does not know, because it was restored from before it or
// cannot read it, nor of one that is there again.
func TestOnlyWhatHasEndedIsEnded(t *testing.T) {
	host := peer.Hosted("x", "host")
	there := &asking{}
	b := httptest.NewServer(there)
	defer b.Close()
	f := neighbour{link: peer.Link{ID: peer.Hosted("x", "b"), Name: "b", PeerCIDR: netip.MustParsePrefix("10.42.0.0/16"), PeerMappedCIDR: netip.MustParsePrefix("240.3.0.0/16")}, server: b, also: []peer.Link{{ID: "c", Name: "c"}}}
	k := New(Config{State: t.TempDir(), ID: host, Log: slog.New(slog.DiscardHandler)})
	own := func(seed string, at ...string) record {
		r := record{Spec: Spec{Name: seed, Targets: at}, ID: peer.Hosted(host, seed), Seed: seed}
		k.all[seed] = newCluster(k, r)
		there.has = append(there.has, r.ID)
		return r
	}
	own("allowed", "b")
	own("elsewhere", "c")
	own("renamed", "former") // it may be b
	own("none")
	going := own("going", "b")
	going.Deleting = true
	k.all["going"] = newCluster(k, going)
	moved := own("moved", "b") // of another device: its identity there is not this device's
	moved.ID = peer.Hosted("other", "moved")
	k.all["moved"] = newCluster(k, moved)
	back := own("back", "b")
	must(t, k.ended.add("deleted"))
	must(t, k.ended.add("back"))
	k.ended.load([]record{back}, k.cfg.Log)
	there.has = append(there.has, peer.Hosted(host, "deleted"), peer.Hosted(host, "unknown"), peer.Hosted("other", "deleted"), moved.ID)
	_, again, err := list(t.Context(), k, f, f.link, map[string]peer.ID{"allowed": peer.Hosted(host, "allowed")})
	slices.Sort(there.ended)
	if want := "[deleted elsewhere going none]"; err != nil || again || fmt.Sprint(there.ended) != want {
		t.Errorf("%v have ended, want %s; again %v, %v", there.ended, want, again, err)
	}
	there.full = true
	if _, again, err = list(t.Context(), k, f, f.link, nil); err == nil || !again {
		t.Errorf("what the peer has not taken is not told again: %v %v", again, err)
	}
	there.has = []peer.ID{peer.Hosted(host, "unknown")}
	if _, again, err = list(t.Context(), k, f, f.link, nil); err != nil || again || len(there.ended) > 0 {
		t.Errorf("%v have ended; again %v, %v", there.ended, again, err)
	}
}

// TestTheEndIsOnTheDiskBeforeTheRecordGoes: a power cut at any step of a deletion leaves the record that says it, or the
// note, or both.
func TestTheEndIsOnTheDiskBeforeTheRecordGoes(t *testing.T) {
	k := New(Config{State: t.TempDir(), Run: t.TempDir(), ID: peer.Hosted("x", "host"), Log: slog.New(slog.DiscardHandler)})
	c := newCluster(k, record{Spec: Spec{Name: "ann"}, ID: peer.Hosted(k.cfg.ID, "seed"), Seed: "seed", Deleting: true})
	must(t, k.save(c.record()))
	note := paths.EndedVirtualClusters(k.cfg.State)
	must(t, os.Mkdir(note, 0o700)) // the note cannot be written
	must(t, os.WriteFile(filepath.Join(note, "x"), nil, 0o600))
	if err := c.remove(); err == nil {
		t.Error("removed without a note")
	}
	if left, err := k.load(); err != nil || len(left) != 1 || !left[0].Deleting {
		t.Fatalf("the record is %+v %v", left, err)
	}
	must(t, os.RemoveAll(note))
	must(t, c.remove())
	if _, err := os.Lstat(c.dir()); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	started := func() *Manager {
		t.Helper()
		again := New(k.cfg)
		records, err := again.load()
		must(t, err)
		again.ended.load(records, again.cfg.Log)
		return again
	}
	if got := started().ended.all(); fmt.Sprint(got) != "[seed]" {
		t.Errorf("after a start %v have ended", got)
	}
	// The cut was before the record went: it is still being deleted.
	must(t, k.save(c.record()))
	if got := started().ended.all(); fmt.Sprint(got) != "[seed]" {
		t.Errorf("while it is being deleted %v have ended", got)
	}
	// A restore brings it back: it has not ended, also after a later one from before it.
	back := c.record()
	back.Deleting = false
	must(t, k.save(back))
	if got := started().ended.all(); len(got) > 0 {
		t.Errorf("it is there, and %v have ended", got)
	}
	must(t, os.RemoveAll(c.dir()))
	if got := started().ended.all(); len(got) > 0 {
		t.Errorf("it is unknown again, and %v have ended", got)
	}
}

// The note is bounded: the oldest ends are forgotten, and nothing that cannot be read ends anything.
func TestEndsAreBounded(t *testing.T) {
	k := New(Config{State: t.TempDir(), Log: slog.New(slog.DiscardHandler)})
	note := paths.EndedVirtualClusters(k.cfg.State)
	var seeds []string
	for i := range mostEnded {
		seeds = append(seeds, fmt.Sprint("seed", i))
	}
	must(t, os.WriteFile(note, []byte(strings.Join(seeds, "\n")), 0o600))
	k.ended.load(nil, k.cfg.Log)
	must(t, k.ended.add("newest"))
	if n := len(k.ended.seeds); n != mostEnded || k.ended.seeds[0] != "seed1" || k.ended.seeds[n-1] != "newest" {
		t.Errorf("%d, from %s to %s", n, k.ended.seeds[0], k.ended.seeds[n-1])
	}
	must(t, os.Remove(note))
	must(t, os.Mkdir(note, 0o700))
	if k.ended.load(nil, k.cfg.Log); len(k.ended.seeds) > 0 {
		t.Errorf("%d have ended by a note that cannot be read", len(k.ended.seeds))
	}
}
