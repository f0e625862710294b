package host

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestServersAreFoundWhereTheyAreWritten(t *testing.T) {
	root := t.TempDir()
	for file, text := range map[string]string{
		"etc/resolv.conf":                  "# nameserver 10.9.9.9\nnameserver 10.200.0.53\nnameserver 127.0.0.53\nnameserver 2001:db8::1\nsearch lab.example\n",
		"run/systemd/resolve/resolv.conf":  "nameserver 10.201.0.53\n",
		"run/systemd/netif/links/2":        "ADMIN_STATE=configured\nDNS=10.202.0.53 10.203.0.53\nNTP=10.204.0.123\n",
		"etc/systemd/timesyncd.conf":       "[Time]\n#NTP=10.9.9.8\nNTP=10.205.0.123 ntp.example\n",
		"etc/chrony/sources.d/own.sources": "server 10.206.0.123 iburst\n",
		"etc/ntp.conf":                     "restrict 10.207.0.0 mask 255.255.0.0\n",
	} {
		path := filepath.Join(root, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got := Servers(root)
	for _, want := range []string{"10.200.0.53", "10.201.0.53", "10.202.0.53", "10.203.0.53", "10.204.0.123", "10.205.0.123", "10.206.0.123"} {
		if !slices.Contains(got, netip.PrefixFrom(netip.MustParseAddr(want), 32)) {
			t.Errorf("%s is not among %v", want, got)
		}
	}
	for _, p := range got {
		if a := p.Addr().String(); p.Bits() != 32 || a == "10.9.9.9" || a == "10.9.9.8" || a == "127.0.0.53" {
			t.Errorf("%s is among them", p)
		}
	}
	if got := Servers(t.TempDir()); len(got) != 0 {
		t.Errorf("an empty machine has %v", got)
	}
}
