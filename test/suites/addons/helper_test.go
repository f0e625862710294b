package addons

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/miekg/dns"

	"rivulet/test/harness/lab"
)

// helperArg makes the test program itself a program of a device.
const helperArg = "device-helper"

// helper serves until it is killed: "http ADDR TEXT" or "dns ADDR NAME IP".
func helper(args []string) {
	var err error
	switch args[0] {
	case "http":
		err = http.ListenAndServe(args[1], http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, args[2]) }))
	case "dns":
		err = dns.ListenAndServe(args[1], "udp", dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
			m := new(dns.Msg).SetReply(q)
			switch name := q.Question[0]; {
			case name.Name != dns.Fqdn(args[2]):
				m.Rcode = dns.RcodeNameError
			case name.Qtype == dns.TypeA:
				m.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: name.Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 1}, A: net.ParseIP(args[3])}}
			}
			w.WriteMsg(m)
		}))
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// start runs the helper on a device until the function it returns is called.
func start(t *testing.T, d *lab.Device, args ...string) (stop func()) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cmd, err := d.Command(ctx, append([]string{"/host" + self, helperArg}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr, cmd.WaitDelay = os.Stderr, time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stop = func() {
		cancel()
		cmd.Wait()
	}
	t.Cleanup(stop)
	return stop
}
