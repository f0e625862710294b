package consumer

import (
	"context"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"rivulet/fabric/panics"
	"rivulet/offload/consumer/pod"
	"rivulet/offload/offer"
)

const (
	// DefaultHandBack is how long pods may stay on a target that lends less than they request. It is half of a
	// provider's own period (tenancy.DefaultGrace).
	DefaultHandBack = 5 * time.Minute
	// handBackRetry is the pause after an eviction that a disruption budget refused.
	handBackRetry = 10 * time.Second
)

// handBack evicts the newest pods of a virtual node that lends less than they request, after HandBack, in which they
// may end by themselves. Their controllers replace them, and the scheduler places the new ones where there is capacity.
// Disruption budgets are respected, and pods without a controller stay. Nothing is done while the target is silent.
type handBack struct {
	home  kubernetes.Interface
	node  string
	after time.Duration
	log   *slog.Logger
}

// through evaluates offers and passes them on. failed is called with a panic.
func (h *handBack) through(ctx context.Context, failed func(error), offers <-chan offer.Offer) <-chan offer.Offer {
	out, seen := make(chan offer.Offer, 1), make(chan offer.Offer, 1)
	go func() {
		defer panics.To(failed)
		h.run(ctx, seen)
	}()
	go func() {
		defer close(out)
		defer close(seen)
		defer panics.To(failed)
		for o := range offers {
			offer.Replace(seen, o)
			offer.Replace(out, o)
		}
	}()
	return out
}

func (h *handBack) run(ctx context.Context, offers <-chan offer.Offer) {
	var (
		last, judged corev1.ResourceList
		since        time.Time // of the surplus; zero without one
		due          <-chan time.Time
		silent       bool
	)
	for {
		select {
		case <-ctx.Done():
			return
		case o, ok := <-offers:
			if !ok {
				return
			}
			if silent = !o.Ready; silent {
				since, judged, due = time.Time{}, nil, nil
				continue
			}
			last = o.Allocatable
			if judged != nil && !shrunk(judged, last) && since.IsZero() {
				judged = last
				continue
			}
			if due == nil {
				due = time.After(0)
			}
			continue
		case <-due:
		}
		due = nil
		if silent {
			continue
		}
		pods, err := h.surplus(ctx, last)
		judged = last
		switch {
		case err != nil:
			h.log.Debug("what is to be handed back is not known yet", "node", h.node, "err", err)
			due = time.After(handBackRetry)
		case len(pods) == 0:
			since = time.Time{}
		case since.IsZero():
			since = time.Now()
			h.log.Info("the virtual node lends less than its pods use; the newest are handed back if that stays so", "node", h.node, "pods", len(pods), "after", h.after)
			due = time.After(h.after)
		case time.Since(since) < h.after:
			due = time.After(h.after - time.Since(since))
		default:
			h.evict(ctx, pods)
			due = time.After(handBackRetry)
		}
	}
}

// shrunk reports whether there is less of anything than before.
func shrunk(before, after corev1.ResourceList) bool {
	for name, q := range before {
		if now := after[name]; now.Cmp(q) < 0 {
			return true
		}
	}
	return false
}

func (h *handBack) surplus(ctx context.Context, part corev1.ResourceList) ([]*corev1.Pod, error) {
	list, err := h.home.CoreV1().Pods("").List(ctx, metav1.ListOptions{
		FieldSelector: "spec.nodeName=" + h.node + ",status.phase!=Succeeded,status.phase!=Failed", ResourceVersion: "0"})
	if err != nil {
		return nil, err
	}
	left := part.DeepCopy()
	var pods []*corev1.Pod
	for i := range list.Items {
		p := &list.Items[i]
		if metav1.GetControllerOf(p) != nil {
			pods = append(pods, p)
			continue
		}
		// A pod without a controller stays, and others go in its place.
		for name, q := range offer.Requests(p) {
			if have, bounded := left[name]; bounded {
				have.Sub(q)
				left[name] = have
			}
		}
	}
	return offer.Surplus(left, pods), nil
}

func (h *handBack) evict(ctx context.Context, pods []*corev1.Pod) {
	for _, p := range pods {
		if p.DeletionTimestamp != nil {
			continue
		}
		switch err := pod.Evict(ctx, h.home, p); {
		case err == nil:
			h.log.Info("pod handed back: its provider lends less now", "node", h.node, "pod", p.Namespace+"/"+p.Name)
		case apierrors.IsTooManyRequests(err): // its disruption budget
			h.log.Debug("pod not handed back yet", "pod", p.Namespace+"/"+p.Name, "err", err)
		case !apierrors.IsNotFound(err) && !apierrors.IsConflict(err):
			h.log.Warn("pod not handed back yet", "pod", p.Namespace+"/"+p.Name, "err", err)
		}
	}
}
