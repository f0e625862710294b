package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"rivulet/offload/policy"
	"rivulet/test/harness/await"
	"rivulet/test/harness/lab"
	"rivulet/test/programs/bench/internal/device"
	"rivulet/test/programs/bench/internal/figures"
	"rivulet/test/programs/bench/internal/wire"
)

const (
	joinRounds = 2 // of two workers each
	nodeRounds = 5
	nodesIdle  = 4 * time.Minute
)

// nodes: a server and two workers: how long a join takes, what passes between their pods, and what a worker costs.
func (b *bench) nodes(ctx context.Context, s *figures.Section) error {
	s.Title = "Devices of one cluster"
	s.How = fmt.Sprintf("A server and two workers, each with its own copy of the ELF. Join: from the command `rivulet join` on a device that is a cluster of its own to its Node Ready in a watch on the server, %d times. TCP between pods, from the one's address to the other's, on the server and on a worker, through `riv0`, : bare wireguard-go as in `tunnel`, whose nodes are on one cable without a bridge, and without kube-proxy's rules; its two ends are in the cgroups of the two devices, in the same direction, because the kernel divides the cores by cgroup and a server has more to do; %d rounds, rotated, %v each. The idle devices share the cores with both. Memory is read as in `memory`, before that, and without pods; then nobody uses the cluster for %v.", 2*joinRounds, nodeRounds, tunnelFor, nodesIdle)
	own, err := b.stage.Beside("own", device.OwnCopy)
	if err != nil {
		return err
	}
	return b.stage.Lab(ctx, own, 3, nil, func(_ *lab.Lab, ds []*device.Device) error {
		for _, d := range ds {
			if _, err := d.WaitReady(ctx); err != nil {
				return err
			}
		}
		if err := b.joins(ctx, ds[0], ds[1:], s); err != nil {
			return err
		}
		if err := b.idleNodes(ctx, ds, s); err != nil { // before load: the tunnel keeps the buffers that it had
			return err
		}
		return b.betweenNodes(ctx, ds[0], ds[1], s)
	}, func(o *lab.Options) { o.Clusters = []lab.Cluster{{Server: "a", Workers: []string{"a1", "a2"}}} })
}

// joins has the workers join, leave and join again; they have joined at the end.
func (b *bench) joins(ctx context.Context, server *device.Device, workers []*device.Device, s *figures.Section) error {
	var took figures.Samples
	defer func() {
		s.Rows = append(s.Rows, figures.Row{What: "`rivulet join` → node Ready, the longest", Figure: fmt.Sprintf("%.1f s; all: %s", took.Max(), took.Show("%.1f", "s")), Promise: "≤ 20 s", Value: took.Max(), Limit: 20})
	}()
	for i := range joinRounds {
		for _, w := range workers {
			code, err := server.Token(ctx)
			if err != nil {
				return err
			}
			begun := time.Now()
			done := make(chan error, 1)
			go func() {
				_, err := w.Run(ctx, "rivulet", "join", code)
				done <- err
			}()
			at, err := server.WaitNode(ctx, 1, func(n *corev1.Node) bool { return device.Home(n) && n.Name == w.Name })
			if err := errors.Join(err, <-done); err != nil {
				return err
			}
			took = append(took, seconds(at.Sub(begun)))
			b.tell("nodes, join of %s: %.1f s", w.Name, took[len(took)-1])
		}
		if i == joinRounds-1 {
			return nil
		}
		for _, w := range workers {
			if err := leave(ctx, server, w); err != nil {
				return err
			}
		}
	}
	return nil
}

// leave makes a worker a cluster of its own again, and waits until that is ready and the server's is without it.
func leave(ctx context.Context, server, w *device.Device) error {
	if _, err := w.Run(ctx, "rivulet", "leave", "--yes"); err != nil {
		return err
	}
	client, err := server.Client()
	if err != nil {
		return err
	}
	return await.Until(ctx, func() error {
		st, err := w.Status(ctx)
		if err == nil && (st.Member != nil || !st.Ready) {
			err = fmt.Errorf("bench: %s, which has left, waits for %q", w.Name, st.Waiting)
		}
		if err != nil {
			return err
		}
		nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: corev1.LabelHostname + "=" + w.Name + ",!" + policy.VirtualNodeLabel})
		if err == nil && len(nodes.Items) > 0 {
			err = fmt.Errorf("bench: the server still has node %s", w.Name)
		}
		return err
	})
}

// betweenNodes compares what passes between pods of two nodes with bare wireguard-go.
func (b *bench) betweenNodes(ctx context.Context, server, worker *device.Device, s *figures.Section) error {
	client, err := server.Client()
	if err != nil {
		return err
	}
	var pods [2]nodePod
	for i, d := range []*device.Device{server, worker} {
		if _, err := d.Run(ctx, "rivulet", "ctr", "images", "import", "/opt/rivulet/demo-web.tar"); err != nil {
			return err
		}
		if pods[i], err = startPod(ctx, client, d); err != nil {
			return err
		}
		defer pods[i].ns.Close()
	}
	at, far := pods[0], pods[1]
	type way struct {
		name  string
		flows int
		run   func(flows int) (float64, error)
	}
	type direction struct {
		name     string
		from, to nodePod
		ends     []*device.Device
	}
	directions := []direction{{"server → worker", at, far, []*device.Device{server, worker}}, {"worker → server", far, at, []*device.Device{worker, server}}}
	var ways []way // each after what it is compared with
	for _, flows := range []int{1, 4} {
		for _, d := range directions {
			ways = append(ways,
				way{"bare wireguard-go, " + d.name, flows, func(flows int) (float64, error) { return b.bareTCP(ctx, flows, d.ends) }},
				way{d.name, flows, func(flows int) (float64, error) {
					return wire.Between(d.from.ns, d.to.ns, d.from.address, d.to.address, flows, tunnelFor)
				}})
		}
	}
	got := make([]figures.Samples, len(ways))
	defer func() {
		for i, w := range ways {
			row := figures.Row{What: fmt.Sprintf("%s: TCP, flows: %d", w.name, w.flows), Figure: scaled(got[i], 1e-9).Show("%.2f", "Gbit/s")}
			if i%2 > 0 {
				row.Ratio = got[i].Over(got[i-1])
				row.Promise, row.Value, row.Limit, row.AtLeast = "≥ 0.95", row.Ratio.Median(), 0.95, true
			}
			s.Rows = append(s.Rows, row)
		}
	}()
	for round := range nodeRounds {
		for j := range ways {
			i := (round + j) % len(ways)
			bits, err := ways[i].run(ways[i].flows)
			if err != nil {
				return err
			}
			got[i] = append(got[i], bits)
			b.tell("nodes, round %d: %s, %d flows: %.2f Gbit/s", round+1, ways[i].name, ways[i].flows, bits/1e9)
		}
	}
	return nil
}

// bareTCP measures bare wireguard-go from one end to the other, each in the cgroups of a device.
func (b *bench) bareTCP(ctx context.Context, flows int, ends []*device.Device) (bits float64, err error) {
	l, err := wire.Open(ctx, bare, "", b.stage.Dir)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	for i, pid := range l.PIDs() {
		if err := ends[i].Adopt(pid); err != nil {
			return 0, err
		}
	}
	bits, _, err = l.Throughput(flows, tunnelFor)
	return bits, err
}

// nodePod is a pod on a node, from inside.
type nodePod struct {
	ns      *wire.Namespace
	address netip.Addr
}

func startPod(ctx context.Context, client kubernetes.Interface, on *device.Device) (p nodePod, err error) {
	pods, token := client.CoreV1().Pods("default"), false
	_, err = pods.Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "on-" + on.Name}, Spec: corev1.PodSpec{
		NodeSelector: map[string]string{corev1.LabelHostname: on.Name}, AutomountServiceAccountToken: &token,
		Containers: []corev1.Container{{Name: "web", Image: device.Image, ImagePullPolicy: corev1.PullNever}}}}, metav1.CreateOptions{})
	if err != nil {
		return p, fmt.Errorf("bench: %w", err)
	}
	err = await.Until(ctx, func() error {
		pod, err := pods.Get(ctx, "on-"+on.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if !ready(pod) {
			return errors.New("bench: " + waits(pod))
		}
		p.address, err = netip.ParseAddr(pod.Status.PodIP)
		return err
	})
	if err == nil {
		p.ns, err = on.PodNamespace()
	}
	return p, err
}

// idleNodes tells what the parts of a worker and of its server take, and what they write while nobody uses the cluster.
func (b *bench) idleNodes(ctx context.Context, ds []*device.Device, s *figures.Section) error {
	places := []struct {
		name string
		d    *device.Device
	}{{"worker", ds[1]}, {"server", ds[0]}}
	before := map[string]map[string]cost{}
	for _, p := range places {
		_, steady, err := settle(ctx, p.d)
		if err != nil {
			return err
		}
		if !steady {
			s.Notes = append(s.Notes, fmt.Sprintf("The %s was not steady after %v.", p.name, steadyAtMost))
		}
		m, err := weigh(p.d)
		if err != nil {
			return err
		}
		sum := m[kinds[0]]
		for _, k := range kinds[1:] {
			sum = sum.Add(m[k])
		}
		for _, k := range kinds {
			s.Rows = append(s.Rows, figures.Row{What: p.name + ": " + k, Figure: show(m[k])})
		}
		s.Rows = append(s.Rows, figures.Row{What: "**" + p.name + ": all**", Figure: show(sum)})
	}
	for _, p := range places {
		var err error
		if before[p.name], err = costs(p.d); err != nil {
			return err
		}
	}
	begun := time.Now()
	if err := rest(ctx, nodesIdle); err != nil {
		return err
	}
	for _, p := range places {
		after, err := costs(p.d)
		if err != nil {
			return err
		}
		during, written, cpu := seconds(time.Since(begun)), 0.0, 0.0
		for _, k := range kinds {
			written += after[k].written - before[p.name][k].written
			cpu += after[k].cpu - before[p.name][k].cpu
		}
		s.Rows = append(s.Rows, figures.Row{What: p.name + ": written and CPU, idle", Figure: fmt.Sprintf("%.0f kB in %.0f s, %.0f MB a day; %.2f %% of a core", written/1e3, during, written/during*86400/megabyte, 100*cpu/during)})
	}
	return nil
}
