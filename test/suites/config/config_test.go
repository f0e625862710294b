package config

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"rivulet/fabric/peer"
	"rivulet/test/harness/await"
	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
)

const file = "/etc/rivulet/config.yaml"

// seen returns how a device sees the cluster with the ID.
func seen(t *testing.T, ctx context.Context, by *lab.Device, id peer.ID) peer.View {
	t.Helper()
	for _, p := range labtest.Status(t, ctx, by).Peers {
		if p.ID == id {
			return p
		}
	}
	return peer.View{}
}

// cpu is what the virtual node of the peer offers, in thousandths of a CPU.
func cpu(t *testing.T, ctx context.Context, by *lab.Device, name string) int64 {
	t.Helper()
	for _, n := range labtest.Status(t, ctx, by).VirtualNodes {
		if n.Name == name && n.Ready {
			return n.Allocatable.Cpu().MilliValue()
		}
	}
	return -1
}

// A device that was given a file which is not there starts, runs pods, says so, and
// makes nobody its peer: the file may have said whom to trust. With ask each waits
// for a word. Each change is taken while it runs.
func TestTrustFailsClosed(t *testing.T) {
	ctx := suite.Bounded(t, 2*time.Minute)
	a, c := suite.Devices["a"], suite.Devices["c"]
	id := labtest.Status(t, ctx, c).ID
	shows(t, ctx, c, []string{"config-broken", cFile + ": there is no such file", "CONFIG  defaults", "trust-closed", "cannot be read"})
	refused := func(why string) {
		t.Helper()
		await.NoError(t, ctx, 30*time.Second, "a is refused by c: "+why, func() error {
			theirs, ours := seen(t, ctx, a, id), seen(t, ctx, c, labtest.Status(t, ctx, a).ID)
			if theirs.Trust.How != "" || ours.Trust.How != "" {
				t.Fatalf("trust, though c has none to give: %+v %+v", theirs, ours)
			}
			// Why is for c's owner; a is told no more than that nobody new is trusted.
			for _, v := range []struct {
				peer.View
				want string
			}{{theirs, "trusts nobody new"}, {ours, why}} {
				if v.State != peer.Refused || !strings.Contains(v.Reason, v.want) {
					return fmt.Errorf("%s: %s", v.State, v.Reason)
				}
			}
			return nil
		})
	}
	refused("the configuration cannot be read")

	write(t, ctx, c, cFile, "trust: {mode: ask}\n")
	shows(t, ctx, c, []string{"CONFIG  " + cFile + ", loaded", "peer-waiting"}, "config-broken", "trust-closed")
	// Discovered anew, and still nobody.
	a2 := labtest.Status(t, ctx, a).ID
	await.NoError(t, ctx, 30*time.Second, "c asks", func() error {
		if v := seen(t, ctx, c, a2); v.Trust.How != "" || v.State != peer.Waiting || !strings.Contains(v.Reason, "rivulet approve") {
			return fmt.Errorf("%+v", v)
		}
		return nil
	})

	write(t, ctx, c, cFile, "trust: {mode: lan}\n")
	for _, d := range suite.Devices {
		if err := d.WaitPeered(ctx, 2); err != nil {
			t.Fatal(err)
		}
	}
	shows(t, ctx, c, []string{"CONFIG  " + cFile}, "trust-closed")

	// Closed again: those who are trusted stay.
	write(t, ctx, c, cFile, "trust: {mode: group, secret: sixteen-and-more-letters}\n")
	shows(t, ctx, c, []string{"CONFIG  " + cFile}, "trust-closed", "sixteen-and-more")
	labtest.Must(t, ctx, c, "rivulet", "config", "reload")
	for _, of := range []*lab.Device{a, suite.Devices["b"]} {
		if v := seen(t, ctx, c, labtest.Status(t, ctx, of).ID); v.State != peer.Connected {
			t.Errorf("%s is %s (%s) for c after the trust was closed", of.Name, v.State, v.Reason)
		}
	}
	write(t, ctx, c, cFile, "")
}

// Name, share and interfaces are changed while everything runs, and the neighbour
// sees it; a mistake changes nothing and is told with its place.
func TestChangesAreTakenWhileRunning(t *testing.T) {
	ctx := suite.Bounded(t, 2*time.Minute)
	a, b := suite.Devices["a"], suite.Devices["b"]
	for _, d := range []*lab.Device{a, b} {
		if err := d.WaitPeered(ctx, 1); err != nil {
			t.Fatal(err)
		}
	}
	id, all := labtest.Status(t, ctx, a).ID, cpu(t, ctx, b, "a")
	if all <= 0 {
		t.Fatalf("b sees no room at a: %d", all)
	}
	before := labtest.Status(t, ctx, a).PIDs

	// The first file of a's life is a broken one.
	write(t, ctx, a, file, "share: {cpu: 50%}\nnmae: kitchen\n")
	shows(t, ctx, a, []string{"config-broken", file + ":2:1: unknown key", "did you mean name?", "CONFIG  defaults", "a  Ready"})
	if r := labtest.On(t, ctx, a, "rivulet", "config", "reload"); r.Code != 1 || !strings.Contains(r.Out, file+":2:1: ") || !strings.Contains(r.ErrOut, "what was in force stays") {
		t.Errorf("config reload: %+v", r)
	}
	if got := cpu(t, ctx, b, "a"); got != all {
		t.Errorf("half a file was taken: b sees %dm at a, before %dm", got, all)
	}

	write(t, ctx, a, file, "share: {cpu: 50%}\nname: kitchen\n")
	shows(t, ctx, a, []string{"kitchen  Ready", "CONFIG  " + file + ", loaded"}, "config-broken", "trust-closed")
	await.NoError(t, ctx, 30*time.Second, "b calls a kitchen", func() error {
		if v := seen(t, ctx, b, id); v.Name != "kitchen" || v.State != peer.Connected {
			return fmt.Errorf("%s %s %s", v.Name, v.State, v.Reason)
		}
		return nil
	})
	await.NoError(t, ctx, 30*time.Second, "b sees half of a", func() error {
		// Half of what pods can have at all, which is no more than what is free.
		if got := cpu(t, ctx, b, "a"); got <= 0 || got > all*6/10 {
			return fmt.Errorf("%dm of %dm", got, all)
		}
		return nil
	})

	// A mistake later: the last good one stays, over a restart too.
	write(t, ctx, a, file, "share: {cpu: 150%}\nname: kitchen\n")
	shows(t, ctx, a, []string{"config-broken", file + ":1:14: share.cpu", "CONFIG  the last good one", "kitchen  Ready"})
	if err := a.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	if err := a.Start(ctx); err != nil {
		t.Fatal(err)
	}
	shows(t, ctx, a, []string{"config-broken", "CONFIG  the last good one", "kitchen  "})
	if err := a.WaitPeered(ctx, 1); err != nil {
		t.Fatal(err)
	}

	// SIGHUP reads it again, and ends nothing.
	pid := labtest.Status(t, ctx, a).PIDs["supervisor"]
	labtest.Must(t, ctx, a, "kill", "-HUP", fmt.Sprint(pid))
	await.NoError(t, ctx, 30*time.Second, "SIGHUP is taken", func() error {
		if out, err := a.Run(ctx, "grep", "-c", "SIGHUP: reading", "/var/log/rivulet.log"); err != nil {
			return errors.New(out + err.Error())
		}
		return nil
	})

	// Interfaces: none that is there; known peers stay, and it is said.
	write(t, ctx, a, file, "lan: {interfaces: [wlan7]}\nshare: {cpu: 0%, memory: 0%, maxPods: 0}\n")
	shows(t, ctx, a, []string{"lan-unmatched", "wlan7", "eth0", "a  Ready"})
	await.NoError(t, ctx, 30*time.Second, "nothing is lent, and a is called a again", func() error {
		if v := seen(t, ctx, b, id); v.Name != "a" || v.State != peer.Connected || cpu(t, ctx, b, "a") > 0 {
			return fmt.Errorf("%s %s %s, %dm", v.Name, v.State, v.Reason, cpu(t, ctx, b, "a"))
		}
		return nil
	})

	// Without the file: everything default.
	labtest.Must(t, ctx, a, "rm", file)
	shows(t, ctx, a, []string{"CONFIG  defaults; there is no " + file}, "lan-unmatched", "config-broken")
	await.NoError(t, ctx, 30*time.Second, "b sees all of a", func() error {
		if got := cpu(t, ctx, b, "a"); got != all {
			return fmt.Errorf("%dm of %dm", got, all)
		}
		return nil
	})
	if now := labtest.Status(t, ctx, a).PIDs; now["supervisor"] != pid || now["tunnel"] != before["tunnel"] {
		t.Errorf("processes %v, before %v and supervisor %d: something was restarted", now, before, pid)
	}
}

// What the engine takes only when it starts: it alone starts again, by itself, and
// the pod goes on.
func TestRegistriesRestartTheEngineAlone(t *testing.T) {
	ctx := suite.Bounded(t, 2*time.Minute)
	b := suite.Devices["b"]
	labtest.Must(t, ctx, b, "rivulet", "kubectl", "run", "stays", "--image=rivulet.dev/pause:1", "--image-pull-policy=Never", "--restart=Always")
	labtest.Must(t, ctx, b, "rivulet", "kubectl", "wait", "--for=condition=Ready", "pod/stays", "--timeout=60s")
	life := func() string {
		return labtest.Must(t, ctx, b, "rivulet", "kubectl", "get", "pod", "stays", "-o",
			"jsonpath={.status.podIP} {.status.containerStatuses[0].containerID} {.status.containerStatuses[0].state.running.startedAt} restarts={.status.containerStatuses[0].restartCount}")
	}
	pod, was := life(), labtest.Status(t, ctx, b).PIDs

	write(t, ctx, b, file, `registries:
  mirrors:
    docker.io: {endpoint: ["http://10.77.0.250:5000"]}
  configs:
    10.77.0.250:5000: {auth: {username: lab, password: canary-word}}
reserve: {memory: 256Mi}
burst:
  - {name: campus, kubeconfig: /etc/rivulet/none}
`)
	shows(t, ctx, b, []string{"config-broken", file + ":8:32: burst[0].kubeconfig: /etc/rivulet/none: there is no such file"})
	write(t, ctx, b, file, `registries:
  mirrors:
    docker.io: {endpoint: ["http://10.77.0.250:5000"]}
  configs:
    10.77.0.250:5000: {auth: {username: lab, password: canary-word}}
reserve: {memory: 256Mi}
`)
	await.NoError(t, ctx, 30*time.Second, "it is pending, and said so", func() error {
		if p := labtest.Status(t, ctx, b).Config.Pending; len(p) != 1 || !strings.Contains(p[0], "reserve and registries: the engine starts again, pods go on") {
			return fmt.Errorf("%q", p)
		}
		return nil
	})
	await.NoError(t, ctx, 30*time.Second, "another engine is ready", func() error {
		st := labtest.Status(t, ctx, b)
		if !st.Ready || st.PIDs["engine"] == was["engine"] || len(st.Config.Pending) > 0 {
			return fmt.Errorf("%s, engine %d, pending %q", st.Waiting, st.PIDs["engine"], st.Config.Pending)
		}
		return nil
	})
	st := labtest.Status(t, ctx, b)
	if st.PIDs["supervisor"] != was["supervisor"] || st.PIDs["tunnel"] != was["tunnel"] {
		t.Errorf("processes %v, were %v: more than the engine was restarted", st.PIDs, was)
	}
	if now := life(); now != pod {
		t.Errorf("the pod is %s, was %s", now, pod)
	}
	hosts := labtest.Must(t, ctx, b, "cat", "/var/lib/rivulet/k3s/agent/etc/containerd/certs.d/docker.io/hosts.toml")
	if !strings.Contains(hosts, "http://10.77.0.250:5000") {
		t.Errorf("containerd was not told of the mirror: %s", hosts)
	}
	if mode := labtest.Must(t, ctx, b, "stat", "-c", "%a", "/var/lib/rivulet/k3s-registries.yaml", "/var/lib/rivulet/config.good.yaml"); mode != "600\n600" {
		t.Errorf("others can read the files with passwords: %s", mode)
	}
	if args := labtest.Must(t, ctx, b, "sh", "-c", "tr '\\0' ' ' < /proc/"+fmt.Sprint(st.PIDs["engine"])+"/cmdline"); strings.Contains(args, "canary") {
		t.Errorf("a password on a command line: %s", args)
	}

	show := labtest.Must(t, ctx, b, "rivulet", "config", "show", "--origin")
	for _, want := range []string{"password: (redacted)", "memory: 256Mi # file " + file + ":6:19", "mode: lan # default", "name: b # default"} {
		if !strings.Contains(show, want) {
			t.Errorf("config show lacks %q:\n%s", want, show)
		}
	}
	for _, args := range [][]string{{"config", "show"}, {"config", "show", "-o", "json"}, {"status"}, {"status", "-o", "json"}, {"config", "check"}} {
		if r := labtest.On(t, ctx, b, slices.Concat([]string{"rivulet"}, args)...); strings.Contains(r.Out+r.ErrOut, "canary") {
			t.Errorf("%v shows a password: %+v", args, r)
		}
	}

	// A file of k3s's own form is read where the configuration says nothing, and only there.
	write(t, ctx, b, "/etc/rivulet/registries.yaml", "mirrors:\n  docker.io: {endpoint: [\"http://10.77.0.251:5000\"]}\n")
	labtest.Must(t, ctx, b, "rivulet", "config", "reload")
	shows(t, ctx, b, []string{"config-shadowed", "b  Ready"})
	labtest.Must(t, ctx, b, "rm", file)
	await.NoError(t, ctx, 30*time.Second, "the engine is ready with the user's own registries.yaml", func() error {
		if now := labtest.Status(t, ctx, b); !now.Ready || now.PIDs["engine"] == st.PIDs["engine"] || len(now.Config.Pending) > 0 {
			return fmt.Errorf("%s, pending %q", now.Waiting, now.Config.Pending)
		}
		return nil
	})
	shows(t, ctx, b, []string{"b  Ready"}, "config-shadowed")
	if hosts := labtest.Must(t, ctx, b, "cat", "/var/lib/rivulet/k3s/agent/etc/containerd/certs.d/docker.io/hosts.toml"); !strings.Contains(hosts, "http://10.77.0.251:5000") {
		t.Errorf("containerd was not told of the user's own mirror: %s", hosts)
	}
	if r := labtest.On(t, ctx, b, "ls", "/var/lib/rivulet/k3s-registries.yaml"); r.Code == 0 {
		t.Error("the file with the password is left behind")
	}
	if now := life(); now != pod {
		t.Errorf("the pod is %s, was %s", now, pod)
	}
}
