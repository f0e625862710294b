package mdns

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"rivulet/fabric/discovery"
	"rivulet/fabric/netmon"
	"rivulet/fabric/peer"
	"rivulet/test/harness/testlan"
)

// A device is a process of its own, since a network namespace is.

const roleEnv = "RIVULET_TEST_MDNS"

func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); strings.HasPrefix(role, "host ") {
		runHost(strings.Fields(role)[1:])
		return
	} else if role != "" {
		runDevice(role)
		return
	}
	os.Exit(m.Run())
}

// quick makes hours of a LAN pass in seconds.
var quick = Timing{
	Heartbeat: time.Second, Again: []time.Duration{300 * time.Millisecond}, Expire: 4 * time.Second, Goodbye: time.Second,
	Query: []time.Duration{0, 500 * time.Millisecond}, QueryAgain: time.Minute, Once: 1500 * time.Millisecond, Owner: 12 * time.Second,
}

// runDevice watches and tells events on stdout; each line of input is an
// announcement that replaces the one before, an empty one a goodbye.
func runDevice(role string) {
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	timing := quick
	if strings.Contains(role, "default") {
		timing = DefaultTiming
	} else if strings.Contains(role, "tenth") {
		timing = tenth
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	lans := netmon.New(log)
	go lans.Run(ctx)
	source := New(lans, timing, log)
	out := json.NewEncoder(os.Stdout)
	go source.Watch(ctx, func(e discovery.Event) { out.Encode(e) })

	stop, done := context.CancelFunc(func() {}), make(chan struct{})
	close(done)
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		stop()
		<-done
		var a discovery.Announcement
		if err := json.Unmarshal(in.Bytes(), &a); err != nil || a.Port == 0 {
			fmt.Fprintln(os.Stderr, "goodbye", err)
			continue
		}
		var announcing context.Context
		announcing, stop = context.WithCancel(ctx)
		finished := make(chan struct{})
		done = finished
		go func() { defer close(finished); source.Announce(announcing, a) }()
	}
	stop()
	<-done
}

// device is the test's handle of one.
type device struct {
	*testlan.Device
	t      *testing.T
	id     peer.ID
	proc   *testlan.Process
	events chan discovery.Event
}

func newDevice(t *testing.T, lan *testlan.LAN, n int, role string) *device {
	d := &device{t: t, Device: lan.Device(), id: testID(n), events: make(chan discovery.Event, 256)}
	d.boot(role)
	return d
}

func testID(n int) peer.ID {
	return peer.ID(fmt.Sprintf("%032s", strings.Repeat(string(rune('a'+n)), 32)))
}

func (d *device) boot(role string) {
	d.proc = d.Start(roleEnv + "=" + role)
	out := json.NewDecoder(d.proc.Out)
	go func() {
		for {
			var e discovery.Event
			if out.Decode(&e) != nil {
				return
			}
			d.events <- e
		}
	}()
}

func (d *device) announce(name string, port uint16) {
	d.send(discovery.Announcement{ID: d.id, Name: name, Port: port, TXT: map[string]string{"k": "v"}})
}

func (d *device) send(a discovery.Announcement) {
	d.t.Helper()
	if err := json.NewEncoder(d.proc.In).Encode(a); err != nil {
		d.t.Fatal(err)
	}
}

// expect waits for an event that satisfies ok.
func (d *device) expect(what string, within time.Duration, ok func(discovery.Event) bool) discovery.Event {
	d.t.Helper()
	deadline := time.After(within)
	var seen []discovery.Event
	for {
		select {
		case e := <-d.events:
			if seen = append(seen, e); ok(e) {
				return e
			}
		case <-deadline:
			d.t.Fatalf("no %s within %v; events: %v", what, within, seen)
		}
	}
}
