package loadbalancer

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"
)

const tcpTable = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1 0 100 0 0 10 0
   1: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 2 1 0 100 0 0 10 0
   2: 0700000A:0050 0800000A:D431 01 00000000:00000000 00:00000000 00000000     0        0 3 1 0 100 0 0 10 0
`

func TestParse(t *testing.T) {
	if got := fmt.Sprint(parse(strings.NewReader(tcpTable), true)); got != "[0.0.0.0:22 127.0.0.1:8080]" {
		t.Error(got)
	}
	for _, bad := range []string{"", "xyz:0016", "0100007F", "0100007F:zz", "01:0016", "010000:16"} {
		if got, ok := parseAddr(bad); ok {
			t.Errorf("%q: %v", bad, got)
		}
	}
	if got, ok := parseAddr("0000000000000000FFFF00000100007F:0035"); !ok || got.Addr().Unmap() != netip.MustParseAddr("127.0.0.1") || got.Port() != 53 {
		t.Error(got)
	}
}

// The kernel's own tables: what listens is found where packets from the LAN would get to it.
func TestListeners(t *testing.T) {
	here, elsewhere := []netip.Addr{netip.MustParseAddr("127.0.0.1")}, []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	has := func(addrs []netip.Addr, p Port) bool { return listeners(addrs)[p] }
	named, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer named.Close()
	p := tcp(uint16(named.Addr().(*net.TCPAddr).Port))
	if !has(here, p) || has(elsewhere, p) {
		t.Errorf("a listener at one address: %v %v", has(here, p), has(elsewhere, p))
	}
	any6, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer any6.Close()
	if p := tcp(uint16(any6.Addr().(*net.TCPAddr).Port)); !has(elsewhere, p) {
		t.Error("a listener at all addresses")
	}
	client, err := net.ListenPacket("udp4", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if p := udp(uint16(client.LocalAddr().(*net.UDPAddr).Port)); has(here, p) {
		t.Error("a client's socket counts as a listener")
	}
}

func TestPortsAreRememberedForAMoment(t *testing.T) {
	m, at := memory{}, time.Unix(0, 0)
	m.recall(map[Port]bool{tcp(22): true}, at)
	if !m.recall(nil, at.Add(linger))[tcp(22)] {
		t.Error("sshd is updated and has lost its port")
	}
	if m.recall(nil, at.Add(linger+time.Second))[tcp(22)] || len(m) > 0 {
		t.Error("remembered for ever")
	}
}
