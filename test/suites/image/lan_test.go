package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/vishvananda/netlink"

	"rivulet/test/harness/await"
	"rivulet/test/harness/testns"
)

// lan is a switch with nothing else on it: no router, no DHCP, no Internet. The test has
// an address on it, as a PC that was plugged in would give itself one (RFC 3927).
type lan struct {
	t    *testing.T
	room testns.Room
}

const (
	lanBridge = "lan0"
	lanDesk   = "169.254.77.1/16"
)

func newLAN(t *testing.T) *lan {
	t.Helper()
	l := &lan{t: t, room: testns.New(t)}
	l.room.Bridge(lanBridge, lanDesk)
	return l
}

// plug makes a socket in the wall; the name is that of the tap, number tells the machines apart.
func (l *lan) plug(name string, number byte) []string {
	l.t.Helper()
	l.room.Do(func() error {
		tap := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: name}, Mode: netlink.TUNTAP_MODE_TAP}
		if err := netlink.LinkAdd(tap); err != nil {
			return err
		}
		br, err := netlink.LinkByName(lanBridge)
		if err != nil {
			return err
		}
		return errors.Join(netlink.LinkSetMaster(tap, br), netlink.LinkSetUp(tap))
	})
	return []string{"-netdev", "tap,id=lan,script=no,downscript=no,ifname=" + name,
		"-device", fmt.Sprintf("virtio-net-pci,netdev=lan,mac=52:54:00:77:00:%02x", number)}
}

// on switches a machine on whose taps are here.
func (l *lan) on(disk string, more ...string) *machine {
	l.t.Helper()
	return start(l.t, disk, func(cmd *exec.Cmd) error { return l.room.Try(cmd.Start) }, more...)
}

// find asks the LAN who has a name under .local, three times as a browser's system does: an
// answer may be lost, and nobody answers twice within a second.
func (l *lan) find(name string) (at netip.Addr, err error) {
	err = l.room.Try(func() error {
		link, err := net.InterfaceByName(lanBridge)
		if err != nil {
			return err
		}
		group := &net.UDPAddr{IP: net.IPv4(224, 0, 0, 251), Port: 5353}
		c, err := net.ListenMulticastUDP("udp4", link, group)
		if err != nil {
			return err
		}
		defer c.Close()
		q := new(dns.Msg)
		q.SetQuestion(name+".local.", dns.TypeA)
		q.Id, q.RecursionDesired = 0, false
		raw, err := q.Pack()
		if err != nil {
			return err
		}
		buf := make([]byte, 9000)
		for range 3 {
			if _, err := c.WriteToUDP(raw, group); err != nil {
				return err
			}
			c.SetReadDeadline(time.Now().Add(3 * time.Second))
			for {
				n, _, err := c.ReadFromUDP(buf)
				if err != nil {
					break
				}
				var m dns.Msg
				if m.Unpack(buf[:n]) != nil || !m.Response {
					continue
				}
				for _, rr := range m.Answer {
					if a, ok := rr.(*dns.A); ok && a.Hdr.Name == name+".local." {
						at, _ = netip.AddrFromSlice(a.A.To4())
						return nil
					}
				}
			}
		}
		return fmt.Errorf("nobody says to be %s.local", name)
	})
	return at, err
}

// visit asks for a page as a browser on the LAN does, that finds names by mDNS.
func (l *lan) visit(method, name string) (code int, page string, err error) {
	at, err := l.find(name)
	if err != nil {
		return 0, "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, _ string) (c net.Conn, err error) {
		err = l.room.Try(func() (err error) {
			c, err = (&net.Dialer{}).DialContext(ctx, network, netip.AddrPortFrom(at, 80).String())
			return err
		})
		return c, err
	}}}
	r, err := http.NewRequestWithContext(ctx, method, "http://"+name+".local/", nil)
	if err != nil {
		return 0, "", err
	}
	answer, err := client.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer answer.Body.Close()
	raw, err := io.ReadAll(answer.Body)
	return answer.StatusCode, string(raw), err
}

// page waits for the machine's status page under its name, tells how long after the
// begin of user space it was there, and that it only shows.
func (l *lan) page(m *machine, name string) string {
	l.t.Helper()
	var page string
	await.NoError(l.t, l.t.Context(), patience, "the page of "+name, func() (err error) {
		var code int
		if code, page, err = l.visit(http.MethodGet, name); err == nil && code != http.StatusOK {
			err = fmt.Errorf("%d: %s", code, page)
		}
		return err
	})
	there := time.Now()
	now, err := strconv.ParseFloat(m.ask("cut -d' ' -f1 /proc/uptime"), 64)
	if err != nil {
		l.t.Error(err)
	}
	now -= time.Since(there).Seconds()
	l.t.Logf("http://%s.local answers, at the latest %.1f s after user space began", name, now-m.userSpace())
	if !strings.Contains(page, "<h1>"+name+"</h1>") {
		l.t.Errorf("the page is not of %s: %s", name, page)
	}
	for _, way := range []string{http.MethodPost, http.MethodPut, http.MethodDelete} {
		if code, _, err := l.visit(way, name); err != nil || code != http.StatusMethodNotAllowed {
			l.t.Errorf("%s: %d, %v", way, code, err)
		}
	}
	return page
}

// screen is what a display would show.
func (m *machine) screen() string {
	m.t.Helper()
	return m.ask("fold -w 80 /dev/vcs1 | sed 's/ *$//'")
}

// plain is a page without its tags.
func plain(page string) string {
	var b strings.Builder
	in := false
	for _, r := range page[max(0, strings.Index(page, "<body")):] {
		switch {
		case r == '<':
			in = true
		case r == '>':
			in = false
		case !in:
			b.WriteRune(r)
		}
	}
	return strings.Join(strings.FieldsFunc(b.String(), func(r rune) bool { return r == '\n' }), "\n")
}
