package mdns

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/net/ipv4"

	"rivulet/fabric/netmon"
	"rivulet/test/harness/testlan"
)

type hostWord struct {
	Name  string
	State HostState
}

// runHost answers for the first name that is free, until its input ends.
func runHost(names []string) {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	ctx, cancel := context.WithCancel(context.Background())
	lans := netmon.New(log)
	go lans.Run(ctx)
	go func() { io.Copy(io.Discard, os.Stdin); cancel() }()
	out := json.NewEncoder(os.Stdout)
	New(lans, quick, log).Host(ctx, names, func(name string, st HostState) { out.Encode(hostWord{name, st}) })
}

type hostDevice struct {
	*testlan.Device
	t     *testing.T
	proc  *testlan.Process
	words chan hostWord
}

func newHost(t *testing.T, d *testlan.Device, names string) *hostDevice {
	h := &hostDevice{t: t, Device: d, words: make(chan hostWord, 64), proc: d.Start(roleEnv + "=host " + names)}
	go func() {
		for dec := json.NewDecoder(h.proc.Out); ; {
			var w hostWord
			if dec.Decode(&w) != nil {
				return
			}
			h.words <- w
		}
	}()
	return h
}

const hostLimit = 30 * time.Second

func (h *hostDevice) until(what string, ok func(hostWord) bool) hostWord {
	h.t.Helper()
	for due := time.After(hostLimit); ; {
		select {
		case w := <-h.words:
			if ok(w) {
				return w
			}
		case <-due:
			h.t.Fatalf("not within %s: %s", hostLimit, what)
		}
	}
}

func has(name string, st HostState) func(hostWord) bool {
	return func(w hostWord) bool { return w == hostWord{name, st} }
}

// lookup asks as a program without an mDNS responder does, from a port of its own.
func (h *hostDevice) lookup(name string) (addrs []netip.Addr) {
	h.t.Helper()
	for due := time.Now().Add(hostLimit); len(addrs) == 0 && time.Now().Before(due); {
		h.Do(func() error {
			ifi, err := net.InterfaceByName("eth0")
			if err != nil {
				return err
			}
			c, err := net.ListenUDP("udp4", nil)
			if err != nil {
				return err
			}
			defer c.Close()
			if err := ipv4.NewPacketConn(c).SetMulticastInterface(ifi); err != nil {
				return err
			}
			m := new(dns.Msg)
			m.SetQuestion(name, dns.TypeA)
			raw, err := m.Pack()
			if err != nil {
				return err
			}
			if _, err := c.WriteTo(raw, group4); err != nil {
				return err
			}
			c.SetReadDeadline(time.Now().Add(time.Second))
			buf := make([]byte, 1500)
			n, _, err := c.ReadFrom(buf)
			if err != nil {
				return nil // asked again
			}
			got := new(dns.Msg)
			if err := got.Unpack(buf[:n]); err != nil || got.Id != m.Id || len(got.Question) != 1 {
				return fmt.Errorf("answered with %v, %v", got, err)
			}
			addrs = claims(got.Answer, name)
			return nil
		})
	}
	return addrs
}

// Two devices of one name: one has it, the other the second that it may have; both
// can be typed into a browser. A third has a name of its own.
func TestOneNameIsOneDevices(t *testing.T) {
	t.Parallel()
	lan := testlan.New(t)
	a := newHost(t, lan.Device(), "pi pi-a")
	a.SetAddr("192.0.2.1/24")
	b := newHost(t, lan.Device(), "pi pi-b")
	b.SetAddr("192.0.2.2/24")
	wa := a.until("a answers", func(w hostWord) bool { return w.State == HostOurs })
	wb := b.until("b answers", func(w hostWord) bool { return w.State == HostOurs })
	if (wa.Name == "pi") == (wb.Name == "pi") {
		t.Errorf("a is %s and b is %s, want one pi", wa.Name, wb.Name)
	}
	asker := newHost(t, lan.Device(), "asker")
	asker.SetAddr("192.0.2.3/24")
	for w, want := range map[hostWord]string{wa: "192.0.2.1", wb: "192.0.2.2"} {
		if got := asker.lookup(w.Name + ".local."); !slices.Contains(got, netip.MustParseAddr(want)) {
			t.Errorf("%s.local is %v, want %s", w.Name, got, want)
		}
	}
	// Its address changes: so does the answer.
	a.SetAddr("192.0.2.77/24")
	wa = a.until("a answers with its new address", func(w hostWord) bool { return w.State == HostOurs })
	if got := asker.lookup(wa.Name + ".local."); !slices.Contains(got, netip.MustParseAddr("192.0.2.77")) {
		t.Errorf("%s.local is %v after its address changed", wa.Name, got)
	}
}

// A name that several devices share is one device's; when that says goodbye, or is cut off, another has it.
func TestASharedNameIsTakenOver(t *testing.T) {
	for what, end := range map[string]func(*testlan.Process){"a goodbye": (*testlan.Process).Stop, "a power cut": (*testlan.Process).Kill} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			lan := testlan.New(t)
			a := newHost(t, lan.Device(), "rivulet")
			a.SetAddr("192.0.2.1/24")
			a.until("a answers", has("rivulet", HostOurs))
			b := newHost(t, lan.Device(), "rivulet")
			b.SetAddr("192.0.2.2/24")
			b.until("b probes", has("rivulet", HostProbing))
			asker := newHost(t, lan.Device(), "asker")
			asker.SetAddr("192.0.2.3/24")
			if got := asker.lookup("rivulet.local."); !slices.Equal(got, []netip.Addr{netip.MustParseAddr("192.0.2.1")}) {
				t.Errorf("rivulet.local is %v while the first device has it", got)
			}
			end(a.proc)
			left := time.Now()
			b.until("b takes over", has("rivulet", HostOurs))
			if took := time.Since(left); what == "a goodbye" && took >= quick.Owner {
				t.Errorf("after a goodbye it took %s", took)
			}
			if got := asker.lookup("rivulet.local."); !slices.Equal(got, []netip.Addr{netip.MustParseAddr("192.0.2.2")}) {
				t.Errorf("rivulet.local is %v after the first device has left", got)
			}
		})
	}
}

// A program of the machine that answers already is left alone.
func TestTheMachinesOwnResponderIsLeftAlone(t *testing.T) {
	t.Parallel()
	lan := testlan.New(t)
	d := lan.Device()
	first := newHost(t, d, "pi")
	first.SetAddr("192.0.2.1/24")
	first.until("the first answers", has("pi", HostOurs))
	second := newHost(t, d, "pi pi-x")
	second.until("the second stays silent", has("pi", HostElsewhere))
	if got := second.lookup("pi.local."); !slices.Contains(got, netip.MustParseAddr("192.0.2.1")) {
		t.Errorf("pi.local is %v", got)
	}
}

func TestJudge(t *testing.T) {
	lans := netmon.LANs{{Index: 2, Name: "eth0", Addrs: []netip.Prefix{netip.MustParsePrefix("192.0.2.10/24")}}}
	is := func(name, addr string) *dns.Msg {
		other := netmon.Interface{Addrs: []netip.Prefix{netip.PrefixFrom(netip.MustParseAddr(addr), 24)}}
		return addresses(name, other, hostTTL)
	}
	wants := func(addr string) *dns.Msg {
		return probe("pi.local.", netmon.Interface{Addrs: []netip.Prefix{netip.PrefixFrom(netip.MustParseAddr(addr), 24)}})
	}
	gone := addresses("pi.local.", lans[0], 0)
	for _, tt := range []struct {
		what string
		msg  *dns.Msg
		from string
		want verdict
	}{
		{"another machine", is("pi.local.", "192.0.2.20"), "192.0.2.20", taken},
		{"another machine in capitals", is("PI.LOCAL.", "192.0.2.20"), "192.0.2.20", taken},
		{"this machine", is("pi.local.", "192.0.2.10"), "192.0.2.10", oneself},
		{"another name", is("pa.local.", "192.0.2.20"), "192.0.2.20", nothing},
		{"a machine that is not here", is("pi.local.", "198.51.100.1"), "192.0.2.20", nothing},
		{"a goodbye", gone, "192.0.2.20", nothing},
		{"a probe that goes before ours", wants("192.0.2.20"), "192.0.2.20", tie},
		{"a probe that comes after ours", wants("192.0.2.5"), "192.0.2.5", nothing},
		{"our own probe", wants("192.0.2.10"), "192.0.2.10", nothing},
		{"a question", &dns.Msg{Question: []dns.Question{{Name: "pi.local.", Qtype: dns.TypeA}}}, "192.0.2.20", nothing},
	} {
		if got := evaluate(packet{msg: tt.msg, lan: 2, from: netip.MustParseAddr(tt.from), port: 5353}, "pi.local.", lans); got != tt.want {
			t.Errorf("%s: %d, want %d", tt.what, got, tt.want)
		}
	}
}
