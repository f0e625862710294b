package pod

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"rivulet/fabric/panics"
	"rivulet/offload/consumer/pod/translate"
	"rivulet/offload/consumer/pod/twin"
	"rivulet/offload/foreign"
	"rivulet/offload/policy"
)

// Usage is the resource usage of one pod of home on its target.
type Usage struct {
	Namespace, Name string
	UID             types.UID
	node            string
	Started         time.Time
	At              time.Time // when it was measured, by the target's clock
	Containers      []ContainerUsage
}

// ContainerUsage is that of one of its containers.
type ContainerUsage struct {
	Name    string
	Started time.Time // zero if it does not run
	CPU     uint64    // billionths of a core
	Memory  uint64    // bytes of working set
}

// Usage reads the usage of one virtual node's pods from the target's resource metrics API, under their names at home.
// With an error it may be incomplete.
func (x *index) Usage(ctx context.Context, node string) ([]Usage, error) {
	if !x.cfg.Nodes.Up() {
		return nil, fmt.Errorf("offload: %s does not answer; see rivulet peers, or rivulet burst list", x.cfg.Target.Name())
	}
	watched := x.twins.List()
	var mu sync.Mutex
	var out []Usage
	var errs []error
	var wg sync.WaitGroup
	for _, t := range watched {
		wg.Go(func() {
			defer panics.To(func(err error) {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
			})
			used, err := t.Metrics(ctx, x.cfg.Home.ID)
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, err)
			for i := range used {
				if u, ok := x.usageAtHome(t, &used[i]); ok && u.node == node {
					out = append(out, u)
				}
			}
		})
	}
	wg.Wait()
	return out, errors.Join(errs...)
}

// usageAtHome finds the home pod of a measured one. Of several, during a replacement, only the current one counts.
func (x *index) usageAtHome(t *twin.Twin, m *v1beta1.PodMetrics) (Usage, bool) {
	away := t.Pod(m.Name)
	if away == nil || foreign.Quantities(m) != nil {
		return Usage{}, false
	}
	home := x.home(types.NamespacedName{Namespace: t.Home, Name: away.Annotations[policy.HomePodAnnotation]})
	if home == nil || string(home.UID) != away.Labels[policy.HomeUIDLabel] || translate.Current(t.PodsOf(home.UID)) != away {
		return Usage{}, false
	}
	u := Usage{Namespace: home.Namespace, Name: home.Name, UID: home.UID, node: home.Spec.NodeName, At: m.Timestamp.Time}
	if home.Status.StartTime != nil {
		u.Started = home.Status.StartTime.Time
	}
	var measured bool
	u.Containers, measured = containersAtHome(home, m.Containers)
	return u, measured
}

// containersAtHome returns the usage of the containers of home's spec that keep running, native sidecars included, and
// not of those that the target added. It is false if one of them that runs has no figure: a partial sum would mislead
// an autoscaler, which divides by the requests of all of them.
func containersAtHome(home *corev1.Pod, all []v1beta1.ContainerMetrics) (out []ContainerUsage, complete bool) {
	for c, status := range translate.KeepRunning(home) {
		started := startOf(status)
		i := slices.IndexFunc(all, func(m v1beta1.ContainerMetrics) bool { return m.Name == c.Name })
		switch {
		case i >= 0:
			out = append(out, ContainerUsage{Name: c.Name, Started: started,
				CPU: uint64(max(0, all[i].Usage.Cpu().ScaledValue(-9))), Memory: uint64(max(0, all[i].Usage.Memory().Value()))})
		case !started.IsZero():
			return nil, false
		}
	}
	return out, len(out) > 0
}

func startOf(c *corev1.ContainerStatus) time.Time {
	if c == nil || c.State.Running == nil {
		return time.Time{}
	}
	return c.State.Running.StartedAt.Time
}
