package partition

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"rivulet/offload/policy"
)

// observer watches the pods of both clusters and knows of each container when it ran,
// told by the kubelet that ran it, and which pods were deleted. A deletion that happened while an API
// server was away shows when it is back.
type observer struct {
	mu      sync.Mutex
	runs    map[string]*run   // by container ID
	deleted []string          // "a lab/web-1 (uid)"
	rounds  map[string]string // label "round" as last seen, by device: how far it has seen
}

// run is one life of a container.
type run struct {
	workload string // namespace of home, label app
	where    string // device
	pod      string // name of the pod there
	from, to time.Time
}

func (r run) String() string {
	return fmt.Sprintf("%s on %s %s–%s", r.pod, r.where, r.from.Format(time.TimeOnly), r.to.Format(time.TimeOnly))
}

func observe(t *testing.T, ctx context.Context, clients map[string]kubernetes.Interface) *observer {
	t.Helper()
	ctx, stop := context.WithCancel(ctx)
	t.Cleanup(stop)
	o := &observer{runs: map[string]*run{}, rounds: map[string]string{}}
	for device, c := range clients {
		pods := informers.NewSharedInformerFactory(c, 0).Core().V1().Pods().Informer()
		see := func(obj any) { o.see(device, obj.(*corev1.Pod)) }
		if _, err := pods.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: see,
			UpdateFunc: func(_, obj any) { see(obj) },
			DeleteFunc: func(obj any) {
				if d, ok := obj.(cache.DeletedFinalStateUnknown); ok {
					obj = d.Obj
				}
				o.gone(device, obj.(*corev1.Pod))
			}}); err != nil {
			t.Fatal(err)
		}
		go pods.RunWithContext(ctx)
		if !cache.WaitForCacheSync(ctx.Done(), pods.HasSynced) {
			t.Fatal("no list of pods")
		}
	}
	return o
}

// workload names what a pod belongs to as home does.
func workload(p *corev1.Pod) string {
	ns := p.Annotations[policy.HomeNamespaceAnnotation]
	if ns == "" {
		ns = p.Namespace
	}
	return ns + "/" + p.Labels["app"]
}

func (o *observer) see(device string, p *corev1.Pod) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if r := p.Labels["round"]; r != "" {
		o.rounds[device] = r
	}
	if p.Spec.NodeName != device {
		return // told by who runs it
	}
	for _, c := range p.Status.ContainerStatuses {
		for _, s := range []corev1.ContainerState{c.State, c.LastTerminationState} {
			switch {
			case s.Running != nil:
				if o.runs[c.ContainerID] == nil {
					o.runs[c.ContainerID] = &run{workload: workload(p), where: device, pod: p.Name, from: s.Running.StartedAt.Time}
				}
			case s.Terminated != nil && s.Terminated.ContainerID != "":
				o.runs[s.Terminated.ContainerID] = &run{workload(p), device, p.Name, s.Terminated.StartedAt.Time, s.Terminated.FinishedAt.Time}
			}
		}
	}
}

func (o *observer) gone(device string, p *corev1.Pod) {
	o.see(device, p)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.deleted = append(o.deleted, fmt.Sprintf("%s %s/%s (%s)", device, p.Namespace, p.Name, p.UID))
	for _, c := range p.Status.ContainerStatuses {
		if r := o.runs[c.ContainerID]; r != nil && r.where == device && r.to.IsZero() {
			r.to = time.Now()
		}
	}
}

// of lists the runs of a workload, the first first.
func (o *observer) of(workload string) []run {
	o.mu.Lock()
	defer o.mu.Unlock()
	var out []run
	for _, r := range o.runs {
		if r.workload == workload {
			out = append(out, *r)
		}
	}
	slices.SortFunc(out, func(x, y run) int { return x.from.Compare(y.from) })
	return out
}

// deletions lists the pods that were deleted on either side.
func (o *observer) deletions() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.deleted)
}

// upTo waits until both watches have shown the label with this value, and so all that
// was before it.
func (o *observer) upTo(round string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, device := range []string{"a", "b"} {
		if o.rounds[device] != round {
			return fmt.Errorf("%s shows %q, not %q", device, o.rounds[device], round)
		}
	}
	return nil
}

// twice is an error if two containers ran at the same time; the kubelet's times are
// whole seconds.
func twice(runs []run) error {
	for i, x := range runs {
		for _, y := range runs[i+1:] {
			if (x.to.IsZero() || y.from.Before(x.to)) && (y.to.IsZero() || x.from.Before(y.to)) {
				return fmt.Errorf("ran twice at the same time: %s, %s", x, y)
			}
		}
	}
	return nil
}
