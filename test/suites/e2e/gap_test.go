package e2e

import (
	"bufio"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
)

// A gauge asks one question again and again from a pod's network namespace, past
// the API server and containerd, which may be away meanwhile.
type gauge struct {
	stop   context.CancelFunc
	answer chan time.Time
	times  []time.Time
	done   chan struct{}
}

// ask begins; the question is a shell command that ends well when there is an answer.
func ask(t *testing.T, ctx context.Context, d *lab.Device, pod *corev1.Pod, question string) *gauge {
	t.Helper()
	ns := strings.TrimSpace(labtest.Output(t, ctx, d, "sh", "-c",
		`for n in /run/netns/cni-* /var/run/netns/cni-*; do test -e $n && nsenter --net=$n ip -o -4 addr | grep -q ' `+pod.Status.PodIP+`/' && echo $n && break; done; true`))
	if ns == "" || strings.ContainsAny(ns, " \n") {
		t.Fatalf("the network namespace of %s is %q", pod.Name, ns)
	}
	ctx, cancel := context.WithCancel(ctx)
	cmd, err := d.Command(ctx, "nsenter", "--net="+ns, "sh", "-c", "while :; do timeout 1 "+question+" >/dev/null 2>&1 && echo yes; sleep 0.1; done")
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	g := &gauge{stop: cancel, answer: make(chan time.Time, 1), done: make(chan struct{})}
	go func() {
		defer close(g.done)
		for s := bufio.NewScanner(out); s.Scan(); {
			now := time.Now()
			g.times = append(g.times, now)
			select {
			case g.answer <- now:
			default:
			}
		}
		cmd.Wait()
	}()
	select {
	case <-g.answer:
	case <-time.After(20 * time.Second):
		t.Fatalf("no answer at all to: %s", question)
	}
	return g
}

// longest ends the asking and returns the longest time without an answer.
func (g *gauge) longest(t *testing.T) (gap time.Duration) {
	t.Helper()
	g.stop()
	<-g.done
	if len(g.times) < 3 {
		t.Fatalf("only %d answers", len(g.times))
	}
	for i := 1; i < len(g.times); i++ {
		gap = max(gap, g.times[i].Sub(g.times[i-1]))
	}
	return gap
}

// undisturbed does something to a device and reports how long its pods went
// without DNS and without an answer from a pod that runs elsewhere.
func undisturbed(t *testing.T, ctx context.Context, d *lab.Device, from, away *corev1.Pod, dnsLimit, awayLimit time.Duration, do func()) {
	t.Helper()
	dns := ask(t, ctx, d, from, "busybox nslookup web.lab.svc.cluster.local 10.43.0.10")
	flow := ask(t, ctx, d, from, fmt.Sprintf(
		`bash -c 'exec 3<>/dev/tcp/%s/8080; printf "GET / HTTP/1.0\r\n\r\n" >&3; grep -q pod <&3'`, away.Status.PodIP))
	do()
	dnsGap, flowGap := dns.longest(t), flow.longest(t)
	t.Logf("longest time without DNS %.1f s, without the pod away %.1f s", dnsGap.Seconds(), flowGap.Seconds())
	if dnsGap > dnsLimit {
		t.Errorf("pods were without DNS for %s, the promise is %s", dnsGap, dnsLimit)
	}
	if flowGap > awayLimit {
		t.Errorf("the pod away did not answer for %s, want the tunnel undisturbed (%s)", flowGap, awayLimit)
	}
}

// killContainerd ends it without warning.
func killContainerd(t *testing.T, ctx context.Context, d *lab.Device) {
	t.Helper()
	labtest.Output(t, ctx, d, "sh", "-c", `for p in /proc/[0-9]*; do case "$(tr '\0' ' ' <$p/cmdline 2>/dev/null)" in containerd\ *) kill -KILL ${p#/proc/} && found=1;; esac; done; test -n "$found"`)
}
