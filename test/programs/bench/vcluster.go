package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"rivulet/test/harness/await"
	"rivulet/test/harness/lab"
	"rivulet/test/programs/bench/internal/device"
	"rivulet/test/programs/bench/internal/figures"
	"rivulet/test/programs/bench/internal/procs"
)

const (
	singles     = 10 // virtual clusters that are made, and woken, one after the other
	course      = 30 // those of a course
	soundSleep  = "10s"
	tenantLimit = "512Mi"
	podRounds   = 12
)

// vcluster: virtual clusters of one device: one after the other, and thirty at the same moment.
func (b *bench) vcluster(ctx context.Context, s *figures.Section) error {
	s.Title = "Virtual clusters"
	s.How = fmt.Sprintf("One device. Created: `rivulet vcluster create`, from the command to its end. Woken: a list of namespaces by a client that has no connection yet, to one that sleeps. %d each, one after the other. Idle: one that is awake and that nobody uses for %v. Thirty: as many commands, then as many lists, at the same moment. A pod: a Deployment inside, and one of the host's own, interleaved, each to Running in a watch where it was created.", singles, idleFor)
	return b.stage.Lab(ctx, b.stage.Binary(), 1, nil, func(_ *lab.Lab, ds []*device.Device) error {
		a := ds[0]
		if _, _, err := up(ctx, a); err != nil {
			return err
		}
		if _, err := a.Run(ctx, "rivulet", "ctr", "images", "import", "--label", "rivulet.dev/share=true", "/opt/rivulet/demo-web.tar"); err != nil {
			return err
		}
		for _, step := range []func(context.Context, *device.Device, *figures.Section) error{b.oneByOne, b.idleTenant, b.podInside, b.course} {
			if err := step(ctx, a, s); err != nil {
				return err
			}
		}
		return nil
	})
}

func tenantName(kind string, i int) string { return fmt.Sprintf("%s%02d", kind, i) }

func makeTenant(ctx context.Context, a *device.Device, name, sleep string) error {
	_, err := a.Run(ctx, "rivulet", "vcluster", "create", name, "--sleep", sleep, "--memory", tenantLimit)
	return err
}

func endTenant(ctx context.Context, a *device.Device, name string) error {
	_, err := a.Run(ctx, "rivulet", "vcluster", "delete", name, "--yes")
	return err
}

// asTenant is a client of a virtual cluster, which has no connection yet.
func asTenant(ctx context.Context, a *device.Device, name string) (kubernetes.Interface, error) {
	file := "/root/" + name + ".yaml"
	if _, err := a.Run(ctx, "rivulet", "vcluster", "connect", name, "--kubeconfig", file); err != nil {
		return nil, err
	}
	return a.ClientOf(a.Path(file))
}

// asleep waits until all virtual clusters are.
func asleep(ctx context.Context, a *device.Device) error {
	return await.Until(ctx, func() error {
		out, err := a.Run(ctx, "rivulet", "vcluster", "list", "-o", "json")
		if err != nil {
			return err
		}
		var list []struct{ Name, State string }
		if err := json.Unmarshal([]byte(out), &list); err != nil {
			return fmt.Errorf("bench: %w", err)
		}
		for _, v := range list {
			if v.State != "Asleep" {
				return fmt.Errorf("bench: %s is %s", v.Name, v.State)
			}
		}
		return nil
	})
}

func (b *bench) oneByOne(ctx context.Context, a *device.Device, s *figures.Section) error {
	var created, woken figures.Samples
	for i := range singles {
		begun := time.Now()
		if err := makeTenant(ctx, a, tenantName("v", i), soundSleep); err != nil {
			return err
		}
		created = append(created, seconds(time.Since(begun)))
	}
	s.Rows = append(s.Rows, figures.Row{What: "created, median", Figure: created.Show("%.2f", "s"), Promise: "≤ 3 s", Value: created.Median(), Limit: 3},
		figures.Row{What: "created, 95th percentile", Figure: fmt.Sprintf("%.2f s", created.Quantile(0.95)), Promise: "≤ 3 s", Value: created.Quantile(0.95), Limit: 3})
	clients := make([]kubernetes.Interface, singles)
	for i := range clients {
		var err error
		if clients[i], err = asTenant(ctx, a, tenantName("v", i)); err != nil {
			return err
		}
	}
	if err := asleep(ctx, a); err != nil {
		return err
	}
	for i, c := range clients {
		begun := time.Now()
		if _, err := c.CoreV1().Namespaces().List(ctx, metav1.ListOptions{}); err != nil {
			return fmt.Errorf("bench: wake %s: %w", tenantName("v", i), err)
		}
		woken = append(woken, seconds(time.Since(begun)))
		b.tell("vcluster, wake %d: %.2f s", i, woken[i])
	}
	s.Rows = append(s.Rows, figures.Row{What: "woken, median", Figure: woken.Show("%.2f", "s"), Promise: "≤ 1 s", Value: woken.Median(), Limit: 1},
		figures.Row{What: "woken, 95th percentile", Figure: fmt.Sprintf("%.2f s", woken.Quantile(0.95)), Promise: "≤ 1.5 s", Value: woken.Quantile(0.95), Limit: 1.5})
	for i := range singles {
		if err := endTenant(ctx, a, tenantName("v", i)); err != nil {
			return err
		}
	}
	return nil
}

// idleTenant measures what one costs that is awake and that nobody uses.
func (b *bench) idleTenant(ctx context.Context, a *device.Device, s *figures.Section) error {
	if err := makeTenant(ctx, a, "idle", "0"); err != nil {
		return err
	}
	pause := func(d time.Duration) error {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(d):
			return nil
		}
	}
	if err := pause(idleFor); err != nil { // it gives memory back a while after its start
		return err
	}
	look := func() (p procs.Process, m procs.Memory, written uint64, err error) {
		byKind, err := a.Processes()
		if err == nil && len(byKind["tenant"]) != 1 {
			err = fmt.Errorf("bench: %d processes of virtual clusters run", len(byKind["tenant"]))
		}
		if err != nil {
			return p, m, 0, err
		}
		p = byKind["tenant"][0]
		m, err = procs.MemoryOf(p.PID)
		if err == nil {
			written, err = procs.Written(p.PID)
		}
		return p, m, written, err
	}
	before, _, wrote, err := look()
	if err != nil {
		return err
	}
	if err := pause(idleFor); err != nil {
		return err
	}
	after, m, written, err := look()
	if err != nil {
		return err
	}
	private, cpu, kib := float64(m.Anonymous)/megabyte, 100*seconds(after.CPU-before.CPU)/seconds(idleFor), float64(written-wrote)/1024/idleFor.Minutes()
	s.Rows = append(s.Rows, figures.Row{What: "awake and idle: memory of its own", Figure: fmt.Sprintf("%.0f MB", private), Promise: "≤ 130 MB", Value: private, Limit: 130},
		figures.Row{What: "awake and idle: CPU", Figure: fmt.Sprintf("%.2f %% of a core", cpu), Promise: "≤ 1 %", Value: cpu, Limit: 1},
		figures.Row{What: "awake and idle: written", Figure: fmt.Sprintf("%.0f KiB a minute", kib), Promise: "≤ 10 KiB", Value: kib, Limit: 10})
	return endTenant(ctx, a, "idle")
}

// podInside compares the start of a pod inside with that of the host's own.
func (b *bench) podInside(ctx context.Context, a *device.Device, s *figures.Section) error {
	if err := makeTenant(ctx, a, "pods", "0"); err != nil {
		return err
	}
	inside, err := asTenant(ctx, a, "pods")
	if err != nil {
		return err
	}
	host, err := a.Client()
	if err != nil {
		return err
	}
	samples := map[string]figures.Samples{}
	places := []where{{name: "inside", device: a, client: inside}, {name: "at the host", device: a, client: host}}
	for _, p := range places {
		if _, err := p.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: podsNamespace}}, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("bench: %w", err)
		}
	}
	for i := range podRounds + 1 {
		for _, p := range places {
			took, err := deploy(ctx, p, 1)
			if err == nil {
				err = noPods(ctx, p.client)
			}
			if err != nil {
				return err
			}
			if i > 0 { // the first warms up
				samples[p.name] = append(samples[p.name], took)
				b.tell("vcluster, pod %d %s: %.2f s", i, p.name, took)
			}
		}
	}
	ratio := figures.Samples{samples["inside"].Median() / samples["at the host"].Median()}
	s.Rows = append(s.Rows, figures.Row{What: "a pod inside", Figure: samples["inside"].Show("%.2f", "s"), Ratio: ratio, Promise: "≤ 1.15", Value: ratio.Median(), Limit: 1.15},
		figures.Row{What: "a pod of the host's own", Figure: samples["at the host"].Show("%.2f", "s")})
	return endTenant(ctx, a, "pods")
}

// course has thirty made and woken at the same moment, and what they cost asleep.
func (b *bench) course(ctx context.Context, a *device.Device, s *figures.Section) error {
	quiet, err := supervisorOf(ctx, a)
	if err != nil {
		return err
	}
	together := func(f func(i int) error) (took time.Duration, err error) {
		var wg sync.WaitGroup
		errs := make([]error, course)
		begun := time.Now()
		for i := range course {
			wg.Go(func() { errs[i] = f(i) })
		}
		wg.Wait()
		return time.Since(begun), errors.Join(errs...)
	}
	took, err := together(func(i int) error { return makeTenant(ctx, a, tenantName("s", i), soundSleep) })
	if err != nil {
		return err
	}
	s.Rows = append(s.Rows, figures.Row{What: "thirty created", Figure: fmt.Sprintf("%.1f s", seconds(took)), Promise: "≤ 60 s", Value: seconds(took), Limit: 60})
	clients := make([]kubernetes.Interface, course)
	for i := range clients {
		if clients[i], err = asTenant(ctx, a, tenantName("s", i)); err != nil {
			return err
		}
	}
	if err := asleep(ctx, a); err != nil {
		return err
	}
	sleeping, err := supervisorOf(ctx, a)
	if err != nil {
		return err
	}
	s.Rows = append(s.Rows, figures.Row{What: "thirty asleep: supervisor, beside that of none", Figure: fmt.Sprintf("%+.1f MB, %+.2f %% of a core", sleeping.memory-quiet.memory, sleeping.cpu-quiet.cpu)})
	took, err = together(func(i int) error {
		_, err := clients[i].CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
		return err
	})
	if err != nil {
		return err
	}
	s.Rows = append(s.Rows, figures.Row{What: "thirty woken, the last", Figure: fmt.Sprintf("%.1f s", seconds(took)), Promise: "≤ 45 s", Value: seconds(took), Limit: 45})
	return nil
}

// taken is what a process has, of memory in MB and of a core in percent.
type taken struct{ memory, cpu float64 }

func supervisorOf(ctx context.Context, a *device.Device) (out taken, err error) {
	look := func() (m procs.Memory, cpu time.Duration, err error) {
		byKind, err := a.Processes()
		if err == nil && len(byKind["supervisor"]) != 1 {
			err = fmt.Errorf("bench: %s has %d supervisors", a.Name, len(byKind["supervisor"]))
		}
		if err != nil {
			return m, 0, err
		}
		p := byKind["supervisor"][0]
		m, err = procs.MemoryOf(p.PID)
		return m, p.CPU, err
	}
	_, before, err := look()
	if err != nil {
		return out, err
	}
	select {
	case <-ctx.Done():
		return out, ctx.Err()
	case <-time.After(idleFor):
	}
	m, after, err := look()
	return taken{float64(m.Private) / megabyte, 100 * seconds(after-before) / seconds(idleFor)}, err
}
