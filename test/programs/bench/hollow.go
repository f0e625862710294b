package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/test/harness/apicount"
	"rivulet/test/harness/lab"
	"rivulet/test/programs/bench/internal/device"
	"rivulet/test/programs/bench/internal/figures"
	"rivulet/test/programs/bench/internal/procs"
)

const (
	serverNodes = 20
	serverPods  = 1000
	serverLists = 30
	serverRest  = 30 * time.Second
)

// hollow: one server with many nodes and pods: how long its API takes, and how large its engine gets.
func (b *bench) hollow(ctx context.Context, s *figures.Section) error {
	s.Title = "A server with twenty nodes and a thousand pods"
	s.How = fmt.Sprintf("One device with %d hollow nodes (as in `away`), its own node cordoned; hollow kubelets and load run beside it on the same cores. When nothing is written any more after the start: a Deployment of %d pods until all are Ready, %v of rest, %d lists of all pods, and its deletion. Latency is what the API server counts in `apiserver_request_duration_seconds` in that time, of the calls that Kubernetes' SLO bounds (99th percentile of each resource and verb: changes and reads of one object ≤ 1 s, lists ≤ 30 s), without watches, connections, deletions of collections.", serverNodes, serverPods, serverRest, serverLists)
	return b.stage.Lab(ctx, b.stage.Binary(), 1, nil, func(_ *lab.Lab, ds []*device.Device) error {
		d := ds[0]
		if _, err := d.WaitReady(ctx); err != nil {
			return err
		}
		client, err := d.FastClient()
		if err != nil {
			return err
		}
		if _, err := client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: podsNamespace}}, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("bench: %w", err)
		}
		place := where{name: "on hollow nodes", device: d, client: client}
		stop, err := hollowNodes(ctx, &place, serverNodes)
		if err != nil {
			return err
		}
		defer stop()
		return b.thousand(ctx, place, s)
	})
}

func (b *bench) thousand(ctx context.Context, p where, s *figures.Section) error {
	if _, err := calm(ctx, []where{p}); err != nil { // the engine's start is over
		return err
	}
	empty, err := engineOf(p.device)
	if err != nil {
		return err
	}
	before, err := apicount.Latency(ctx, p.client)
	if err != nil {
		return err
	}
	took, err := launch(ctx, p, serverPods)
	if err != nil {
		return err
	}
	b.tell("hollow: %d pods on %d nodes Ready after %.1f s", serverPods, serverNodes, took)
	if err := rest(ctx, serverRest); err != nil {
		return err
	}
	full, err := engineOf(p.device)
	if err != nil {
		return err
	}
	for range serverLists {
		list, err := p.client.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
		if err != nil {
			return fmt.Errorf("bench: %w", err)
		}
		if len(list.Items) != serverPods {
			return fmt.Errorf("bench: %d pods are listed, not %d", len(list.Items), serverPods)
		}
	}
	if err := errors.Join(withdraw(ctx, p), noPods(ctx, p.client)); err != nil {
		return err
	}
	after, err := apicount.Latency(ctx, p.client)
	if err != nil {
		return err
	}
	s.Rows = append(s.Rows, figures.Row{What: fmt.Sprintf("%d pods created → all Ready", serverPods), Figure: fmt.Sprintf("%.1f s", took)})
	s.Rows = append(s.Rows, latencyRows(after.Since(before))...)
	s.Rows = append(s.Rows, figures.Row{What: "engine, no pods", Figure: show(empty.Memory)},
		figures.Row{What: fmt.Sprintf("engine, %d pods", serverPods), Figure: fmt.Sprintf("%s; peak resident %.0f MB", show(full.Memory), float64(full.peak)/megabyte)})
	return nil
}

// engineMemory is that of an engine now, and its largest resident size so far.
type engineMemory struct {
	procs.Memory
	peak uint64
}

func engineOf(d *device.Device) (m engineMemory, err error) {
	byKind, err := d.Processes()
	if err == nil && len(byKind["engine"]) != 1 {
		err = fmt.Errorf("bench: %s has %d engines", d.Name, len(byKind["engine"]))
	}
	if err != nil {
		return m, err
	}
	pid := byKind["engine"][0].PID
	m.Memory, err = procs.MemoryOf(pid)
	if err == nil {
		m.peak, err = procs.Peak(pid)
	}
	return m, err
}

// latencyRows are the calls by verb, each with the resource that has the slowest 99th percentile.
func latencyRows(all apicount.Latencies) (rows []figures.Row) {
	type verb struct {
		calls apicount.Durations
		worst apicount.Call
		p99   float64
	}
	verbs := map[string]*verb{}
	for call, d := range all {
		name := call.Verb + " of one object"
		if call.Limit() > 1 {
			name = call.Verb
		}
		v := verbs[name]
		if v == nil {
			v = &verb{calls: apicount.Durations{}}
			verbs[name] = v
		}
		v.calls.Add(d)
		if p99 := d.Quantile(0.99); p99 > v.p99 || v.worst == (apicount.Call{}) {
			v.worst, v.p99 = call, p99
		}
	}
	for _, name := range slices.Sorted(maps.Keys(verbs)) {
		v := verbs[name]
		limit := v.worst.Limit()
		rows = append(rows, figures.Row{What: name, Figure: fmt.Sprintf("p50 %.1f ms, p99 %.0f ms of %d calls; slowest %s, p99 %.0f ms of %d", 1e3*v.calls.Quantile(0.5), 1e3*v.calls.Quantile(0.99), v.calls.Count(), v.worst.Resource, 1e3*v.p99, all[v.worst].Count()),
			Promise: fmt.Sprintf("p99 ≤ %.0f s", limit), Value: v.p99, Limit: limit})
	}
	return rows
}
