package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"rivulet/offload/policy"
	"rivulet/test/harness/apicount"
	"rivulet/test/harness/fakenodes"
	"rivulet/test/harness/lab"
	"rivulet/test/programs/bench/internal/device"
	"rivulet/test/programs/bench/internal/figures"
)

const (
	awayPods    = 1000
	heldRounds  = 2 // on equal machines
	awayRounds  = 1 // with what the machine has
	awayNodes   = 10
	hollowLabel = "bench.rivulet.dev/hollow"
	atRest      = 15 * time.Second
)

// away: Services, and then many pods at once, on hollow nodes of the provider, so that what is measured
// is what Rivulet and the API servers do and not a kubelet with 1000 containers.
func (b *bench) away(ctx context.Context, s *figures.Section) error {
	s.Title = "Services, and a thousand pods, away"
	s.How = fmt.Sprintf("b has %d hollow nodes: Node objects kept Ready, on which bound pods are said to run at once, without containers; its own node is cordoned. A Deployment of %d on a for b's virtual node, or on b itself; from the request to the last pod Ready in a watch on the cluster asked, interleaved, after one round with 100 that does not count. **On equal machines**, %d rounds: each device, its engine, supervisor, tunnel and containerd together, is held to %.2f cores by its cgroup, for either figure, while load generator and hollow kubelets have what is left. **On this machine**, %d rounds: both clusters share its cores, which the offloaded pods need twice. Writes are what the API servers count (`apiserver_request_total`), leases and nodes left out. Before that, Services of running pods of both clusters: from the request to the first answer over HTTP at the cluster IP, on the device that asks.", awayNodes, awayPods, heldRounds, heldCPUs(), awayRounds)
	m := awayFigures{}
	defer func() { m.rows(s) }()
	return b.stage.Lab(ctx, b.stage.Binary(), 2, nil, func(l *lab.Lab, ds []*device.Device) error {
		places, err := b.places(ctx, ds[0], ds[1])
		if err != nil {
			return err
		}
		figs, names, serviceErr := b.services(ctx, places)
		for i, name := range names {
			s.Rows = append(s.Rows, figures.Row{What: "Service → first answer: " + name, Figure: figs[i].Show("%.2f", "s")})
		}
		b.tell("away: Services: %v", figs)
		stop, err := hollowOut(ctx, places[0], &places[1])
		if err != nil {
			return errors.Join(serviceErr, err)
		}
		defer stop()
		hold := func(cpus float64) func() error { return func() error { return l.SetCPUs(cpus) } }
		for i := range 1 + heldRounds + awayRounds {
			n, to := awayPods, &m.held
			switch {
			case i == 0:
				n, to = 100, nil
			case i > heldRounds:
				to = &m.shared
			}
			for j := range places {
				r := round{at: (i + j) % 2, n: n, race: to, hold: func() error { return nil }, free: func() error { return nil }}
				if to == &m.held {
					r.hold, r.free = hold(heldCPUs()), hold(0)
				}
				if err := m.round(ctx, b, places, r); err != nil {
					return errors.Join(serviceErr, err)
				}
			}
		}
		return serviceErr
	})
}

// hollowOut gives b nodes without containers and closes its own.
func hollowOut(ctx context.Context, home where, provider *where) (stop func(), err error) {
	stop, err = hollowNodes(ctx, provider, awayNodes)
	if err != nil {
		return nil, err
	}
	// The offer counts them: home may send so many.
	_, err = home.device.WaitNode(ctx, 1, func(n *corev1.Node) bool {
		return device.Virtual(n) && n.Status.Allocatable.Pods().Value() >= awayPods
	})
	if err != nil {
		stop()
		return nil, err
	}
	return stop, nil
}

// hollowNodes gives a place n nodes without containers and closes its own.
func hollowNodes(ctx context.Context, p *where, n int) (stop func(), err error) {
	cordon := []byte(`{"spec":{"unschedulable":true}}`)
	own, err := p.client.CoreV1().Nodes().Patch(ctx, p.device.Name, types.MergePatchType, cordon, metav1.PatchOptions{})
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	fast, err := p.device.FastClient()
	if err != nil {
		return nil, err
	}
	var nodes []fakenodes.Node
	for i := range n {
		nodes = append(nodes, fakenodes.Node{Name: fmt.Sprintf("hollow-%d", i), Architecture: own.Status.NodeInfo.Architecture,
			Labels: map[string]string{hollowLabel: "yes"}, Pods: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 42, byte(200 + i), 0}), 24),
			Room: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("4Gi"),
				corev1.ResourceEphemeralStorage: resource.MustParse("10Gi"), corev1.ResourcePods: resource.MustParse("120")}})
	}
	kept, err := fakenodes.Register(ctx, fast, nodes...)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		kept.Run(ctx)
	}()
	p.selector = map[string]string{hollowLabel: "yes"}
	return func() { cancel(); <-done }, nil
}

// awayFigures gathers what the rounds show. Index 0 is home, 1 the provider.
type awayFigures struct {
	held, shared race
	until, whole [2]figures.Samples // writes a pod, offloaded
	kinds        [2]string
	alone        figures.Samples // writes a pod at the provider itself, whole life
	rest         figures.Samples // writes of both while all run
	cpu, life    [2]figures.Samples
	engine       [2]figures.Samples
	grown        [2]figures.Samples // MB
	idle         [2]figures.Samples // per cent of a core
}

// moment is all that is counted at one time.
type moment struct {
	at     time.Time
	writes [2]apicount.Counts
	costs  [2]map[string]cost
	pss    [2]float64
}

func look(ctx context.Context, places []where) (m moment, err error) {
	m.at = time.Now()
	for i, p := range places {
		counts, err := apicount.Writes(ctx, p.client)
		if err != nil {
			return m, err
		}
		m.writes[i] = counts.Without("leases", "nodes")
		if m.costs[i], err = costs(p.device); err != nil {
			return m, err
		}
		weight, err := weigh(p.device)
		if err != nil {
			return m, err
		}
		m.pss[i] = float64(weight["supervisor"].PSS) / megabyte
	}
	return m, nil
}

// changes are writes but events, which are carried home at a slow pace of their own.
func (m moment) changes(since moment) (n int) {
	for i := range m.writes {
		n += m.writes[i].Since(since.writes[i]).Without("events").Sum()
	}
	return n
}

// calm looks when nothing has been written for a while.
func calm(ctx context.Context, places []where) (now moment, err error) {
	for last := (*moment)(nil); ; {
		if now, err = look(ctx, places); err != nil {
			return now, err
		}
		if last != nil && now.changes(*last) <= 2 {
			return now, nil
		}
		copied := now
		last = &copied
		select {
		case <-ctx.Done():
			return now, fmt.Errorf("bench: it is never quiet: %w", ctx.Err())
		case <-time.After(2 * time.Second):
		}
	}
}

// round is one of 1000 pods, or to warm up.
type round struct {
	at, n      int   // index of the place, pods
	race       *race // where it counts; nil: nowhere
	hold, free func() error
}

// round launches pods at one place, looks at what that cost, and removes them.
func (f *awayFigures) round(ctx context.Context, b *bench, places []where, r round) error {
	before, err := calm(ctx, places)
	if err != nil {
		return err
	}
	limit, cancel := context.WithTimeout(ctx, 4*time.Minute)
	defer cancel()
	busy, err := machineLoad()
	if err != nil {
		return err
	}
	if err := r.hold(); err != nil {
		return err
	}
	took, err := launch(limit, places[r.at], r.n)
	if err = errors.Join(err, r.free()); err != nil { // what follows does not count and may be fast
		return errors.Join(err, stuck(ctx, places))
	}
	after, err := machineLoad()
	if err != nil {
		return err
	}
	b.tell("away: %d %s: %.1f s, %.0f %% of the machine's time idle", r.n, places[r.at].name, took, after.idleSince(busy))
	running, err := calm(ctx, places)
	if err != nil {
		return err
	}
	rested := running
	if r.race != nil && r.at == 0 && len(f.rest) == 0 {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(atRest):
		}
		if rested, err = look(ctx, places); err != nil {
			return err
		}
	}
	if err := withdraw(ctx, places[r.at]); err != nil {
		return err
	}
	for _, p := range places {
		if err := noPods(ctx, p.client); err != nil {
			return err
		}
	}
	gone, err := calm(ctx, places)
	if err != nil || r.race == nil {
		return err
	}
	r.race.add(r.at, r.n, took, after.idleSince(busy), before, running)
	f.add(r.at, r.n, before, running, rested, gone)
	b.tell("away: until they run: home %s; provider %s", running.writes[0].Since(before.writes[0]).Each(r.n), running.writes[1].Since(before.writes[1]).Each(r.n))
	b.tell("away: CPU until they run: %v %v", cpuBetween(before.costs[0], running.costs[0]), cpuBetween(before.costs[1], running.costs[1]))
	return nil
}

// add counts what is no matter of how many cores there are.
func (f *awayFigures) add(at, n int, before, running, rested, gone moment) {
	each := func(from, to apicount.Counts) float64 { return float64(to.Since(from).Sum()) / float64(n) }
	if at == 1 {
		f.alone = append(f.alone, each(before.writes[1], gone.writes[1]))
		return
	}
	for i := range 2 {
		f.until[i] = append(f.until[i], each(before.writes[i], running.writes[i]))
		f.whole[i] = append(f.whole[i], each(before.writes[i], gone.writes[i]))
		f.kinds[i] = gone.writes[i].Since(before.writes[i]).Each(n)
		f.cpu[i] = append(f.cpu[i], cpuBetween(before.costs[i], running.costs[i])["supervisor"]*1000/float64(n))
		f.life[i] = append(f.life[i], cpuBetween(before.costs[i], gone.costs[i])["supervisor"]*1000/float64(n))
		f.engine[i] = append(f.engine[i], cpuBetween(before.costs[i], running.costs[i])["engine"]*1000/float64(n))
		f.grown[i] = append(f.grown[i], (running.pss[i]-before.pss[i])*1000/float64(n))
		if pause := seconds(rested.at.Sub(running.at)); pause > 0 {
			f.idle[i] = append(f.idle[i], 100*cpuBetween(running.costs[i], rested.costs[i])["supervisor"]/pause)
		}
	}
	if rested.at != running.at {
		f.rest = append(f.rest, float64(rested.changes(running)))
	}
}

// cpuBetween is CPU time by kind, seconds.
func cpuBetween(from, to map[string]cost) map[string]float64 {
	out := map[string]float64{}
	for k := range to {
		out[k] = to[k].cpu - from[k].cpu
	}
	return out
}

func (f *awayFigures) rows(s *figures.Section) {
	f.held.rows(s, fmt.Sprintf("on equal machines, %.2f cores each", heldCPUs()), true)
	f.shared.rows(s, "on this machine, both clusters on its cores", false)
	if r := &f.shared; len(r.spentDirect) > 0 && len(r.spent[0]) > 0 {
		cores := float64(runtime.NumCPU())
		s.Notes = append(s.Notes, fmt.Sprintf("What sharing this machine is of the second ratio: its %.0f cores cannot do the work of both devices for 1000 away pods in less than %.1f s, two machines like it in %.1f s, and that for 1000 of the provider's own in %.1f s.",
			cores, (r.spent[0].Median()+r.spent[1].Median())/cores, max(r.spent[0].Median(), r.spent[1].Median())/cores, r.spentDirect.Median()/cores))
	}
	for i, side := range []string{"home", "the provider"} {
		s.Rows = append(s.Rows,
			figures.Row{What: "API writes at " + side + ", a pod until it is Ready", Figure: f.until[i].Show("%.1f", "")},
			figures.Row{What: "API writes at " + side + ", a pod until it is gone", Figure: f.whole[i].Show("%.1f", "")},
			figures.Row{What: "supervisor of " + side + ", for 1000 away pods to be Ready", Figure: f.cpu[i].Show("%.1f", "CPU s") + "; until gone " + f.life[i].Show("%.1f", "CPU s")},
			figures.Row{What: "supervisor of " + side + ", with 1000 away pods", Figure: f.grown[i].Show("%.1f", "MB more") + "; " + f.idle[i].Show("%.2f", "% of a core at rest")},
			figures.Row{What: "engine of " + side + ", for 1000 away pods to be Ready", Figure: f.engine[i].Show("%.1f", "CPU s")})
	}
	s.Rows = append(s.Rows,
		figures.Row{What: "API writes, a pod at the provider itself until it is gone", Figure: f.alone.Show("%.1f", "")},
		figures.Row{What: fmt.Sprintf("API writes of both sides in %v but events, %d pods away and at rest", atRest, awayPods), Figure: f.rest.Show("%.0f", ""), Promise: "≤ 2", Value: f.rest.Median(), Limit: 2})
	for i, side := range []string{"home", "the provider"} {
		if f.kinds[i] != "" {
			s.Notes = append(s.Notes, fmt.Sprintf("Writes at %s, a pod: %s.", side, f.kinds[i]))
		}
	}
}

// stuck says what the first pods wait for that do not run, and what is away of them.
func stuck(ctx context.Context, places []where) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
	defer cancel()
	pods, err := places[0].client.CoreV1().Pods(podsNamespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	text, n := "", 0
	for i := range pods.Items {
		p := &pods.Items[i]
		if ready(p) || n == 3 {
			continue
		}
		n++
		conditions, _ := json.Marshal(p.Status.Conditions) // always marshals
		text += fmt.Sprintf("\n%s; conditions %s", waits(p), conditions)
		selector := metav1.ListOptions{LabelSelector: policy.HomeUIDLabel + "=" + string(p.UID)}
		sets, err := places[1].client.AppsV1().ReplicaSets("").List(ctx, selector)
		if err != nil {
			return err
		}
		for _, set := range sets.Items {
			status, _ := json.Marshal(set.Status)
			text += fmt.Sprintf("\n  away: ReplicaSet %s %s", set.Name, status)
		}
		away, err := places[1].client.CoreV1().Pods("").List(ctx, selector)
		if err != nil {
			return err
		}
		for i := range away.Items {
			text += "\n  away: " + waits(&away.Items[i])
		}
	}
	return errors.New("what they wait for:" + text)
}
