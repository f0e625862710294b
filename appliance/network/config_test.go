package network

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"rivulet/appliance/config"
	"rivulet/appliance/health"
	"rivulet/fabric/discovery"
	"rivulet/fabric/netmon"
)

// configured is a configuration with this text.
func configured(t *testing.T, text string) (f *config.Follower, rewrite func(string)) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	rewrite = func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	rewrite(text)
	return &config.Follower{
		Current: config.Open(config.Source{Path: path}), Apply: func(config.Config) {}, Health: &health.Tracker{}, Log: slog.New(slog.DiscardHandler),
	}, rewrite
}

// Only a configuration that can be read says whom to trust.
func TestTrustIsOpenOnlyForCertain(t *testing.T) {
	for text, open := range map[string]bool{
		"": true, "name: a": true, "trust: {mode: lan}": true,
		"trust: {mode: ask}": true, "trust: {mode: group, secret: sixteen-and-more-letters}": true,
		"trust: {mode: lan": false, "share: {cpu: 101%}": false, "turst: {mode: ask}": false,
	} {
		f, _ := configured(t, text)
		f.Settle()
		if m := Policy(f.Now()).Mode; text != "" && strings.Contains(text, "mode: "+string(m)) != (open && strings.Contains(text, "mode")) {
			t.Errorf("%q: mode %s", text, m)
		}
		shown := false
		for _, p := range f.Health.Problems() {
			shown = shown || p.Code == health.TrustClosed.Code
		}
		if why, _ := f.Now().TrustClosed(); (why == "") != open || shown == open {
			t.Errorf("%q: %q, health %v", text, why, f.Health.Problems())
		}
	}
}

// What peers names is looked for at once, and no longer when it is gone from the file;
// a change says so.
func TestPeersOfTheConfiguration(t *testing.T) {
	f, rewrite := configured(t, "peers: [192.0.2.7]")
	sources := NewSources(netmon.New(f.Log), f.Log)
	f.Apply = func(c config.Config) { sources.Set(c.Peers) }
	f.Settle()
	events := make(chan discovery.Event, 8)
	go sources.Static.Watch(t.Context(), func(e discovery.Event) { events <- e })
	expect := func(kind discovery.Kind, addr string) {
		t.Helper()
		select {
		case e := <-events:
			if e.Kind != kind || e.Entry.Addrs[0].String() != addr {
				t.Fatalf("told %v, want %s %s", e, kind, addr)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("not told: %s %s", kind, addr)
		}
	}
	expect(discovery.Added, "192.0.2.7:7442")
	rewrite("peers: [\"[2001:db8::1]:7000\"]")
	if _, changed := f.Again(); len(changed) != 1 || changed[0] != "peers" {
		t.Errorf("changed: %v", changed)
	}
	expect(discovery.Removed, "192.0.2.7:7442")
	expect(discovery.Added, "[2001:db8::1]:7000")
	rewrite("")
	f.Again()
	expect(discovery.Removed, "[2001:db8::1]:7000")
}
