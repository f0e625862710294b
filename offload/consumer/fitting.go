package consumer

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	schedulinghelpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"

	"rivulet/fabric/panics"
	"rivulet/offload/consumer/fit"
	"rivulet/offload/consumer/pod"
	"rivulet/offload/policy"
)

// fitting keeps pods off the virtual nodes of a target on which they do not run. Its methods may be called concurrently.
type fitting struct {
	*Consumer
	target string // its name
}

// Unfit makes admission keep pods with the image off the architecture, and reports whether that is in effect. Where the
// binder is the scheduler, it reads what is learnt; nothing is learnt while no other node could take the pod.
func (c fitting) Unfit(ctx context.Context, namespace, image, arch string) (bool, error) {
	m := fit.New(c.home, c.cfg.Log)
	if !c.cfg.Everywhere {
		kept, err := m.Keeps(ctx, namespace, image, arch)
		if kept {
			return true, nil
		}
		return false, errors.Join(err, m.Learn(ctx, image, arch, time.Now()))
	}
	data, err := m.Known(ctx)
	if err != nil {
		return false, err
	}
	lacking, _ := fit.KeptOff(data, &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Image: image}}}})
	if !slices.ContainsFunc(c.VirtualNodes(), func(v VirtualNode) bool {
		return v.Ready && !v.Cordoned && v.Architecture != arch && lacking[v.Architecture] == ""
	}) {
		return false, pod.ErrNoOther
	}
	return true, m.Learn(ctx, image, arch, time.Now())
}

// Unwelcome makes admission keep pods of an owner off the target, and reports whether that is in effect.
func (c fitting) Unwelcome(ctx context.Context, namespace string, owner metav1.OwnerReference) (bool, error) {
	m := fit.New(c.home, c.cfg.Log)
	if c.cfg.Everywhere {
		return true, m.LearnOwner(ctx, owner.UID, c.target, time.Now())
	}
	kept, err := m.KeepsOwner(ctx, namespace, owner, c.target)
	if kept {
		return true, nil
	}
	return false, errors.Join(err, m.LearnOwner(ctx, owner.UID, c.target, time.Now()))
}

// Elsewhere reports whether a pod that the target refuses may run somewhere else: at home, or away, on a node of another
// target that is reachable and has not refused its owner, too. A pod with claims stays with its data.
func (c fitting) Elsewhere(ctx context.Context, home *corev1.Pod, ns policy.Namespace, away bool) (bool, error) {
	if !c.cfg.Everywhere && (ns.When == policy.Burst || ns.When == policy.Any) {
		return true, nil
	}
	if !away || policy.KeptHome(home) || slices.ContainsFunc(home.Spec.Volumes, func(v corev1.Volume) bool { return v.PersistentVolumeClaim != nil || v.Ephemeral != nil }) {
		return false, nil
	}
	data, err := fit.New(c.home, c.cfg.Log).Known(ctx)
	if err != nil {
		return false, err
	}
	list, err := c.home.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: policy.VirtualNodeLabel})
	if err != nil {
		return false, err
	}
	takes := map[string]bool{}
	for i := range list.Items {
		takes[list.Items[i].Name] = admits(&list.Items[i], home)
	}
	lacking, refusing := fit.KeptOff(data, home)
	return slices.ContainsFunc(c.VirtualNodes(), func(v VirtualNode) bool {
		return v.Ready && !v.Cordoned && v.Target != c.target && ns.Allows(v.Target) && !slices.Contains(refusing, v.Target) &&
			lacking[v.Architecture] == "" && takes[v.Name]
	}), nil
}

// admits reports whether the node matches the pod's node selector and affinity, and the pod tolerates its taints.
func admits(n *corev1.Node, p *corev1.Pod) bool {
	if matches, err := nodeaffinity.GetRequiredNodeAffinity(p).Match(n); err != nil || !matches {
		return false
	}
	_, untolerated := schedulinghelpers.FindMatchingUntoleratedTaint(klog.Background(), n.Spec.Taints, p.Spec.Tolerations, func(t *corev1.Taint) bool {
		return t.Effect != corev1.TaintEffectPreferNoSchedule
	}, false)
	return !untolerated
}

// fitImages expires entries about images and adds those of home's own images.
func (c *Consumer) fitImages(ctx context.Context) error {
	m := fit.New(c.home, c.cfg.Log.With("part", "images"))
	var wg sync.WaitGroup
	defer wg.Wait()
	if c.cfg.Images != nil {
		wg.Go(func() {
			defer panics.To(func(err error) { c.cfg.Log.Error("platforms of images are not foreseen any more", "err", err) })
			_ = m.Foresee(ctx, runtime.GOARCH, c.architectures, c.cfg.Images) // it ends with ctx
		})
	}
	return m.Run(ctx)
}
