package mdns

import (
	"net/netip"
	"os"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rivulet/test/harness/testlan"
)

// tenth is DefaultTiming ten times as fast, for devices on which nothing else depends.
var tenth = Timing{
	Heartbeat: DefaultTiming.Heartbeat / 10, Again: []time.Duration{300 * time.Millisecond, time.Second, 2500 * time.Millisecond}, Expire: DefaultTiming.Expire / 10, Goodbye: DefaultTiming.Goodbye,
	Query: DefaultTiming.Query, QueryAgain: DefaultTiming.QueryAgain / 10, Once: DefaultTiming.Once,
}

// counter counts the frames of multicast DNS that reach a machine on the LAN.
func counter(t *testing.T, lan *testlan.LAN) func() uint64 {
	d := lan.Device()
	fd := -1
	d.Do(func() (err error) {
		all := uint16(unix.ETH_P_ALL)
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(all<<8|all>>8))
		return err
	})
	var n atomic.Uint64
	done := make(chan struct{})
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 200_000})
	stop := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 2048)
		for {
			select {
			case <-stop:
				return
			default:
			}
			if size, _, err := unix.Recvfrom(fd, buf, 0); err == nil && isMDNS(buf[:size]) {
				n.Add(1)
			}
		}
	}()
	t.Cleanup(func() { close(stop); <-done; unix.Close(fd) })
	return n.Load
}

func isMDNS(ip []byte) bool {
	port := func(at int) bool { return len(ip) > at+3 && int(ip[at+2])<<8|int(ip[at+3]) == 5353 }
	switch {
	case len(ip) > 20 && ip[0]>>4 == 4 && ip[9] == unix.IPPROTO_UDP:
		return port(int(ip[0]&15) * 4)
	case len(ip) > 40 && ip[0]>>4 == 6 && ip[6] == unix.IPPROTO_UDP:
		return port(40)
	}
	return false
}

// Devices that have found each other, counted on the wire: thirty send less than one
// packet a second together, two hundred less than three. Time runs ten times as fast,
// RIVULET_LONG=1 counts real minutes, and two hundred only then.
func TestSteadyTraffic(t *testing.T) {
	for devices, most := range map[int]float64{30: 1, 200: 3} {
		t.Run(strconv.Itoa(devices), func(t *testing.T) {
			if devices > 30 && os.Getenv("RIVULET_LONG") == "" {
				t.Skip("two hundred processes, each of which reads every packet, ten times as fast: set RIVULET_LONG=1")
			}
			steadyTraffic(t, devices, most)
		})
	}
}

// What devices send when nothing happens depends on how many they see, and each stays known until it sends again.
func TestHeartbeatOfMany(t *testing.T) {
	for devices, most := range map[int]float64{2: 0.1, 30: 1, 200: 3} {
		s := New(nil, DefaultTiming, nil)
		s.seen.Store(int64(devices - 1))
		var all time.Duration
		const draws = 10000
		for range draws {
			d := s.heartbeat(len(DefaultTiming.Again))
			if d >= DefaultTiming.Expire*3/4 {
				t.Fatalf("%d devices: after %v it would have been queried", devices, d)
			}
			all += d
		}
		if rate := float64(devices) / (all / draws).Seconds(); rate > most {
			t.Errorf("%d devices send %.2f packets a second, want %v at most", devices, rate, most)
		}
	}
}

func steadyTraffic(t *testing.T, devices int, most float64) {
	role, timing, faster, window := "tenth", tenth, 10.0, 8*time.Second
	if os.Getenv("RIVULET_LONG") != "" {
		role, timing, faster, window = "default", DefaultTiming, 1, 4*time.Minute
	}
	lan := testlan.New(t)
	count := counter(t, lan)
	var room []*device
	for n := range devices {
		d := newDevice(t, lan, n%26, role)
		d.id = floodID(n)
		d.SetAddr(netip.AddrFrom4([4]byte{192, 0, 2, byte(n + 1)}).String() + "/24")
		d.announce("d", 7442)
		room = append(room, d)
	}
	last := room[0]
	found := map[string]bool{}
	for deadline := time.After(time.Minute); len(found) < devices-1; {
		select {
		case e := <-last.events:
			found[e.Entry.Key] = true
		case <-deadline:
			t.Fatalf("a device has found %d of %d others", len(found), devices-1)
		}
	}
	t.Logf("%d packets until all were found", count())
	settled := time.Now().Add(timing.Once) // and the repetitions after a start are over
	for _, d := range timing.Again {
		settled = settled.Add(d)
	}
	time.Sleep(time.Until(settled))
	// On a busy machine devices start late and are taken for silent: it settles later.
	var rate float64
	for deadline := time.Now().Add(10 * window); ; {
		before, begun := count(), time.Now()
		time.Sleep(window)
		rate = float64(count()-before) / time.Since(begun).Seconds() / faster
		t.Logf("%d devices: %.2f packets a second in all, %.3f each", devices, rate, rate/float64(devices))
		if rate >= 0.2 && rate <= most || time.Now().After(deadline) {
			break
		}
	}
	if rate > most {
		t.Errorf("%.2f packets a second, want %v at most", rate, most)
	}
	if rate < 0.2 {
		t.Errorf("%.2f packets a second: are they there at all?", rate)
	}
}
