package isolation

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rivulet/test/harness/await"
)

// A frame to more than one receiver, or to one that the bridge does not know, is heard by pods of the sender's cluster
// on this node and by nobody else: a table of sender × receiver × group.
func TestWhoHearsGroups(t *testing.T) {
	s := newStage(t)
	s.pod("own2", "10.42.0.20")
	s.pod("b2", "10.42.0.21")
	pods := []string{"own", "own2", "a1", "a2", "b1", "b2"}
	at := map[string]*station{}
	for _, name := range pods {
		at[name] = newStation(s, name)
	}
	groups := []struct{ to, mac string }{
		{"239.255.0.1", "01:00:5e:7f:00:01"}, {"224.0.0.251", "01:00:5e:00:00:fb"}, {"255.255.255.255", "ff:ff:ff:ff:ff:ff"},
		{"10.42.0.255", "ff:ff:ff:ff:ff:ff"},
		{s.addrs["b2"], "ff:ff:ff:ff:ff:ff"}, // one address, and all MAC addresses
		{"10.42.0.99", "02:00:00:00:00:99"},  // unknown, which a bridge gives to all
		{"ff02::1", "33:33:00:00:00:01"},
		{"arp", "ff:ff:ff:ff:ff:ff"},
	}
	// say lets all say all, and returns what they have heard: "receiver: group of sender".
	say := func(round string) map[string]bool {
		for _, name := range pods {
			for _, g := range groups {
				at[name].send(t, g.mac, g.to, round)
			}
		}
		heard := map[string]bool{}
		for _, name := range pods {
			for _, what := range at[name].told(round) {
				heard[name+": "+what] = true
			}
		}
		return heard
	}
	want := func(hears func(receiver, sender, group string) bool) map[string]bool {
		all := map[string]bool{}
		for _, receiver := range pods {
			for _, sender := range pods {
				for _, g := range groups {
					if receiver != sender && hears(receiver, sender, g.to) {
						all[receiver+": "+g.to+" of "+sender] = true
					}
				}
			}
		}
		return all
	}
	// until says it again until what is wanted was heard in one round; what else was heard in any of them is returned.
	until := func(what string, want map[string]bool) (beyond []string) {
		t.Helper()
		more := map[string]bool{}
		await.NoError(t, t.Context(), 30*time.Second, what, func() error {
			round := fmt.Sprintf("%s %d;", what, time.Now().UnixNano())
			heard := say(round)
			deadline := time.Now().Add(time.Second)
			for len(missing(want, heard)) > 0 && time.Now().Before(deadline) {
				heard = say(round)
			}
			for _, m := range missing(heard, want) {
				more[m] = true
			}
			if m := missing(want, heard); len(m) > 0 {
				return fmt.Errorf("not heard: %s", strings.Join(m, ", "))
			}
			return nil
		})
		return slices.Sorted(maps.Keys(more))
	}

	until("without isolation all hear all", want(func(string, string, string) bool { return true }))
	s.run()
	beyond := until("pods of one cluster hear each other", want(func(receiver, sender, group string) bool {
		switch {
		case receiver[0] != sender[0]:
			return false
		case group == "10.42.0.99" || group == "ff02::1":
			return sender[0] == 'o' // a tenant hears frames to its own MAC address alone, and has IPv4 alone
		case group == s.addrs["b2"]:
			return sender[0] != 'o' // where it comes to, own pods do not
		}
		return true
	}))
	for _, m := range beyond {
		t.Error("heard: ", m)
	}
	// They still find each other, and those that may come to them.
	s.check(probe{"a1", "", "a2", true}, probe{"host", "", "b1", true}, probe{"own", "", "own2", true})
}

// missing are the keys of a that b lacks.
func missing(a, b map[string]bool) (out []string) {
	for k := range a {
		if !b[k] {
			out = append(out, k)
		}
	}
	slices.Sort(out)
	return out
}

// station is a pod's interface with raw frames.
type station struct {
	name, addr string
	fd, index  int
	mac        net.HardwareAddr

	mu    sync.Mutex
	heard map[string]bool // round and what
}

const mark = "\x00heard\x00"

func newStation(s *stage, name string) *station {
	st := &station{name: name, addr: s.addrs[name], heard: map[string]bool{}}
	s.pods[name].Do(func() error {
		eth, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		st.index, st.mac = eth.Index, eth.HardwareAddr
		if st.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(htons(unix.ETH_P_ALL))); err != nil {
			return err
		}
		if err := unix.SetsockoptTimeval(st.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000}); err != nil {
			return err
		}
		return unix.Bind(st.fd, &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_ALL), Ifindex: eth.Index})
	})
	done := make(chan struct{})
	ended := make(chan struct{})
	s.t.Cleanup(func() { close(done); <-ended; unix.Close(st.fd) })
	go func() {
		defer close(ended)
		frame := make([]byte, 2048)
		for {
			select {
			case <-done:
				return
			default:
			}
			n, _, err := unix.Recvfrom(st.fd, frame, 0)
			if err != nil || n < 14 || bytes.Equal(frame[6:12], st.mac) {
				continue // nothing, or its own
			}
			if i := bytes.Index(frame[:n], []byte(mark)); i >= 0 {
				text, _, _ := strings.Cut(string(frame[i+len(mark):n]), "\x00")
				st.mu.Lock()
				st.heard[text] = true
				st.mu.Unlock()
			}
		}
	}()
	return st
}

// told are the texts that were heard in a round, without the round.
func (st *station) told(round string) (all []string) {
	st.mu.Lock()
	defer st.mu.Unlock()
	for text := range st.heard {
		if what, ok := strings.CutPrefix(text, round); ok {
			all = append(all, what)
		}
	}
	return all
}

// send sends a frame with a text in it.
func (st *station) send(t *testing.T, mac, to, round string) {
	t.Helper()
	dst, err := net.ParseMAC(mac)
	if err != nil {
		t.Fatal(err)
	}
	text := []byte(mark + round + to + " of " + st.name + "\x00")
	self := netip.MustParseAddr(st.addr)
	var kind uint16
	var body []byte
	switch a, err := netip.ParseAddr(to); {
	case err != nil: // ARP that asks for an address of nobody; what follows is padding
		asked := netip.MustParseAddr("10.42.0.98")
		kind, body = unix.ETH_P_ARP, slices.Concat([]byte{0, 1, 8, 0, 6, 4, 0, 1}, st.mac, self.AsSlice(), make([]byte, 6), asked.AsSlice(), text)
	case a.Is4():
		kind = unix.ETH_P_IP
		body = []byte{0x45, 0, 0, 0, 0, 0, 0, 0, 8, unix.IPPROTO_UDP, 0, 0}
		body = slices.Concat(body, self.AsSlice(), a.AsSlice(), datagram(text))
		binary.BigEndian.PutUint16(body[2:], uint16(len(body)))
		sum := uint32(0)
		for i := 0; i < 20; i += 2 {
			sum += uint32(binary.BigEndian.Uint16(body[i:]))
		}
		binary.BigEndian.PutUint16(body[10:], ^uint16(sum+sum>>16))
	default:
		kind = unix.ETH_P_IPV6
		udp := datagram(text)
		body = slices.Concat([]byte{0x60, 0, 0, 0, 0, 0, unix.IPPROTO_UDP, 1}, netip.MustParseAddr("fe80::1").AsSlice(), a.AsSlice(), udp)
		binary.BigEndian.PutUint16(body[4:], uint16(len(udp)))
	}
	frame := slices.Concat(dst, st.mac, binary.BigEndian.AppendUint16(nil, kind), body)
	if err := unix.Sendto(st.fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: st.index, Halen: 6, Addr: [8]byte(append(slices.Clone(dst), 0, 0))}); err != nil {
		t.Fatal(err)
	}
}

// datagram is one of UDP without a checksum, from port 9 to port 9.
func datagram(text []byte) []byte {
	head := []byte{0, 9, 0, 9, 0, 0, 0, 0}
	binary.BigEndian.PutUint16(head[4:], uint16(8+len(text)))
	return append(head, text...)
}

func htons(v uint16) uint16 { return v<<8 | v>>8 }
