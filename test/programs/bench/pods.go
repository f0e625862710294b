package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"rivulet/offload/policy"
	"rivulet/test/harness/lab"
	"rivulet/test/programs/bench/internal/device"
	"rivulet/test/programs/bench/internal/figures"
)

const (
	podsNamespace = "bench"
	oneRounds     = 14
	tenPods       = 10
	tenRounds     = 6
	manyPods      = 50
	manyRounds    = 5
)

// where pods are created: at the provider itself, or at home, bound to the
// provider's virtual node.
type where struct {
	name     string
	device   *device.Device
	client   kubernetes.Interface
	selector map[string]string
	labels   map[string]string // of the namespace
	// namespace is where; empty stands for podsNamespace.
	namespace string
	// spec changes what the pods are, where rules ask for it; nil changes nothing.
	spec func(*corev1.PodSpec)
}

func (p where) in() string {
	if p.namespace != "" {
		return p.namespace
	}
	return podsNamespace
}

// pods: from the creation of a Deployment to its last pod's phase Running, as a
// watch at the place of creation sees it. The containers run on b either way.
func (b *bench) pods(ctx context.Context, s *figures.Section) error {
	s.Title = "Pod creation → Running"
	s.How = fmt.Sprintf("A Deployment on a for b's virtual node (namespace offloaded, `remote`), or the same Deployment on b; both run on b, image there already, no token volume on either. From the request to the last pod Running in a watch on the cluster asked; one pod %d rounds, %d pods %d, %d pods %d, interleaved, each begun at a random moment, after a round that does not count. Ratio of the medians.", oneRounds, tenPods, tenRounds, manyPods, manyRounds)
	sizes := []struct{ pods, rounds int }{{1, oneRounds}, {tenPods, tenRounds}, {manyPods, manyRounds}}
	if b.quick {
		sizes = []struct{ pods, rounds int }{{1, 6}, {manyPods, 2}}
	}
	away, home := map[int]figures.Samples{}, map[int]figures.Samples{}
	defer func() {
		for _, z := range sizes {
			// Not round by round: a single pod takes the length of the kubelet's tick, or not.
			ratio := figures.Samples{away[z.pods].Median() / home[z.pods].Median()}
			if b.quick {
				ratio = away[z.pods].Over(home[z.pods]) // the gate needs the spread
			}
			s.Rows = append(s.Rows,
				figures.Row{What: fmt.Sprintf("offloaded, %d", z.pods), Figure: away[z.pods].Show("%.2f", "s"), Ratio: ratio, Promise: "≤ 1.15", Value: ratio.Median(), Limit: 1.15},
				figures.Row{What: fmt.Sprintf("at the provider itself, %d", z.pods), Figure: home[z.pods].Show("%.2f", "s")})
		}
	}()
	return b.stage.Lab(ctx, b.stage.Binary(), 2, nil, func(_ *lab.Lab, ds []*device.Device) error {
		places, err := b.places(ctx, ds[0], ds[1])
		if err != nil {
			return err
		}
		for _, z := range sizes {
			for i := range z.rounds + 1 {
				for j := range places {
					p := places[(i+j)%2]
					// The kubelet looks at its containers once a second; without dither what
					// came before would decide where in that second a round begins.
					time.Sleep(time.Duration(rand.Int64N(int64(2 * time.Second))))
					took, err := deploy(ctx, p, z.pods)
					if err != nil {
						return err
					}
					for _, other := range places {
						if err := noPods(ctx, other.client); err != nil {
							return err
						}
					}
					if i == 0 {
						continue // warms up
					}
					to := home
					if p.name == "offloaded" {
						to = away
					}
					to[z.pods] = append(to[z.pods], took)
					b.tell("pods, round %d: %d %s: %.2f s", i, z.pods, p.name, took)
				}
			}
		}
		return nil
	})
}

// places waits until both clusters lend to each other, and prepares them.
func (b *bench) places(ctx context.Context, a, provider *device.Device) ([]where, error) {
	for _, d := range []*device.Device{a, provider} {
		if _, _, err := up(ctx, d); err != nil {
			return nil, err
		}
		if _, err := d.WaitNode(ctx, 1, device.Virtual); err != nil {
			return nil, err
		}
	}
	if _, err := provider.Run(ctx, "rivulet", "ctr", "images", "import", "--label", "rivulet.dev/share=true", "/opt/rivulet/demo-web.tar"); err != nil {
		return nil, err
	}
	ca, err := a.Client()
	if err != nil {
		return nil, err
	}
	cb, err := provider.Client()
	if err != nil {
		return nil, err
	}
	nodes, err := ca.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: policy.VirtualNodeLabel})
	if err != nil || len(nodes.Items) != 1 {
		return nil, fmt.Errorf("bench: a has %d virtual nodes: %w", len(nodes.Items), err)
	}
	places := []where{
		{"offloaded", a, ca, map[string]string{policy.VirtualNodeLabel: nodes.Items[0].Labels[policy.VirtualNodeLabel]}, map[string]string{policy.NamespaceLabel: string(policy.Remote)}, "", nil},
		{"at the provider", provider, cb, map[string]string{corev1.LabelHostname: provider.Name}, nil, "", nil},
	}
	for _, p := range places {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: podsNamespace, Labels: p.labels}}
		if _, err := p.client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
			return nil, fmt.Errorf("bench: %w", err)
		}
	}
	return places, nil
}

// deploy creates n pods, waits until all run, deletes them, and returns how long
// they took to run, in seconds.
func deploy(ctx context.Context, p where, n int) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	took, err := launch(ctx, p, n)
	if err != nil {
		return 0, err
	}
	return took, withdraw(ctx, p)
}

// launch creates n pods and returns how long they took to run, in seconds.
func launch(ctx context.Context, p where, n int) (float64, error) {
	pods := p.client.CoreV1().Pods(p.in())
	before, err := pods.List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, fmt.Errorf("bench: %w", err)
	}
	w, err := pods.Watch(ctx, metav1.ListOptions{ResourceVersion: before.ResourceVersion})
	if err != nil {
		return 0, fmt.Errorf("bench: %w", err)
	}
	seen := runs{is: map[string]bool{}}
	begun := time.Now()
	if _, err := p.client.AppsV1().Deployments(p.in()).Create(ctx, deployment(p, n), metav1.CreateOptions{}); err != nil {
		w.Stop()
		return 0, fmt.Errorf("bench: %w", err)
	}
	for {
		at, err := seen.follow(w, n)
		w.Stop()
		if err == nil {
			return seconds(at.Sub(begun)), nil
		}
		if ctx.Err() != nil {
			return 0, fmt.Errorf("bench: %s: %w; %s", p.name, errors.Join(err, ctx.Err()), p.device.Describe())
		}
		// An API server ends the watch of a client that is slower than the changes,
		// and a busy machine makes this one slow. From the beginning, then.
		clear(seen.is)
		if w, err = pods.Watch(ctx, metav1.ListOptions{ResourceVersion: "0"}); err != nil {
			return 0, fmt.Errorf("bench: %w", err)
		}
	}
}

// withdraw begins to delete what launch created.
func withdraw(ctx context.Context, p where) error {
	now := metav1.DeletePropagationForeground
	if err := p.client.AppsV1().Deployments(p.in()).Delete(ctx, "web", metav1.DeleteOptions{PropagationPolicy: &now}); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	return nil
}

// runs are the pods that run, by name.
type runs struct {
	is  map[string]bool
	why string // another does not
}

// follow watches until n of them run.
func (r *runs) follow(w watch.Interface, n int) (time.Time, error) {
	for e := range w.ResultChan() {
		if e.Type == watch.Error {
			return time.Time{}, apierrors.FromObject(e.Object)
		}
		pod, ok := e.Object.(*corev1.Pod)
		if !ok {
			continue
		}
		delete(r.is, pod.Name)
		switch {
		case e.Type == watch.Deleted:
		case ready(pod):
			r.is[pod.Name] = true
		default:
			r.why = waits(pod)
		}
		if len(r.is) == n {
			return time.Now(), nil
		}
	}
	return time.Time{}, fmt.Errorf("%d of %d pods ran when the watch ended: %s", len(r.is), n, r.why)
}

// ready is Running and Ready, which without probes is the same moment.
func ready(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodRunning && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// waits says what a pod waits for by its newest status: an older one may be long over.
func waits(p *corev1.Pod) string {
	why := fmt.Sprintf("%s on %q is %s %s %s", p.Name, p.Spec.NodeName, p.Status.Phase, p.Status.Reason, p.Status.Message)
	for _, c := range p.Status.ContainerStatuses {
		if w := c.State.Waiting; w != nil {
			why += fmt.Sprintf("; container %s: %s %s", c.Name, w.Reason, w.Message)
		}
	}
	return why
}

// noPods waits until everything that was deployed is gone, twins too.
func noPods(ctx context.Context, client kubernetes.Interface) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	tick := time.NewTicker(300 * time.Millisecond)
	defer tick.Stop()
	for {
		left, err := deployed(ctx, client)
		if err == nil && left == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("bench: %d pods and their owners do not go away: %w", left, errors.Join(err, ctx.Err()))
		case <-tick.C:
		}
	}
}

// deployed counts pods and what they come from; the lab has no others.
func deployed(ctx context.Context, client kubernetes.Interface) (int, error) {
	pods, err := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, err
	}
	sets, err := client.AppsV1().ReplicaSets("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, err
	}
	deployments, err := client.AppsV1().Deployments("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, err
	}
	return len(pods.Items) + len(sets.Items) + len(deployments.Items), nil
}

func deployment(p where, n int) *appsv1.Deployment {
	replicas, grace := int32(n), int64(0)
	// Away pods get no token of the provider. With one at the provider itself, its
	// volume would be what is measured, to our advantage.
	token := false
	labels := map[string]string{"app": "web"}
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.DeploymentSpec{Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
				NodeSelector: p.selector, TerminationGracePeriodSeconds: &grace, AutomountServiceAccountToken: &token,
				Containers: []corev1.Container{{Name: "web", Image: device.Image, ImagePullPolicy: corev1.PullNever}},
			}},
		},
	}
	if p.spec != nil {
		p.spec(&d.Spec.Template.Spec)
	}
	return d
}
