package tunnel

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"golang.zx2c4.com/wireguard/tun"
	"pgregory.net/rapid"
	"rivulet/fabric/tunnel/paths"

	"rivulet/fabric/translate"
)

// fakeTUN hands out one batch and remembers what is written.
type fakeTUN struct {
	tun.Device
	batch   [][]byte
	written [][]byte
}

func (f *fakeTUN) Read(bufs [][]byte, sizes []int, offset int) (int, error) {
	for i, p := range f.batch {
		sizes[i] = copy(bufs[i][offset:], p)
	}
	return len(f.batch), nil
}

func (f *fakeTUN) Write(bufs [][]byte, offset int) (int, error) {
	for _, b := range bufs {
		f.written = append(f.written, b[offset:])
	}
	return len(bufs), nil
}

func datagram(src, dst string) []byte {
	p := make([]byte, 28)
	p[0], p[3], p[8], p[9], p[25] = 0x45, 28, 64, 17, 8
	s, d := netip.MustParseAddr(src).As4(), netip.MustParseAddr(dst).As4()
	copy(p[12:], s[:])
	copy(p[16:], d[:])
	return p
}

// A packet that may not pass leaves no error, which would close the device, and
// takes none of the others along.
func TestDroppedPacketsLeaveTheBatch(t *testing.T) {
	table, err := translate.Compile([]translate.Rule{{Local: podCIDR, As: aSeenByB, Remote: bSeenByA}}, testMTU)
	if err != nil {
		t.Fatal(err)
	}
	var dropped atomic.Uint64
	const offset = 16
	fake := &fakeTUN{batch: [][]byte{datagram("10.42.0.5", "10.200.0.7"), datagram("192.168.1.1", "10.200.0.7"), datagram("10.42.0.6", "10.200.0.7")}}
	d := &translated{Device: fake, translator: new(translate.Translator), dropped: &dropped, in: newFlow(), out: newFlow(), marks: &marks{}, large: new(atomic.Uint64), staged: &staged{}}
	d.translator.Set(table)

	bufs, sizes := [][]byte{make([]byte, 64), make([]byte, 64), make([]byte, 64)}, make([]int, 3)
	n, err := d.Read(bufs, sizes, offset)
	if n != 3 || err != nil || !slices.Equal(sizes, []int{28, 0, 28}) {
		t.Fatalf("%d packets of %v bytes, %v", n, sizes, err)
	}
	if src, _ := netip.AddrFromSlice(bufs[2][offset+12 : offset+16]); src.String() != "10.201.0.6" {
		t.Errorf("leaves from %s", src)
	}
	in := func(src, dst string) []byte { return append(make([]byte, offset), datagram(src, dst)...) }
	_, err = d.Write([][]byte{in("10.9.9.9", "10.201.0.5"), in("10.200.0.7", "10.201.0.5"), in("10.200.0.7", "10.42.0.5")}, offset)
	if err != nil || len(fake.written) != 1 {
		t.Fatalf("%d packets written, %v; want 1", len(fake.written), err)
	}
	if dst, _ := netip.AddrFromSlice(fake.written[0][16:20]); dst.String() != "10.42.0.5" {
		t.Errorf("arrives at %s", dst)
	}
	if dropped.Load() != 3 {
		t.Errorf("%d counted as dropped, want 3", dropped.Load())
	}
}

// wireguardState is what WireGuard makes of its configuration protocol.
type wireguardState struct {
	device map[string]string
	peers  map[string]map[string]string
}

func (w *wireguardState) set(text string) {
	at := w.device
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		switch name {
		case "public_key":
			if at = w.peers[value]; at == nil {
				at = map[string]string{}
				w.peers[value] = at
			}
			at["key"] = value
		case "remove":
			delete(w.peers, at["key"])
		case "allowed_ip": // a prefix is one peer's: it moves
			for _, p := range w.peers {
				if p[name] == value {
					delete(p, name)
				}
			}
			at[name] = value
		case "replace_allowed_ips":
			delete(at, "allowed_ip")
		default:
			at[name] = value
		}
	}
}

// From any configuration to any other, straight or with a failed attempt between:
// WireGuard ends up with exactly the peers that are wanted; and the second time
// nothing is said.
func TestChangeLeadsToWhatIsWanted(t *testing.T) {
	draw := func(t *rapid.T, label string) Config {
		c := Config{PrivateKey: rapid.SampledFrom([]string{"AA==", "AQ=="}).Draw(t, label+" key"), Port: rapid.SampledFrom([]uint16{1, 2}).Draw(t, label+" port")}
		prefixes := rapid.Permutation([]int{0, 1, 2, 3}).Draw(t, label+" prefixes")
		for i := range rapid.IntRange(0, 4).Draw(t, label+" peers") {
			p := Peer{ID: fmt.Sprint(i), PublicKey: []string{"Ag==", "Aw==", "BA==", "BQ=="}[i],
				Remote:    netip.MustParsePrefix(fmt.Sprintf("10.%d.0.0/16", 200+prefixes[i])),
				Endpoint:  netip.AddrPortFrom(netip.MustParseAddr("192.168.1.1"), rapid.SampledFrom([]uint16{1, 2}).Draw(t, "endpoint")),
				Keepalive: rapid.SampledFrom([]time.Duration{0, 25 * time.Second}).Draw(t, "keepalive")}
			if rapid.Bool().Draw(t, "present") {
				c.Peers = append(c.Peers, p)
			}
		}
		return c
	}
	rapid.Check(t, func(t *rapid.T) {
		w := &wireguardState{device: map[string]string{}, peers: map[string]map[string]string{}}
		was := Config{}
		for _, label := range []string{"first", "second", "third"} {
			want := draw(t, label)
			text := change(was, want)
			if rapid.Bool().Draw(t, label+" fails") {
				lines := strings.SplitAfter(text, "\n")
				w.set(strings.Join(lines[:rapid.IntRange(0, len(lines)).Draw(t, "lines taken")], ""))
				was = uncertain(was, want)
				continue
			}
			w.set(text)
			was = want
			if again := change(was, want); again != "" {
				t.Fatalf("said again: %q", again)
			}
			if len(w.peers) != len(want.Peers) || w.device["listen_port"] != fmt.Sprint(want.Port) || w.device["private_key"] != hexKey(want.PrivateKey) {
				t.Fatalf("%+v, want %+v", w, want)
			}
			for _, p := range want.Peers {
				got := w.peers[hexKey(p.PublicKey)]
				if got["allowed_ip"] != p.Remote.String() || got["endpoint"] != p.Endpoint.String() ||
					got["persistent_keepalive_interval"] != fmt.Sprint(int(p.Keepalive.Seconds())) {
					t.Fatalf("peer %s is %v, want %+v", p.ID, got, p)
				}
			}
		}
	})
}

func TestConfigCheck(t *testing.T) {
	private, public := newKeys(t)
	peer := Peer{ID: "b", PublicKey: public, As: aSeenByB, Remote: bSeenByA}
	for want, spoil := range map[string]func(*Config){
		"key of this cluster":  func(c *Config) { c.PrivateKey = "short" },
		"key of peer b":        func(c *Config) { c.Peers[0].PublicKey = "" },
		"port is missing":      func(c *Config) { c.Port = 0 },
		"name of an interface": func(c *Config) { c.Interface = "an-interface-too-long" },
		"not in the pod CIDR":  func(c *Config) { c.Address = netip.MustParseAddr("10.43.0.1") },
		"choose another":       func(c *Config) { c.Peers[0].Endpoint = netip.MustParseAddrPort("10.200.7.7:7442") },
	} {
		c := config(private, peer)
		spoil(&c)
		if err := c.check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want an error with %q", err, want)
		}
	}
	if err := config(private, peer).check(); err != nil {
		t.Error(err)
	}
}

// With path MTU discovery on, a path narrower than the tunnel loses whole batches.
func TestSocketsLetRoutersFragment(t *testing.T) {
	newRoom(t).must(func() error {
		b := newBind(&ways{manager: paths.New(paths.DefaultTiming, func() {}, slog.New(slog.DiscardHandler))}, slog.New(slog.DiscardHandler))
		_, port, err := b.Open(0)
		if err != nil {
			return err
		}
		defer b.Close()
		found := 0
		fds, err := os.ReadDir("/proc/self/fd")
		for _, e := range fds {
			var fd int
			fmt.Sscan(e.Name(), &fd)
			switch sa, _ := unix.Getsockname(fd); sa := sa.(type) {
			case *unix.SockaddrInet4:
				if v, _ := unix.GetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER); sa.Port == int(port) {
					found++
					if v != unix.IP_PMTUDISC_OMIT {
						t.Errorf("IPv4 socket: IP_MTU_DISCOVER is %d", v)
					}
				}
			case *unix.SockaddrInet6:
				if v, _ := unix.GetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER); sa.Port == int(port) {
					found++
					if v != unix.IPV6_PMTUDISC_OMIT {
						t.Errorf("IPv6 socket: IPV6_MTU_DISCOVER is %d", v)
					}
				}
			}
		}
		if found == 0 {
			t.Error("no socket found")
		}
		return err
	})
}

func TestLogIsLimited(t *testing.T) {
	var out bytes.Buffer
	l := wireguardLogger(slog.New(slog.NewTextHandler(&out, nil)))
	for range 1000 {
		l.Errorf("write failed: %v", "EIO")
		l.Errorf("another")
	}
	if n := strings.Count(out.String(), "\n"); n != 2 {
		t.Errorf("%d lines, want one of each", n)
	}
}
