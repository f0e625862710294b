package gatewaypod

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"rivulet/fabric/changes"
	"rivulet/offload/foreign"
	"rivulet/offload/watch"
)

// forgetAfter is how long a pod's address is kept after the pod was last seen.
const forgetAfter = 2 * time.Minute

// followPods tracks which pod is the gateway, and which addresses still belong to home's pods.
func (g *Gateway) followPods(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	pods := foreign.Informer(g.kept, g.campus, g.campus.CoreV1().Pods(g.cfg.Namespace), &corev1.Pod{}, labels.SelectorFromSet(g.cfg.Labels).String(), watch.Unmanaged)
	turned := make(chan struct{}, 1)
	turn := func() {
		changes.Poke(turned)
	}
	if _, err := pods.AddEventHandler(watch.Changes(turn)); err != nil {
		return fmt.Errorf("gateway: %w", err)
	}
	running.Go(func() { pods.RunWithContext(ctx) })
	if !cache.WaitForCacheSync(ctx.Done(), pods.HasSynced) {
		return ctx.Err()
	}
	for {
		all, err := corelisters.NewPodLister(pods.GetIndexer()).List(labels.Everything())
		if err != nil {
			return fmt.Errorf("gateway: %w", err)
		}
		g.inspect(all)
		if err := g.repair(ctx, all); err != nil {
			g.problem("objects", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-turned:
		case <-time.After(again(all, g.name)):
		}
	}
}

// again is when to check without an event: soon while there is no pod.
func again(all []*corev1.Pod, name string) time.Duration {
	for _, p := range all {
		if p.Labels[podLabel] == name {
			return forgetAfter / 2
		}
	}
	return 5 * time.Second
}

// repair makes the Deployment again if it was deleted.
func (g *Gateway) repair(ctx context.Context, all []*corev1.Pod) error {
	for _, p := range all {
		if p.Labels[podLabel] == g.name {
			return nil
		}
	}
	err := g.ensure(ctx)
	if err == nil {
		g.problem("objects", g.refused(ctx))
	}
	return err
}

// refused is why the campus makes no pod of the Deployment, such as a quota or a rule of the namespace.
func (g *Gateway) refused(ctx context.Context) error {
	d, err := g.campus.AppsV1().Deployments(g.cfg.Namespace).Get(ctx, g.name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, c := range d.Status.Conditions {
		if c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue {
			return fmt.Errorf("gateway: the campus makes no pod: %s", c.Message)
		}
	}
	return nil
}

func (g *Gateway) inspect(all []*corev1.Pod) {
	g.mu.Lock()
	defer g.mu.Unlock()
	there := map[netip.Addr]bool{}
	var gateway *corev1.Pod
	why := "the gateway's pod has not been made yet"
	for _, p := range all {
		if p.Labels[podLabel] == g.name {
			switch {
			case p.DeletionTimestamp != nil:
			case running(p) && (gateway == nil || gateway.CreationTimestamp.Before(&p.CreationTimestamp)):
				gateway = p
			default:
				why = waiting(p)
			}
			continue
		}
		if ip, err := netip.ParseAddr(p.Status.PodIP); err == nil && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
			there[ip.Unmap()] = true
		}
	}
	name := ""
	if gateway != nil {
		name = gateway.Name
		delete(g.problems, "pod")
	} else {
		g.problems["pod"] = why
	}
	changed := name != g.pod
	g.pod = name
	if g.table.keep(there, time.Now(), forgetAfter) {
		g.renew()
	}
	if changed {
		g.subs.Notify()
	}
}

func running(p *corev1.Pod) bool {
	for _, c := range p.Status.ContainerStatuses {
		if c.Name == "gateway" {
			return p.Status.Phase == corev1.PodRunning && c.State.Running != nil
		}
	}
	return false
}

// waiting is why a pod does not run.
func waiting(p *corev1.Pod) string {
	for _, c := range p.Status.ContainerStatuses {
		if w := c.State.Waiting; w != nil && w.Reason != "" {
			return fmt.Sprintf("the gateway's pod %s waits: %s %s", p.Name, w.Reason, w.Message)
		}
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return fmt.Sprintf("the gateway's pod %s is not placed: %s", p.Name, c.Message)
		}
	}
	return fmt.Sprintf("the gateway's pod %s does not run yet", p.Name)
}
