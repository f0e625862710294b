package appliance

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"rivulet/appliance/config"
	"rivulet/appliance/lifecycle"
	"rivulet/fabric/netmon"
	"rivulet/offload/offer"
)

// configured is a System with a configuration file and no component.
func configured(t *testing.T, text string) (s *System, rewrite func(string)) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	rewrite = func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	rewrite(text)
	cfg := Config{Source: config.Source{Path: path}, Log: slog.New(slog.DiscardHandler)}
	lans := netmon.New(cfg.Log)
	return &System{
		cfg: cfg, nodeName: "node-1", settings: newSettings(config.Open(cfg.Source)), lans: lans, sources: newSources(lans, cfg.Log),
	}, rewrite
}

func codes(s *System) string {
	var out []string
	for _, p := range s.health.Problems() {
		out = append(out, p.Code)
	}
	return strings.Join(out, " ")
}

func TestShareOfTheConfiguration(t *testing.T) {
	for text, want := range map[string]offer.Share{
		"":                           {CPU: 100, Memory: 100},
		"share: {cpu: 5%}":           {CPU: 5, Memory: 100},
		"share: {cpu: 0%}":           {CPU: offer.Nothing, Memory: 100},
		"share: {maxPods: 7}":        {CPU: 100, Memory: 100, MaxPods: 7},
		"share: {memory: 0%}":        {CPU: 100, Memory: offer.Nothing},
		"share: {maxPods: 0}":        {CPU: 100, Memory: 100, MaxPods: offer.Nothing},
		"share: {cpu: 101%} # wrong": {CPU: 100, Memory: 100},
	} {
		s, _ := configured(t, text)
		if got := s.share(); got != want {
			t.Errorf("%q: %+v, want %+v", text, got, want)
		}
	}
}

// Only a configuration that can be read says whom to trust.
func TestTrustIsOpenOnlyForCertain(t *testing.T) {
	for text, open := range map[string]bool{
		"": true, "name: a": true, "trust: {mode: lan}": true,
		"trust: {mode: ask}": true, "trust: {mode: group, secret: sixteen-and-more-letters}": true,
		"trust: {mode: lan": false, "share: {cpu: 101%}": false, "turst: {mode: ask}": false,
	} {
		s, _ := configured(t, text)
		s.judge()
		if m := s.policy().Mode; text != "" && strings.Contains(text, "mode: "+string(m)) != (open && strings.Contains(text, "mode")) {
			t.Errorf("%q: mode %s", text, m)
		}
		if why := s.closed(); (why == "") != open || strings.Contains(codes(s), "trust-closed") == open {
			t.Errorf("%q: %q, health %s", text, why, codes(s))
		}
	}
}

// What status shows follows the file; a problem that goes on keeps its begin.
func TestProblemsFollowTheFile(t *testing.T) {
	s, rewrite := configured(t, "nmae: x")
	s.settle()
	if got := codes(s); got != "config-broken trust-closed" {
		t.Errorf("%s", got)
	}
	p := s.health.Problems()[0]
	if !strings.Contains(p.Text, ":1:1: unknown key") || !strings.Contains(p.Text, "In force are the defaults") || p.Cure != "did you mean name?" {
		t.Errorf("%+v", p)
	}
	rewrite("nmae: x\nlan: 5")
	if r := s.reload(); len(r.Problems) != 2 || r.From != config.FromDefaults || !r.Broken {
		t.Errorf("%+v", r)
	}
	if now := s.health.Problems()[0]; now.Since != p.Since || !strings.Contains(now.Text, "(and 1 more, see: rivulet config check)") {
		t.Errorf("%+v, was %+v", now, p)
	}
	kubeconfig := filepath.Join(t.TempDir(), "k")
	if err := os.WriteFile(kubeconfig, []byte("apiVersion: v1\nkind: Config\nclusters: [{name: a, cluster: {server: 'https://a'}}]\ncontexts: [{name: a, context: {cluster: a, user: a}}]\nusers: [{name: a, user: {token: x}}]\ncurrent-context: a\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	rewrite("burst: [{name: campus, kubeconfig: " + kubeconfig + "}, {name: cloud, kubeconfig: " + kubeconfig + "}]\nlan: {interfaces: [none7]}\n")
	if r := s.reload(); len(r.Problems) > 0 || strings.Join(r.Changed, " ") != "lan burst" {
		t.Errorf("%+v", r)
	}
	if got := codes(s); got != "lan-unmatched" {
		t.Errorf("%s", got)
	}
	rewrite("burst: [{name: cloud, kubeconfig: " + kubeconfig + "}]\n")
	s.reload()
	if got := codes(s); got != "" {
		t.Errorf("%s", got)
	}
	rewrite("")
	if r := s.reload(); strings.Join(r.Changed, " ") != "burst" || codes(s) != "" {
		t.Errorf("%+v, health %s", r, codes(s))
	}
	if r := s.reload(); len(r.Changed) != 0 {
		t.Errorf("nothing has changed: %+v", r)
	}
}

// The engine is started again for what it reads only at its start, for nothing else,
// and with what is in force then. Its own end is not taken for that.
func TestKeepEngine(t *testing.T) {
	s, rewrite := configured(t, "")
	started := make(chan engineSettings)
	end := make(chan error)
	manager, err := lifecycle.New(s.cfg.Log, lifecycle.Component{Name: cEngine, Run: func(ctx context.Context, stage *lifecycle.Stage) error {
		return s.keepEngine(ctx, stage, func(ctx context.Context, _ *lifecycle.Stage, set engineSettings) error {
			started <- set
			select {
			case <-ctx.Done():
				return nil
			case err := <-end:
				return err
			}
		})
	}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- manager.Run(ctx) }()
	next := func(what string) engineSettings {
		t.Helper()
		select {
		case set := <-started:
			return set
		case <-time.After(10 * time.Second):
			t.Fatalf("no engine was started: %s", what)
			return engineSettings{}
		}
	}
	if set := next("first"); set != (engineSettings{own: set.own}) {
		t.Errorf("%+v", set)
	}
	rewrite("name: other\nshare: {cpu: 5%}\n") // not the engine's
	s.reload()
	rewrite("name: other\nreserve: {cpu: 100m}\n")
	if r := s.reload(); len(r.Pending) != 1 || r.Pending[0] != "reserve: the engine starts again, pods go on" {
		t.Errorf("%+v", r.Pending)
	}
	if set := next("reserve"); set.ReserveCPU != "100m" {
		t.Errorf("started for something else: %+v", set)
	}
	if len(s.pending()) != 1 {
		t.Error("it is not pending until the engine is up")
	}
	s.settings.engineStarts("")
	rewrite("registries: {mirrors: {a: {endpoint: ['http://b']}}}\n")
	s.reload()
	if set := next("registries"); set.ReserveCPU != "" || !strings.Contains(set.Registries, "http://b") {
		t.Errorf("%+v", set)
	}
	s.settings.engineStarts("")
	if got := s.pending(); got != nil {
		t.Errorf("%v", got)
	}
	end <- errors.New("it ended by itself")
	if set := next("after its own end"); !strings.Contains(set.Registries, "http://b") {
		t.Errorf("%+v", set)
	}
	if st := manager.Status()[0]; st.Starts != 2 {
		t.Errorf("the component was started %d times, want 2: only its own end is a failure", st.Starts)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
