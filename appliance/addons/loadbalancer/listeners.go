package loadbalancer

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"rivulet/fabric/netmon"
)

// linger is how long a port counts as in use after its listener ended, so that sshd keeps its port over the restart of
// an update.
const linger = time.Minute

// memory has the time when each port last had a listener.
type memory map[Port]time.Time

// recall adds recent listeners to the present ones.
func (m memory) recall(now map[Port]bool, at time.Time) map[Port]bool {
	for p := range now {
		m[p] = at
	}
	out := map[Port]bool{}
	for p, seen := range m {
		if at.Sub(seen) > linger {
			delete(m, p)
			continue
		}
		out[p] = true
	}
	return out
}

// listeners reads from the kernel which ports have a listener at any of the addresses, bound to it or to all addresses.
// kube-proxy would redirect their traffic.
func listeners(addrs []netip.Addr) map[Port]bool {
	out := map[Port]bool{}
	low, high := ephemeral()
	for _, table := range []struct {
		file     string
		protocol corev1.Protocol
	}{{"tcp", corev1.ProtocolTCP}, {"tcp6", corev1.ProtocolTCP}, {"udp", corev1.ProtocolUDP}, {"udp6", corev1.ProtocolUDP}} {
		f, err := os.Open("/proc/net/" + table.file)
		if err != nil {
			continue // no IPv6
		}
		for _, l := range parse(f, table.protocol == corev1.ProtocolTCP) {
			// A UDP socket in this range belongs to a client that waits for an answer.
			if table.protocol == corev1.ProtocolUDP && l.Port() >= low && l.Port() <= high {
				continue
			}
			if a := l.Addr().Unmap(); a.IsUnspecified() || slices.Contains(addrs, a) {
				out[Port{table.protocol, l.Port()}] = true
			}
		}
		f.Close()
	}
	return out
}

// Listening are the ports of this device with a listener at any of the addresses, sorted.
func Listening(addrs []netip.Addr) []Port {
	return slices.SortedFunc(maps.Keys(listeners(addrs)), func(a, b Port) int {
		return cmp.Or(cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Number, b.Number))
	})
}

// parse reads a table of sockets of /proc/net.
func parse(table io.Reader, tcp bool) []netip.AddrPort {
	const listen, unconnected = "0A", "07"
	var out []netip.AddrPort
	for s := bufio.NewScanner(table); s.Scan(); {
		// sl local_address rem_address st …
		f := strings.Fields(s.Text())
		if len(f) < 4 || tcp && f[3] != listen || !tcp && f[3] != unconnected {
			continue
		}
		if at, ok := parseAddr(f[1]); ok {
			out = append(out, at)
		}
	}
	return out
}

// parseAddr reads an address of /proc/net: words of four bytes in the machine's byte order, a colon, the port.
func parseAddr(s string) (netip.AddrPort, bool) {
	words, port, _ := strings.Cut(s, ":")
	raw, err := hex.DecodeString(words)
	number, perr := strconv.ParseUint(port, 16, 16)
	if err != nil || perr != nil || len(raw)%4 != 0 {
		return netip.AddrPort{}, false
	}
	for i := 0; i < len(raw); i += 4 {
		binary.NativeEndian.PutUint32(raw[i:], binary.BigEndian.Uint32(raw[i:]))
	}
	addr, ok := netip.AddrFromSlice(raw)
	return netip.AddrPortFrom(addr, uint16(number)), ok
}

// ephemeral is the kernel's range of ports for clients.
func ephemeral() (low, high uint16) {
	low, high = 32768, 60999
	if raw, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range"); err == nil {
		_, _ = fmt.Sscan(string(raw), &low, &high)
	}
	return low, high
}

// listenerName returns the listening process as " by NAME (pid N)", or nothing.
func listenerName(p Port) string {
	return netmon.Listener(strings.ToLower(string(p.Protocol)), int(p.Number))
}
