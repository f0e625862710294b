package hostile

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"rivulet/test/harness/await"
	"rivulet/test/suites/hostile/attacker"
)

// A machine of the LAN announces a cluster whose port is that of a service. The device calls
// a cluster that is announced at the right port, so it has read both, and calls no service.
func TestAnAnnouncementIsNoCallToAService(t *testing.T) {
	ctx := suite.Bounded(t, 3*time.Minute)
	a := attacker.New(t, suite.Lab, "mallory", "10.77.0.60")
	calls := func(port int) *atomic.Int32 {
		l, err := a.Listen(port)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		n := new(atomic.Int32)
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				n.Add(1)
				c.Close()
			}
		}()
		return n
	}
	service, control := calls(22), calls(attacker.Port)
	announce := func(port uint16) {
		m := a.Announcement()
		for _, rr := range m.Answer {
			switch rr := rr.(type) {
			case *dns.SRV:
				rr.Port = port
			case *dns.TXT:
				rr.Txt[len(rr.Txt)-1] = fmt.Sprintf("port=%d", port)
			}
		}
		if err := a.Send(m); err != nil {
			t.Fatal(err)
		}
	}
	announce(22)
	a.NewIdentity()
	await.NoError(t, ctx, time.Minute, "a cluster that is announced is called", func() error {
		announce(attacker.Port)
		if control.Load() == 0 {
			return fmt.Errorf("nobody called port %d", attacker.Port)
		}
		return nil
	})
	for until := time.Now().Add(10 * time.Second); time.Now().Before(until); time.Sleep(time.Second) { // nothing is to happen
		announce(22) // the same cluster has another port now
		if n := service.Load(); n != 0 {
			t.Fatalf("%d calls to port 22", n)
		}
	}
}
