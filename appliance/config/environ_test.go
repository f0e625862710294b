package config

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// Each key has a variable, and no two have the same.
func TestVariables(t *testing.T) {
	for key, want := range map[string]string{
		"name": "RIVULET_NAME", "trust.secretFile": "RIVULET_TRUST_SECRET_FILE", "share.maxPods": "RIVULET_SHARE_MAX_PODS",
		"tunnel.peerCIDR": "RIVULET_TUNNEL_PEER_CIDR", "peerImages": "RIVULET_PEER_IMAGES",
	} {
		if got := Variable(key); got != want {
			t.Errorf("the variable of %s is %s, want %s", key, got, want)
		}
	}
	seen := map[string]string{}
	for _, k := range Keys {
		if other, ok := seen[Variable(k)]; ok {
			t.Errorf("%s is of %s and %s", Variable(k), k, other)
		}
		seen[Variable(k)] = k
	}
}

// What nothing reads is told, and not passed over: it may have said whom to trust.
func TestUnknownVariables(t *testing.T) {
	got, err := Environment([]string{"HOME=/root", "RIVULET_STATE=/s", "RIVULET_PEERS=", "RIVULET_TRUST_MODE=ask", "MY_RIVULET_X=1"}, []string{"RIVULET_STATE"})
	if err != nil || len(got) != 1 || got["trust.mode"] != "ask" {
		t.Errorf("%v, %v", got, err)
	}
	for kv, want := range map[string]string{
		"RIVULET_TRUSTMODE=ask":  "the environment has RIVULET_TRUSTMODE, which nothing reads; did you mean RIVULET_TRUST_MODE?",
		"RIVULET_BANDWIDTH=9":    "RIVULET_BANDWIDTH, which nothing reads; remove it",
		"RIVULET_STATE=/ignored": "RIVULET_STATE, which nothing reads",
	} {
		if _, err := Environment([]string{kv}, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", kv, err)
		}
	}
}

// The environment comes over the file, key by key, and is judged with it.
func TestEnvironmentComesOverTheFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.yaml")
	load := func(text string, env map[string]string) Loaded {
		t.Helper()
		if text == "-" {
			os.Remove(file)
		} else if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return Source{Path: file, Env: env, Host: aHost}.Load(time.Now())
	}
	all := map[string]string{
		"trust.mode": "group", "trust.secret": "1234567890123456", "lan.interfaces": "eth0, wlan*", "peers": "[192.0.2.7, 'campus.example:7442']", "statusPage": "true",
		"share.cpu": "50%", "share.maxPods": "3", "registries.mirrors": "{docker.io: {endpoint: ['https://mirror.example']}}",
	}
	for _, text := range []string{"-", "", "trust: {mode: ask}\nlan:\nshare: {cpu: 10%, memory: 20%}\n"} {
		l := load(text, all)
		c := l.Config
		if len(l.Problems) > 0 || c.Trust.Mode != "group" || string(c.Trust.Secret) != all["trust.secret"] || !slices.Equal(c.LAN.Interfaces, []string{"eth0", "wlan*"}) ||
			len(c.Peers) != 2 || c.StatusPage == nil || !*c.StatusPage || c.Share.CPU != "50%" || len(c.Registries.Mirrors) != 1 {
			t.Errorf("%q: %v %+v", text, l.Problems, c)
		}
		if got := l.Origins["trust.mode"].String(); got != "environment RIVULET_TRUST_MODE" {
			t.Errorf("%q: trust.mode is from %s", text, got)
		}
		if strings.Contains(text, "memory") && (c.Share.Memory != "20%" || l.Origins["share.memory"].Kind != "file") {
			t.Errorf("what the file alone says is %q, from %s", c.Share.Memory, l.Origins["share.memory"])
		}
	}
	for _, c := range []struct {
		text, key, value, want string
	}{
		{"-", "trust.mode", "lna", `$RIVULET_TRUST_MODE: trust.mode: "lna" is not known; did you mean lan?`},
		{"", "share.maxPods", "three", "$RIVULET_SHARE_MAX_PODS: share.maxPods is a text, not a number; "},
		{"", "peers", "192.0.2", `$RIVULET_PEERS: peers: "192.0.2" is neither an address nor a name; `},
		{"", "burst", "[{", "$RIVULET_BURST: "},
		{"", "registries.mirrors", "a: b: c", "$RIVULET_REGISTRIES_MIRRORS: "},
		{"trust: nobody", "trust.mode", "ask", file + ":1:8: trust is a text, not keys with values; "},
	} {
		l := load(c.text, map[string]string{c.key: c.value})
		if len(l.Problems) == 0 || !strings.HasPrefix(l.Problems[0].Error(), c.want) || !l.Closed {
			t.Errorf("%s=%s with %q: %v, closed %v; want %s", c.key, c.value, c.text, l.Problems, l.Closed, c.want)
		}
	}
	// A secret in the file and the mode in the environment are one configuration.
	if l := load("trust: {secret: sixteen-letters-}\n", map[string]string{"trust.mode": "group"}); len(l.Problems) > 0 || l.Config.Trust.Mode != "group" {
		t.Errorf("%v", l.Problems)
	}
}
