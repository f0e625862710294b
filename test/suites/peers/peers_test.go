package peers

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"rivulet/appliance/diagnose/doctor"
	"rivulet/appliance/diagnose/doctor/peercheck"
	"rivulet/test/harness/await"
	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
)

// Nothing but the control port takes a connection from the LAN, by no address of the
// device; and no UDP socket but the tunnel's and mDNS's is bound to all addresses.
func TestWhatTheLANSees(t *testing.T) {
	ctx := suite.Bounded(t, 2*time.Minute)
	if open := as(t, ctx, b, "scan 10.77.0.11"); open != "7442" {
		t.Errorf("TCP ports that take a connection: %q", open)
	}
	if link := linkLocal(t, ctx, a); link != "" {
		if open := as(t, ctx, b, "scan "+link+"%eth0"); open != "7442" {
			t.Errorf("TCP ports that take a connection over IPv6: %q", open)
		}
	}
	out, err := b.Run(ctx, "ip", "route", "add", "198.19.0.0/16", "via", "10.77.0.11")
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	labtest.CleanUp(t, func(ctx context.Context) { b.Run(ctx, "ip", "route", "del", "198.19.0.0/16") })
	node := labtest.Kubectl(t, ctx, a, "get", "node", "a", "-o", `jsonpath={.status.addresses[?(@.type=="InternalIP")].address}`)
	if open := as(t, ctx, b, "scan "+node+" "+strings.Join(listening(t, ctx, a), ",")); open != "" {
		t.Errorf("TCP ports of the node's own address that take a connection: %q", open)
	}
	for _, file := range []string{"udp", "udp6"} {
		out, err := a.Run(ctx, "cat", "/proc/net/"+file)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range strings.Split(out, "\n")[1:] {
			f := strings.Fields(line)
			if len(f) < 2 {
				continue
			}
			addr, port, _ := strings.Cut(f[1], ":")
			var n int
			fmt.Sscanf(port, "%X", &n)
			if strings.Trim(addr, "0") == "" && !slices.Contains([]int{7442, 5353}, n) {
				t.Errorf("UDP port %d is bound to all addresses (%s)", n, file)
			}
		}
	}
}

// linkLocal is the IPv6 address that the kernel gave to eth0; empty on a kernel without.
func linkLocal(t *testing.T, ctx context.Context, d *lab.Device) string {
	t.Helper()
	out, err := d.Run(ctx, "cat", "/proc/net/if_inet6")
	if err != nil {
		return ""
	}
	for _, line := range strings.Split(out, "\n") {
		if f := strings.Fields(line); len(f) == 6 && f[5] == "eth0" && strings.HasPrefix(f[0], "fe80") {
			var groups []string
			for i := 0; i < 32; i += 4 {
				groups = append(groups, f[0][i:i+4])
			}
			return strings.Join(groups, ":")
		}
	}
	return ""
}

// listening are the TCP ports that anything on the device listens on: those that a wall
// drops cannot all be tried, each takes the time of a connection that does not come.
func listening(t *testing.T, ctx context.Context, d *lab.Device) (ports []string) {
	t.Helper()
	for _, file := range []string{"tcp", "tcp6"} {
		out, err := d.Run(ctx, "cat", "/proc/net/"+file)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range strings.Split(out, "\n")[1:] {
			if f := strings.Fields(line); len(f) > 3 && f[3] == "0A" {
				_, port, _ := strings.Cut(f[1], ":")
				var n int
				fmt.Sscanf(port, "%X", &n)
				ports = append(ports, strconv.Itoa(n))
			}
		}
	}
	if len(ports) < 5 {
		t.Fatalf("only %v listen on %s: the test proves nothing", ports, d.Name)
	}
	return ports
}

// Each layer that can be broken from outside is, in turn, and is the one that is named.
func TestDoctorNamesTheLayer(t *testing.T) {
	ctx := suite.Bounded(t, 4*time.Minute)
	rep := awaitLayer(t, ctx, a, "b", "")
	for _, l := range rep.Layers {
		if l.Status != doctor.Pass {
			t.Errorf("%s: %s: %s", l.Name, l.Status, l.Text)
		}
	}
	t.Run("TCP is blocked, the tunnel carries", func(t *testing.T) {
		as(t, ctx, b, "block tcp")
		labtest.CleanUp(t, func(ctx context.Context) { as(t, ctx, b, "unblock") })
		rep := awaitLayer(t, ctx, a, "b", "")
		if l := rep.Layers[1]; l.Status != doctor.Warn {
			t.Errorf("tcp: %+v", l)
		}
	})
	t.Run("UDP is blocked", func(t *testing.T) {
		as(t, ctx, b, "block udp")
		var rep peercheck.Report
		await.NoError(t, ctx, 0, "the doctor blames UDP", func() error {
			rep, _ = examine(t, ctx, a, "b")
			for _, l := range rep.Layers {
				// A stream takes over where UDP is blocked: that is a warning.
				if l.Name == "udp" && (l.Status == doctor.Warn || l.Status == doctor.Fail) {
					return nil
				}
			}
			return fmt.Errorf("%+v", rep)
		})
		if rep.Layers[1].Status != doctor.Pass {
			t.Errorf("tcp is blamed for UDP: %+v", rep.Layers[1])
		}
		as(t, ctx, b, "unblock")
		awaitLayer(t, ctx, a, "b", "")
	})
	t.Run("its API server is down", func(t *testing.T) {
		if err := b.Kill(ctx, "engine"); err != nil {
			t.Fatal(err)
		}
		awaitLayer(t, ctx, a, "b", "api")
		awaitLayer(t, ctx, a, "b", "")
	})
	t.Run("it is off", func(t *testing.T) {
		if err := b.Stop(ctx); err != nil {
			t.Fatal(err)
		}
		rep := awaitLayer(t, ctx, a, "b", "tcp")
		if l, _ := rep.Failed(); l.Cure == "" {
			t.Error("without a cure")
		}
		if err := b.Start(ctx); err != nil {
			t.Fatal(err)
		}
		awaitLayer(t, ctx, a, "b", "")
	})
}

// The peer is an object whose condition and events follow the tunnel, over a restart
// of the API server; kubectl shows it as a table.
func TestObject(t *testing.T) {
	ctx := suite.Bounded(t, 3*time.Minute)
	ready := func(want string) {
		t.Helper()
		await.NoError(t, ctx, 0, "b's object is Ready: "+want, func() error {
			out, err := a.Kubectl(ctx, "get", "peer", "b", "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status}`)
			if out = strings.TrimSpace(out); err != nil || out != want {
				return fmt.Errorf("Ready is %q (%w)", out, err)
			}
			return nil
		})
	}
	ready("True")
	if table := labtest.Kubectl(t, ctx, a, "get", "peers"); !strings.Contains(table, "STATE") || !strings.Contains(table, "Connected") || !strings.Contains(table, "10.77.0.12:7442") {
		t.Errorf("kubectl get peers:\n%s", table)
	}
	if err := suite.Lab.Cut("a", "b"); err != nil {
		t.Fatal(err)
	}
	ready("False")
	if err := suite.Lab.Heal(); err != nil {
		t.Fatal(err)
	}
	ready("True")
	if err := a.Kill(ctx, "engine"); err != nil {
		t.Fatal(err)
	}
	if err := a.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	ready("True")
	if err := suite.Lab.Cut("a", "b"); err != nil {
		t.Fatal(err)
	}
	ready("False")
	if err := suite.Lab.Heal(); err != nil {
		t.Fatal(err)
	}
	ready("True")
	events := labtest.Kubectl(t, ctx, a, "get", "events", "--field-selector=involvedObject.kind=Peer", "-o", "jsonpath={.items[*].reason}")
	for _, reason := range []string{"Lost", "Connected"} {
		if !strings.Contains(events, reason) {
			t.Errorf("no event %s among %q", reason, events)
		}
	}
}

// Deleting the object ends the peering, on both sides, and it does not come back by itself.
func TestZDeletedObject(t *testing.T) {
	ctx := suite.Bounded(t, 2*time.Minute)
	labtest.Kubectl(t, ctx, a, "delete", "peer", "b", "--timeout=60s")
	for _, d := range []*lab.Device{a, b} {
		await.NoError(t, ctx, 0, d.Name+" has no peer", func() error {
			out, err := d.Kubectl(ctx, "get", "peers", "-o", "name")
			if err != nil || strings.Contains(out, "peer") {
				return fmt.Errorf("peers %q (%w)", out, err)
			}
			if out, err = d.Run(ctx, "rivulet", "peers", "-o", "json"); err != nil || strings.Contains(out, `"way"`) {
				return fmt.Errorf("a tunnel (%w): %s", err, out)
			}
			return nil
		})
	}
}
