package engine

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"rivulet/appliance/machine/host"
	"rivulet/test/harness/await"
)

// What a pod with the host's resolver gets, of the files that a host has.
func TestResolvConf(t *testing.T) {
	const node, dns = "100.127.1.2", "10.43.0.10"
	own := func(a netip.Addr) bool { return a.String() == node || a.String() == dns }
	for name, c := range map[string]struct{ etc, systemd, want string }{
		"before DHCP":             {"", "-", "nameserver 10.43.0.10\n"},
		"no files":                {"-", "-", "nameserver 10.43.0.10\n"},
		"comments only":           {"# nobody yet\n", "-", "nameserver 10.43.0.10\n"},
		"servers of a LAN":        {"search lab.example\nnameserver 192.168.1.1\nnameserver fd00::1\n", "-", "nameserver 192.168.1.1\nnameserver fd00::1\nsearch lab.example\n"},
		"a stub of systemd":       {"nameserver 127.0.0.53\noptions edns0\nsearch .\n", "nameserver 10.1.1.1\nsearch campus.example\n", "options edns0\nsearch .\nnameserver 10.43.0.10\n"},
		"a stub of the host":      {"nameserver 127.0.0.1\nsearch lab.example\n", "-", "search lab.example\nnameserver 10.43.0.10\n"},
		"a stub and a server":     {"nameserver ::1\nnameserver 9.9.9.9\n", "-", "nameserver 10.43.0.10\n"},
		"before DHCP, by systemd": {"# nobody yet\n", "nameserver 10.1.1.1\n", "nameserver 10.1.1.1\n"},
		"ourselves":               {"nameserver 100.127.1.2\nnameserver 10.43.0.10\n", "-", "nameserver 10.43.0.10\n"},
		"of a link":               {"nameserver fe80::1%eth0\n", "-", "nameserver 10.43.0.10\n"},
		"nonsense":                {"nameserver\nnameserver not.an.ip\nnameserver 0.0.0.0\nfoo bar\n", "-", "nameserver 10.43.0.10\n"},
		"a domain, and spaces":    {"\tdomain  lab.example\n  nameserver\t192.168.1.1 \n", "-", "nameserver 192.168.1.1\nsearch lab.example\n"},
		"more than a pod can use": {"nameserver 1.0.0.1\nnameserver 1.0.0.2\nnameserver 1.0.0.3\nnameserver 1.0.0.4\n", "-", "nameserver 1.0.0.1\nnameserver 1.0.0.2\nnameserver 1.0.0.3\n"},
	} {
		t.Run(name, func(t *testing.T) {
			var files []string
			for i, text := range []string{c.etc, c.systemd} {
				file := filepath.Join(t.TempDir(), string(rune('a'+i)))
				if files = append(files, file); text == "-" {
					continue
				}
				if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if got := resolvConf(files, own, netip.MustParseAddr(dns)); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// The kubelet reads the file for each pod: it follows the host's while the engine runs.
func TestTheHostsResolverIsFollowed(t *testing.T) {
	file, was := filepath.Join(t.TempDir(), "resolv.conf"), host.ResolvFiles
	host.ResolvFiles = []string{file}
	t.Cleanup(func() { host.ResolvFiles = was })
	e := New(testConfig(t))
	if !slices.Contains(e.Args(), "--resolv-conf="+e.resolvFile()) {
		t.Errorf("the engine is not told of %s", e.resolvFile())
	}
	if err := e.prepareFiles(); err != nil {
		t.Fatal(err)
	}
	has := func(want string) bool {
		got, err := os.ReadFile(e.resolvFile())
		return err == nil && strings.Contains(string(got), want)
	}
	if !has("nameserver " + e.cfg.ClusterDNS.String()) {
		t.Error("without a server of the host's a pod does not ask the cluster's DNS")
	}
	e.keepResolv(t.Context())
	if err := os.WriteFile(file, []byte("nameserver 192.168.1.1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	await.True(t, 0, "the host's server is in the file", func() bool { return has("nameserver 192.168.1.1") })
}
