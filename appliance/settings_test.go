package appliance

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"rivulet/appliance/config"
	"rivulet/appliance/network"
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
	s = &System{
		cfg: cfg, nodeName: "node-1", settings: newSettings(config.Open(cfg.Source)), lans: lans, sources: network.NewSources(lans, cfg.Log),
	}
	s.newEngine()
	return s, rewrite
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
		if m := network.Policy(s.settings.Now()).Mode; text != "" && strings.Contains(text, "mode: "+string(m)) != (open && strings.Contains(text, "mode")) {
			t.Errorf("%q: mode %s", text, m)
		}
		if why, _ := network.Closed(s.settings.Now()); (why == "") != open || strings.Contains(codes(s), "trust-closed") == open {
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
