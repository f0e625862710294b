package paths

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"rivulet/fabric/peer"
	"rivulet/test/harness/await"
	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
	"rivulet/test/harness/mainjob"
)

// brokerAt runs a broker on the device until stop; it returns its line for the configuration.
func brokerAt(t *testing.T, ctx context.Context, d *lab.Device, address string) (line string, stop func()) {
	t.Helper()
	cmd, err := d.Command(ctx, "rivulet", "broker", "--state", "/var/lib/broker", "--listen", ":8442", "--host", address)
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { end(cmd) })
	if line, err = bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatalf("the broker ended: %v", err)
	}
	return strings.TrimSpace(line), func() { end(cmd) }
}

func end(cmd *exec.Cmd) {
	_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	_ = cmd.Wait()
}

// Two sites of a group behind routers of their own, and a broker outside that is nobody's peer: they find each other,
// run pods on each other, and do not need it once they have a direct path. Where there is none it relays.
func TestBroker(t *testing.T) {
	ctx := suite.Bounded(t, 8*time.Minute)
	ra, rb := behindRouters(t, ctx)
	ra.rules(t)
	rb.rules(t)
	a, b, c := suite.Devices["a"], suite.Devices["b"], suite.Devices["c"]
	for _, d := range []*lab.Device{a, b} {
		if err := d.WaitReady(ctx); err != nil {
			t.Fatal(err)
		}
		for _, p := range labtest.Status(t, ctx, d).Peers { // of an earlier test
			if p.Trust.How != "" {
				labtest.Must(t, ctx, d, "rivulet", "unpeer", string(p.ID), "--force", "--forget", "--yes")
			}
		}
	}
	_ = c.Stop(ctx) // a host with a broker; the test before may have ended it
	line, stop := brokerAt(t, ctx, c, "10.77.0.13")
	for _, d := range []*lab.Device{a, b} {
		text := "trust:\n  mode: group\n  secret: a-long-word-that-nobody-guesses\n  " + line + "\n"
		labtest.Must(t, ctx, d, "sh", "-c", "mkdir -p /etc/rivulet && umask 077 && printf '%s' '"+text+"' > /etc/rivulet/config.yaml && rivulet config reload")
	}
	began := time.Now()
	connected(t, ctx, a, b)
	connected(t, ctx, b, a)
	t.Logf("peers after %s", time.Since(began).Round(100*time.Millisecond))
	way(t, ctx, a, b, "direct 10.77.0.242:")
	way(t, ctx, b, a, "direct 10.77.0.241:")
	if p := see(t, ctx, a, b); p.Trust.How != peer.TrustGroup || !slices.ContainsFunc(p.Found, func(s string) bool { return strings.HasPrefix(s, "broker") }) {
		t.Errorf("a trusts b by %s, and has found it by %v", p.Trust.How, p.Found)
	}
	st := labtest.Status(t, ctx, a)
	if len(st.Brokers) != 1 || !st.Brokers[0].Reached || st.Brokers[0].Members != 1 {
		t.Errorf("a has the brokers %+v", st.Brokers)
	}
	for _, p := range st.Peers {
		if p.Name != b.Name && (p.State == peer.Connected || strings.Contains(line, string(p.ID))) {
			t.Errorf("a has %s %s as %s", p.Name, p.ID, p.State)
		}
	}
	for _, d := range []*lab.Device{a, b} {
		if err := d.WaitPeered(ctx, 1); err != nil {
			t.Fatal(err)
		}
	}

	t.Run("a pod of a runs on b", func(t *testing.T) {
		if err := mainjob.ImportImage(ctx, []*lab.Device{b}); err != nil {
			t.Fatal(err)
		}
		labtest.Kubectl(t, ctx, a, "create", "namespace", "away")
		labtest.Must(t, ctx, a, "rivulet", "offload", "away", "--when", "remote")
		labtest.Kubectl(t, ctx, a, "run", "web", "-n", "away", "--image", mainjob.Image, "--image-pull-policy=IfNotPresent")
		labtest.Kubectl(t, ctx, a, "wait", "-n", "away", "--for=condition=Ready", "pod/web", "--timeout=90s")
		if node := labtest.Kubectl(t, ctx, a, "get", "-n", "away", "pod/web", "-o", "jsonpath={.spec.nodeName}"); node != "b" {
			t.Errorf("it runs on %s", node)
		}
	})
	t.Run("the broker goes", func(t *testing.T) {
		stop()
		await.NoError(t, ctx, 60*time.Second, "a has a problem with a cure", func() error {
			for _, p := range labtest.Status(t, ctx, a).Health {
				if p.Code == "broker" && p.Cure != "" {
					return nil
				}
			}
			return fmt.Errorf("no problem")
		})
		connected(t, ctx, a, b)
		way(t, ctx, a, b, "direct 10.77.0.242:")
		labtest.Kubectl(t, ctx, a, "exec", "-n", "away", "web", "--", "/bin/busybox", "true")
	})
	whole := t
	t.Run("relayed where they do not reach each other", func(t *testing.T) {
		if again, _ := brokerAt(whole, ctx, c, "10.77.0.13"); again != line {
			t.Fatalf("%s is another broker than %s", again, line)
		}
		await.True(t, 90*time.Second, "a reaches the broker again", func() bool {
			st := labtest.Status(t, ctx, a)
			return len(st.Brokers) == 1 && st.Brokers[0].Reached
		})
		ra.rules(t, rb.public())
		way(t, ctx, a, b, "relay via broker")
		way(t, ctx, b, a, "relay via broker")
		connected(t, ctx, a, b)
		labtest.Kubectl(t, ctx, a, "exec", "-n", "away", "web", "--", "/bin/busybox", "true")
		if out := labtest.Must(t, ctx, a, "rivulet", "peers", "-o", "wide"); !strings.Contains(out, "relay via broker") {
			t.Errorf("peers prints\n%s", out)
		}
		if out := labtest.Must(t, ctx, a, "rivulet", "status"); !strings.Contains(out, "BROKER  10.77.0.13:8442: reached") {
			t.Errorf("status prints\n%s", out)
		}
	})
	t.Run("a supervisor restarts", func(t *testing.T) {
		p := see(t, ctx, b, a)
		at, ok := p.Record.Address()
		if !ok {
			t.Fatalf("b has no address of a: %+v", p.Record)
		}
		if err := a.Kill(ctx, "supervisor"); err != nil {
			t.Fatal(err)
		}
		out := labtest.On(t, ctx, b, "/bin/busybox", "ping", "-c", "6", "-W", "1", at.Addr().String())
		if !strings.Contains(out.Out, "6 packets received") {
			t.Errorf("the path by the broker, with a's supervisor gone:\n%s%s", out.Out, out.ErrOut)
		}
		if err := a.Start(ctx); err != nil {
			t.Fatal(err)
		}
		connected(t, ctx, a, b)
		connected(t, ctx, b, a)
		way(t, ctx, a, b, "relay via broker")
	})
	t.Run("nothing of it stays", func(t *testing.T) {
		labtest.Must(t, ctx, a, "sh", "-c", "sed -i /broker:/d /etc/rivulet/config.yaml && rivulet config reload")
		await.NoError(t, ctx, 60*time.Second, "a uses no broker", func() error {
			st := labtest.Status(t, ctx, a)
			for _, p := range st.Tunnel.Peers {
				for _, w := range p.Paths {
					if w.Alive {
						return fmt.Errorf("a path is alive: %+v", w)
					}
				}
			}
			if len(st.Brokers) != 0 || len(st.Tunnel.Brokers) != 0 {
				return fmt.Errorf("%+v %+v", st.Brokers, st.Tunnel.Brokers)
			}
			return nil
		})
	})
}
