package host

import (
	"bufio"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
)

// ResolvFiles are the machine's resolver settings, best first: the second has the servers behind the stub that
// systemd-resolved writes into the first.
var ResolvFiles = []string{"/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"}

// serverFiles contain resolvers and time servers: configured ones, and those from DHCP.
var serverFiles = []string{
	"etc/resolv.conf", "run/systemd/resolve/resolv.conf", "run/systemd/netif/state", "run/systemd/netif/links/*",
	"etc/systemd/resolved.conf", "etc/systemd/resolved.conf.d/*.conf", "run/systemd/resolved.conf.d/*.conf",
	"etc/systemd/timesyncd.conf", "etc/systemd/timesyncd.conf.d/*.conf", "run/systemd/timesyncd.conf.d/*.conf",
	"etc/chrony.conf", "etc/chrony/chrony.conf", "etc/chrony.d/*.conf", "etc/chrony/conf.d/*.conf", "etc/chrony/sources.d/*.sources", "run/chrony-dhcp/*.sources",
	"etc/ntp.conf", "etc/ntpsec/ntp.conf", "run/ntpsec/ntp.conf.dhcp", "run/ntp.conf.dhcp",
}

// maxServerFile bounds the part of one file that is read, bytes.
const maxServerFile = 64 << 10

// Servers returns the IPv4 addresses of the machine's resolvers and time servers: every address in the lines of the
// files above, below root, that are not comments. Servers with only a name there are not included.
func Servers(root string) (out []netip.Prefix) {
	for _, pattern := range serverFiles {
		files, _ := filepath.Glob(filepath.Join(root, pattern)) // the patterns are valid
		for _, file := range files {
			f, err := os.Open(file)
			if err != nil {
				continue
			}
			out = append(out, addressesIn(io.LimitReader(f, maxServerFile))...)
			f.Close()
		}
	}
	return out
}

func addressesIn(r io.Reader) (out []netip.Prefix) {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.ContainsRune("#;!%", rune(line[0])) {
			continue
		}
		for _, word := range strings.FieldsFunc(line, func(r rune) bool { return strings.ContainsRune(" \t=,", r) }) {
			if a, err := netip.ParseAddr(word); err == nil && a.Is4() && !a.IsUnspecified() && !a.IsLoopback() {
				out = append(out, netip.PrefixFrom(a, 32))
			}
		}
	}
	return out
}
