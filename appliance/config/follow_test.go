package config

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"rivulet/appliance/health"
	"rivulet/offload/offer"
)

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
		path := filepath.Join(t.TempDir(), "config.yaml")
		put(t, path, text)
		if got := Open(Source{Path: path}).Now().Config.Lent().Peers; got != want {
			t.Errorf("%q: %+v, want %+v", text, got, want)
		}
	}
}

// What status shows follows the file; a problem that goes on keeps its begin.
func TestProblemsFollowTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	put(t, path, "nmae: x")
	var tr health.Tracker
	applied := 0
	f := &Follower{Current: Open(Source{Path: path}), Apply: func(Config) { applied++ }, Health: &tr, Log: slog.New(slog.DiscardHandler)}
	codes := func() string {
		var out []string
		for _, p := range tr.Problems() {
			out = append(out, p.Code)
		}
		return strings.Join(out, " ")
	}
	f.Settle()
	if got := codes(); got != "config-broken trust-closed" {
		t.Errorf("%s", got)
	}
	p := tr.Problems()[0]
	if !strings.Contains(p.Text, ":1:1: unknown key") || !strings.Contains(p.Text, "In force are the defaults") || p.Cure != "did you mean name?" {
		t.Errorf("%+v", p)
	}
	put(t, path, "nmae: x\nlan: 5")
	if is, _ := f.Again(); len(is.Problems) != 2 || is.From != FromDefaults {
		t.Errorf("%+v", is)
	}
	if now := tr.Problems()[0]; now.Since != p.Since || !strings.Contains(now.Text, "(and 1 more, see: rivulet config check)") {
		t.Errorf("%+v, was %+v", now, p)
	}
	kubeconfig := filepath.Join(t.TempDir(), "k")
	if err := os.WriteFile(kubeconfig, []byte("apiVersion: v1\nkind: Config\nclusters: [{name: a, cluster: {server: 'https://a'}}]\ncontexts: [{name: a, context: {cluster: a, user: a}}]\nusers: [{name: a, user: {token: x}}]\ncurrent-context: a\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ text, changed, problems string }{
		{"burst: [{name: campus, kubeconfig: " + kubeconfig + "}, {name: cloud, kubeconfig: " + kubeconfig + "}]\nlan: {interfaces: [none7]}\n", "lan burst", "lan-unmatched"},
		{"burst: [{name: cloud, kubeconfig: " + kubeconfig + "}]\n", "lan burst", ""},
		{"", "burst", ""},
		{"", "", ""},
	} {
		put(t, path, tt.text)
		if is, changed := f.Again(); len(is.Problems) > 0 || strings.Join(changed, " ") != tt.changed || codes() != tt.problems {
			t.Errorf("%q: changed %v, problems %v, health %s", tt.text, changed, is.Problems, codes())
		}
	}
	if applied != 6 {
		t.Errorf("applied %d times, want once for each look", applied)
	}
}
