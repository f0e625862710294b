// Package tiny tests that a board of 512 MB works: with a peer and three pods, of which one is away, for some minutes
// and through a restart of the engine, without a process that the kernel ended for lack of memory.
package tiny

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"rivulet/test/harness/await"
	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
	"rivulet/test/harness/mainjob"
)

// most is how much all processes of Rivulet may take, bytes of PSS: the rest is for the kernel, pods and their shims.
// 350 MB are wanted, which make bench measures (docs/design/bench.md). The devices of a lab share the pages of one ELF,
// and how many of them are mapped changes the sum by 30 MB.
const most = uint64(380e6)

func TestBoardOf512MB(t *testing.T) {
	ctx := suite.Bounded(t, 8*time.Minute)
	a, b := suite.Devices["a"], suite.Devices["b"]
	const ns = "tiny"
	pod := func(name, node string) string {
		return fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q,"namespace":%q},"spec":{"nodeSelector":{"kubernetes.io/hostname":%q},"terminationGracePeriodSeconds":1,
"containers":[{"name":"web","image":%q,"resources":{"requests":{"cpu":"10m","memory":"8Mi"}}}]}}`, name, ns, node, mainjob.Image)
	}
	list := `{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"tiny","labels":{"rivulet.dev/offload":"any"}}},` +
		strings.Join([]string{pod("home-1", "a"), pod("home-2", "a"), pod("away", "b")}, ",") + `]}`
	await.NoError(t, ctx, time.Minute, "three pods are created", func() error {
		_, err := a.Run(ctx, "sh", "-c", `printf %s "$1" | rivulet kubectl apply -f -`, "sh", list)
		return err
	})
	run := func(what string) {
		await.NoError(t, ctx, 2*time.Minute, what, func() error {
			out, err := a.Kubectl(ctx, "-n", ns, "get", "pods", "-o", `jsonpath={range .items[*]}{.metadata.name}={.spec.nodeName}={.status.conditions[?(@.type=="Ready")].status}{.status.containerStatuses[0].restartCount}{"\n"}{end}`)
			if err == nil && strings.TrimSpace(out) != "away=b=True0\nhome-1=a=True0\nhome-2=a=True0" {
				err = fmt.Errorf("%s", out)
			}
			return err
		})
	}
	run("all are ready, one of them on b")

	begun := time.Now()
	var peak uint64
	await.NoError(t, ctx, 3*time.Minute, "two minutes have passed", func() error {
		if all := labtest.Status(t, ctx, a).Footprint.PSS(); all > peak {
			peak = all
		}
		if since := time.Since(begun); since < 2*time.Minute {
			return fmt.Errorf("%s", since)
		}
		return nil
	})
	after := labtest.Status(t, ctx, a)
	for _, p := range after.Footprint.Processes {
		t.Logf("%-10s %d MB, private %d", p.Name, p.PSS/1e6, p.Private/1e6)
	}
	t.Logf("%d MB in all, %d at most", after.Footprint.PSS()/1e6, peak/1e6)
	if all := after.Footprint.PSS(); all > most {
		t.Errorf("%d MB in all, want at most %d", all/1e6, most/1e6)
	}

	pid := after.PIDs["engine"]
	labtest.Must(t, ctx, a, "kill", "-KILL", fmt.Sprint(pid))
	await.NoError(t, ctx, 2*time.Minute, "the engine is there again", func() error {
		st := labtest.Status(t, ctx, a)
		if st.PIDs["engine"] == pid || !st.Ready {
			return fmt.Errorf("engine %d, ready %v", st.PIDs["engine"], st.Ready)
		}
		return nil
	})
	run("all are still ready, and none was restarted")
	for _, d := range []*lab.Device{a, b} {
		if n := ended(t, ctx, d); n != "0" {
			t.Errorf("%s: the kernel ended %s processes for lack of memory", d.Name, n)
		}
	}
}

// ended is how many processes of a device the kernel has ended for lack of memory.
func ended(t *testing.T, ctx context.Context, d *lab.Device) string {
	t.Helper()
	out := labtest.Output(t, ctx, d, "sh", "-c", "cat /sys/fs/cgroup/memory/memory.oom_control /sys/fs/cgroup/memory.events 2>/dev/null || true")
	m := regexp.MustCompile(`(?m)^oom_kill (\d+)$`).FindStringSubmatch(out)
	if m == nil {
		t.Fatalf("%s has no count of such processes: %q", d.Name, out)
	}
	return m[1]
}
