package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"rivulet/test/harness/await"
	"rivulet/test/harness/lab"
	"rivulet/test/harness/mainjob"
)

// What goes wrong on a shelf in a lab, one after the other, while the application
// runs at home and away. After each the same pods run, in the same containers.
func TestSurvival(t *testing.T) {
	ctx := need(t, 11*time.Minute)
	a, b := devices["a"], devices["b"]
	s := &mainjob.Story{Home: a}
	if err := s.Deploy(ctx); err != nil {
		t.Fatal(err)
	}
	pods, err := s.WaitReady(ctx, mainjob.Replicas)
	if err != nil {
		t.Fatal(err)
	}
	home, _, err := mainjob.Ends(pods)
	if err != nil {
		t.Fatal(err)
	}
	onB := on(pods, "b")
	if onB == nil {
		t.Fatalf("no pod runs on b: %v", mainjob.Where(pods))
	}
	before := containers(pods)
	same := func(t *testing.T) {
		t.Helper()
		await.NoError(t, ctx, 0, "the same pods, ready, in the same containers", func() error {
			now, err := s.Pods(ctx)
			if err != nil {
				return err
			}
			return compare(before, containers(now))
		})
	}
	answers := func(ctx context.Context) error {
		got, err := s.Ask(ctx, home.Name, "http://"+onB.Status.PodIP+":8080/", 1)
		if err == nil && got[onB.Name] != 1 {
			err = fmt.Errorf("%s answered %v", onB.Status.PodIP, got)
		}
		return err
	}

	// again waits until another engine than the one of before serves, and all is as it was.
	again := func(t *testing.T, was int) {
		t.Helper()
		await.NoError(t, ctx, 0, "another engine, device ready", func() error {
			st, err := a.Status(ctx)
			if err == nil && (!st.Ready || st.PIDs["engine"] == was || st.PIDs["engine"] == 0) {
				err = fmt.Errorf("%+v", st.Waiting)
			}
			return err
		})
		same(t)
	}
	const noDNS, noTunnel = 5 * time.Second, 3 * time.Second
	t.Run("engine killed", func(t *testing.T) {
		was := pid(t, ctx, a, "engine")
		undisturbed(t, ctx, a, home, onB, noDNS, noTunnel, func() {
			kill(t, ctx, a, "engine")
			again(t, was)
		})
	})
	t.Run("containerd killed: it comes back with the engine", func(t *testing.T) {
		was := pid(t, ctx, a, "engine")
		undisturbed(t, ctx, a, home, onB, noDNS, noTunnel, func() {
			killContainerd(t, ctx, a)
			again(t, was)
		})
	})
	t.Run("supervisor killed", func(t *testing.T) {
		was := pid(t, ctx, a, "engine")
		undisturbed(t, ctx, a, home, onB, noDNS, noTunnel, func() {
			kill(t, ctx, a, "supervisor")
			if err := a.Start(ctx); err != nil {
				t.Fatal(err)
			}
			again(t, was)
		})
	})
	t.Run("tunnel killed", func(t *testing.T) {
		was := pid(t, ctx, a, "tunnel")
		kill(t, ctx, a, "tunnel")
		begun := time.Now()
		await.NoError(t, ctx, 0, "away pod answers again", func() error { return answers(ctx) })
		if d := time.Since(begun); d > 5*time.Second {
			t.Errorf("back after %s, the promise is 3 s (and a request's own time)", d)
		}
		if pid(t, ctx, a, "tunnel") == was {
			t.Error("the tunnel was not killed")
		}
		same(t)
	})
	t.Run("supervisor of a provider killed: tunnel and pods do not notice", func(t *testing.T) {
		tunnel := pid(t, ctx, b, "tunnel")
		kill(t, ctx, b, "supervisor")
		for range 10 {
			if err := answers(ctx); err != nil {
				t.Errorf("while there is no supervisor on b: %v", err)
			}
		}
		if err := b.Start(ctx); err != nil {
			t.Fatal(err)
		}
		peered(t, ctx)
		if pid(t, ctx, b, "tunnel") != tunnel {
			t.Error("the tunnel's process was replaced, it should be adopted")
		}
		same(t)
	})
	t.Run("orderly stop and start at home", func(t *testing.T) {
		if err := a.Stop(ctx); err != nil {
			t.Fatal(err)
		}
		if out, err := a.Run(ctx, "sh", "-c", "! pgrep -x rivulet-engine && pgrep -f containerd-shim | wc -l"); err != nil {
			t.Errorf("an engine still runs after the stop, or no shim does: %q %v", out, err)
		}
		if err := a.Start(ctx); err != nil {
			t.Fatal(err)
		}
		peered(t, ctx)
		same(t)
	})
	t.Run("no iptables on the device", func(t *testing.T) {
		withoutIptables(t, ctx, a, func(t *testing.T) {
			await.NoError(t, ctx, 0, "all pods, home and away, answer through their service", func() error {
				_, err := s.AskAll(ctx, home.Name, "web", pods)
				return err
			})
			await.NoError(t, ctx, 0, "the away pod answers at its address", func() error { return answers(ctx) })
			same(t)
		})
	})
	t.Run("another address by DHCP", func(t *testing.T) {
		address, err := b.Renumber(ctx)
		if err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		await.NoError(t, ctx, 0, "away pod answers with b at "+address, func() error { return answers(ctx) })
		if d := time.Since(begun); d > 30*time.Second {
			t.Errorf("back after %s, the promise is 30 s", d)
		}
		peered(t, ctx)
		same(t)
	})
	t.Run("link cut: the third device carries", func(t *testing.T) {
		if err := suite.Lab.Cut("a", "b"); err != nil {
			t.Fatal(err)
		}
		await.NoError(t, ctx, 0, "b is reached through c", func() error {
			out, err := a.Run(ctx, "rivulet", "peers", "-o", "wide")
			if err == nil && !strings.Contains(string(out), "relay via c") {
				err = fmt.Errorf("no path leads through c:\n%s", out)
			}
			return err
		})
		await.NoError(t, ctx, 0, "away pod answers", func() error { return answers(ctx) })
		same(t)
	})
	t.Run("every link of a provider cut, and healed", func(t *testing.T) {
		if err := suite.Lab.Cut("b", "c"); err != nil {
			t.Fatal(err)
		}
		await.NoError(t, ctx, 0, "virtual node b is NotReady", func() error {
			out, err := a.Kubectl(ctx, "get", "node", "b", "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status}`)
			if err == nil && out == "True" {
				err = fmt.Errorf("Ready is %s", out)
			}
			return err
		})
		if err := suite.Lab.Heal(); err != nil {
			t.Fatal(err)
		}
		peered(t, ctx)
		await.NoError(t, ctx, 0, "away pod answers", func() error { return answers(ctx) })
		same(t)
	})
	t.Run("power cut at home", func(t *testing.T) {
		kill(t, ctx, a, "power")
		if err := a.Start(ctx); err != nil {
			t.Fatal(err)
		}
		peered(t, ctx)
		await.NoError(t, ctx, 0, "all pods ready again, those away untouched", func() error {
			now, err := s.Pods(ctx)
			if err != nil {
				return err
			}
			was, is := containers(pods), containers(now)
			for name, c := range was {
				if c.node == "a" { // its containers died with the power
					c.id, c.restarts = is[name].id, is[name].restarts
					was[name] = c
				}
			}
			return compare(was, is)
		})
		if _, err := s.AskAll(ctx, home.Name, "web", pods); err != nil {
			t.Error(err)
		}
	})
	leavesNothing(t, ctx)
}

type container struct {
	node, id string
	restarts int32
	ready    bool
}

func containers(pods []corev1.Pod) map[string]container {
	out := map[string]container{}
	for i := range pods {
		p := &pods[i]
		c := container{node: p.Spec.NodeName, ready: mainjob.Ready(p)}
		if len(p.Status.ContainerStatuses) == 1 {
			c.id, c.restarts = p.Status.ContainerStatuses[0].ContainerID, p.Status.ContainerStatuses[0].RestartCount
		}
		out[p.Name] = c
	}
	return out
}

func compare(was, is map[string]container) error {
	if len(was) != len(is) {
		return fmt.Errorf("%d pods, there were %d", len(is), len(was))
	}
	for name, w := range was {
		if i := is[name]; i != w {
			return fmt.Errorf("%s is %+v, was %+v", name, i, w)
		}
	}
	return nil
}

func on(pods []corev1.Pod, node string) *corev1.Pod {
	for i := range pods {
		if pods[i].Spec.NodeName == node {
			return &pods[i]
		}
	}
	return nil
}

func pid(t *testing.T, ctx context.Context, d *lab.Device, what string) int {
	t.Helper()
	st, err := d.Status(ctx)
	if err != nil || st.PIDs[what] == 0 {
		t.Fatalf("%s on %s has no PID: %v", what, d.Name, err)
	}
	return st.PIDs[what]
}

func kill(t *testing.T, ctx context.Context, d *lab.Device, what string) {
	t.Helper()
	if err := d.Kill(ctx, what); err != nil {
		t.Fatal(err)
	}
}

// peered waits until every device sees both others as ready nodes.
func peered(t *testing.T, ctx context.Context) {
	t.Helper()
	begun := time.Now()
	for _, d := range devices {
		if err := d.WaitPeered(ctx, 2); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("all peered: %.1f s", time.Since(begun).Seconds())
}
