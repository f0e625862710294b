package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"rivulet/test/harness/await"
	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
	"rivulet/test/harness/mainjob"
)

// The main job, from end to end: see README and DESIGN.
func TestMainJob(t *testing.T) {
	ctx := need(t, 6*time.Minute)
	a := devices["a"]
	s := &mainjob.Story{Home: a, Tell: t.Logf}

	t.Run("virtual nodes tell the truth about providers", func(t *testing.T) { virtualNodes(t, ctx) })

	t.Run("room on a virtual node is live", func(t *testing.T) { liveRoom(t, ctx) })

	if err := s.Deploy(ctx); err != nil {
		t.Fatal(err)
	}
	pods, err := s.WaitReady(ctx, mainjob.Replicas)
	if err != nil {
		t.Fatal(err)
	}
	home, away, err := mainjob.Ends(pods)
	if err != nil {
		t.Fatal(err)
	}

	t.Run("home is filled first, the rest is away", func(t *testing.T) {
		where := mainjob.Where(pods)
		if where["a"] != 5 || where["b"]+where["c"] != 5 || where["b"] == 0 || where["c"] == 0 {
			t.Errorf("pods run on %v, want 5 on a (its room) and the other 5 on b and c", where)
		}
	})
	t.Run("everybody reaches everybody by name, from home and from away", func(t *testing.T) {
		for _, from := range []*corev1.Pod{home, away} {
			for _, name := range []string{"web", "web.lab", "web.lab.svc.cluster.local"} {
				if _, err := s.AskAll(ctx, from.Name, name, pods); err != nil {
					t.Errorf("from %s on %s: %v", from.Name, from.Spec.NodeName, err)
				}
			}
		}
	})
	t.Run("pod addresses are reachable in both directions", func(t *testing.T) { addresses(t, ctx, s, pods, home, away) })
	t.Run("logs", func(t *testing.T) {
		out := labtest.Output(t, ctx, a, "rivulet", "kubectl", "logs", "-n", "lab", away.Name)
		if !strings.HasPrefix(out, away.Name+" serves on :8080\n") || !strings.Contains(out, "answered / to ") {
			t.Errorf("logs of %s: %q", away.Name, firstLines(out))
		}
		tail := labtest.Output(t, ctx, a, "rivulet", "kubectl", "logs", "-n", "lab", away.Name, "--tail=2")
		if n := strings.Count(tail, "\n"); n != 2 {
			t.Errorf("--tail=2 gave %d lines", n)
		}
	})
	t.Run("exec with input, exit code and terminal", func(t *testing.T) { exec(t, ctx, away) })
	t.Run("port-forward", func(t *testing.T) { portForward(t, ctx, away) })
	t.Run("status at home counts them", func(t *testing.T) {
		st, err := a.Status(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if st.Pods.Home != 5 || st.Pods.Away != 5 {
			t.Errorf("status says %+v, want 5 at home and 5 away", st.Pods)
		}
	})
	t.Run("scaling down and up", func(t *testing.T) {
		labtest.Output(t, ctx, a, "rivulet", "kubectl", "scale", "-n", "lab", "deployment/web", "--replicas=2")
		await.NoError(t, ctx, 0, "surplus gone at home and at providers", func() error {
			pods, err := s.Pods(ctx)
			if err != nil {
				return err
			}
			tenants := 0
			for _, d := range []string{"b", "c"} {
				out, err := devices[d].Kubectl(ctx, "get", "pods,replicasets,jobs", "-A", "-l", "rivulet.dev/origin", "-o", "name")
				if err != nil {
					return err
				}
				tenants += strings.Count(out, "pod/")
			}
			if away := len(pods) - mainjob.Where(pods)["a"]; len(pods) != 2 || tenants != away {
				return fmt.Errorf("%d pods at home, %d of them away, %d at providers", len(pods), away, tenants)
			}
			return nil
		})
		labtest.Output(t, ctx, a, "rivulet", "kubectl", "scale", "-n", "lab", "deployment/web", "--replicas=10")
		if _, err := s.WaitReady(ctx, 10); err != nil {
			t.Error(err)
		}
	})
	t.Run("deleting the namespace leaves nothing behind", func(t *testing.T) { leavesNothing(t, ctx) })
}

func virtualNodes(t *testing.T, ctx context.Context) {
	// What earlier pods used comes back with the next offers.
	await.NoError(t, ctx, 0, "virtual nodes tell the truth", func() error {
		var nodes corev1.NodeList
		if err := get(ctx, devices["a"], &nodes, "nodes", "-l", "rivulet.dev/virtual-node"); err != nil {
			return err
		}
		if len(nodes.Items) != 2 {
			return fmt.Errorf("a has %d virtual nodes, want 2", len(nodes.Items))
		}
		for _, v := range nodes.Items {
			var real corev1.Node
			if err := get(ctx, devices[v.Name], &real, "node", v.Name); err != nil {
				return err
			}
			if got, want := v.Labels["kubernetes.io/arch"], real.Status.NodeInfo.Architecture; got != want || v.Status.NodeInfo.Architecture != want {
				return fmt.Errorf("%s: architecture %q, its own node says %q", v.Name, got, want)
			}
			if got, want := v.Status.Allocatable.Cpu(), real.Status.Allocatable.Cpu(); got.Cmp(*want) != 0 {
				return fmt.Errorf("%s: %s CPU allocatable, its own node has %s and runs nothing", v.Name, got, want)
			}
		}
		return nil
	})
}

// liveRoom lets b use room itself: a sees less of it at once, and more when b is done.
func liveRoom(t *testing.T, ctx context.Context) {
	b := devices["b"]
	room := func(want string) func() error {
		return func() error {
			got, err := devices["a"].Kubectl(ctx, "get", "node", "b", "-o", "jsonpath={.status.allocatable.cpu}")
			if err == nil && got != want {
				err = fmt.Errorf("a sees %s CPU on b, want %s", got, want)
			}
			return err
		}
	}
	labtest.Output(t, ctx, b, "rivulet", "kubectl", "run", "busy", "--image="+mainjob.Image, "--overrides",
		`{"spec":{"terminationGracePeriodSeconds":1,"containers":[{"name":"busy","image":"`+mainjob.Image+`","resources":{"requests":{"cpu":"200m"}}}]}}`)
	await.NoError(t, ctx, 0, "b uses 200m itself", room("300m"))
	labtest.Output(t, ctx, b, "rivulet", "kubectl", "delete", "pod", "busy", "--wait")
	await.NoError(t, ctx, 0, "b has given them back", room("500m"))
}

// addresses asks the away pod at the address home knows, and has the away pod ask all pods at
// the addresses that home knows, its own among them.
func addresses(t *testing.T, ctx context.Context, s *mainjob.Story, pods []corev1.Pod, home, away *corev1.Pod) {
	awayIP := netip.MustParseAddr(away.Status.PodIP)
	if netip.MustParsePrefix("10.42.0.0/16").Contains(awayIP) {
		t.Errorf("%s has the address %s at home, which is in home's own pod network", away.Name, awayIP)
	}
	got, err := s.Ask(ctx, home.Name, "http://"+awayIP.String()+":8080/", 3)
	if err != nil || got[away.Name] != 3 {
		t.Errorf("home pod asked %s: %v, %v; want 3 answers of %s", awayIP, got, err, away.Name)
	}
	// Its Service at the provider has as many endpoints as at home.
	provider := devices[away.Spec.NodeName]
	there := labtest.Output(t, ctx, provider, "rivulet", "kubectl", "get", "endpointslices", "-n", labtest.Twin(t, ctx, provider, "lab"), "-l", "kubernetes.io/service-name=web",
		"-o", "jsonpath={.items[*].endpoints[*].addresses[0]}")
	if n := len(strings.Fields(there)); n != len(pods) {
		t.Fatalf("%s knows %d endpoints of web, want %d: %q", provider.Name, n, len(pods), there)
	}
	out := labtest.Output(t, ctx, devices["a"], "rivulet", "kubectl", "get", "endpointslices", "-n", "lab", "-l", "kubernetes.io/service-name=web",
		"-o", "jsonpath={.items[*].endpoints[*].addresses[0]}")
	addrs := strings.Fields(out)
	if len(addrs) != len(pods) {
		t.Fatalf("home knows %d endpoints of web, want %d: %q", len(addrs), len(pods), out)
	}
	answered := map[string]int{}
	for _, addr := range addrs {
		got, err := s.Ask(ctx, away.Name, "http://"+addr+":8080/", 1)
		if err != nil {
			t.Errorf("away pod asked %s: %v", addr, err)
		}
		for who := range got {
			answered[who]++
		}
	}
	for _, p := range pods {
		if answered[p.Name] != 1 {
			t.Errorf("asked at every address home knows, %s on %s answered %d times, want once", p.Name, p.Spec.NodeName, answered[p.Name])
		}
	}
}

func exec(t *testing.T, ctx context.Context, away *corev1.Pod) {
	a := devices["a"]
	in := []string{"rivulet", "kubectl", "exec", "-n", "lab"}
	out := labtest.Output(t, ctx, a, "sh", "-c", "printf 'one\\ntwo\\n' | "+strings.Join(append(in, "-i", away.Name, "--", "web", "echo"), " "))
	if out != "echo one\necho two\n" {
		t.Errorf("exec -i: %q", out)
	}
	out, err := a.Run(ctx, "sh", "-c", strings.Join(append(in, away.Name, "--", "sh", "-c", "'exit 7'"), " ")+"; echo $?")
	if err != nil || strings.TrimSpace(out) != "7" {
		t.Errorf("exit code of exec: %q, %v; want 7", out, err)
	}
	// script gives kubectl a terminal of its own; its window size must arrive too, a moment after the program has started.
	size := "test -t 0 || exit 1; for i in $(busybox seq 50); do s=$(busybox stty size); test \"$s\" = \"33 77\" && break; sleep 0.1; done; echo $s"
	out = labtest.Output(t, ctx, a, "script", "-qec", "stty rows 33 cols 77; "+strings.Join(append(in, "-it", away.Name, "--", "sh", "-c", "'"+size+"'"), " "), "/dev/null")
	if !strings.Contains(out, "33 77") {
		t.Errorf("exec -it: %q, want the terminal's size, 33 77", out)
	}
}

func portForward(t *testing.T, ctx context.Context, away *corev1.Pod) {
	out := labtest.Output(t, ctx, devices["a"], "sh", "-c", `
		rivulet kubectl port-forward -n lab pod/`+away.Name+` 18080:8080 >/tmp/pf.log 2>&1 &
		pf=$!
		for i in $(seq 100); do grep -q Forwarding /tmp/pf.log && break; sleep 0.1; done
		for i in 1 2 3; do busybox wget -qO- http://127.0.0.1:18080/ || cat /tmp/pf.log; done
		kill $pf`)
	if n := strings.Count(out, `"pod":"`+away.Name+`"`); n != 3 {
		t.Errorf("through port-forward: %q, want 3 answers of %s", out, away.Name)
	}
}

func leavesNothing(t *testing.T, ctx context.Context) {
	labtest.Output(t, ctx, devices["a"], "rivulet", "kubectl", "delete", "namespace", "lab", "--wait", "--timeout=90s")
	await.NoError(t, ctx, 0, "nothing left at providers", func() error {
		for _, d := range []string{"b", "c"} {
			out, err := devices[d].Kubectl(ctx, "get", "namespaces,pods,services,endpointslices,replicasets,rolebindings", "-A", "-l", "rivulet.dev/origin", "-o", "name")
			if err != nil {
				return err
			}
			if strings.TrimSpace(out) != "" {
				return fmt.Errorf("%s still has %s", d, strings.Join(strings.Fields(out), " "))
			}
			ns, err := devices[d].Kubectl(ctx, "get", "namespaces", "-o", "jsonpath={.items[*].metadata.name}")
			if err != nil {
				return err
			}
			if i := slices.IndexFunc(strings.Fields(ns), func(n string) bool { return strings.HasPrefix(n, "lab") }); i >= 0 {
				return fmt.Errorf("%s still has the namespace %s", d, strings.Fields(ns)[i])
			}
		}
		return nil
	})
}

// get reads what kubectl get prints on d into an object or a list.
func get(ctx context.Context, d *lab.Device, into any, args ...string) error {
	out, err := d.Kubectl(ctx, append(append([]string{"get"}, args...), "-o", "json")...)
	if err != nil {
		return err
	}
	return json.Unmarshal([]byte(out), into)
}

func firstLines(s string) string {
	if len(s) > 200 {
		return s[:200] + "…"
	}
	return s
}
