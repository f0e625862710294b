package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"rivulet/offload/policy"
	"rivulet/offload/target/external"
	"rivulet/offload/target/external/rewrite"
	"rivulet/test/harness/await"
	"rivulet/test/harness/campus"
)

// inventory is what a cluster has of the exam, as "kind namespace/name".
type inventory []string

func (i *inventory) add(kind string, o metav1.ObjectMeta) {
	*i = append(*i, kind+" "+o.Namespace+"/"+o.Name)
}

// keep returns those of the kinds.
func (i inventory) keep(kinds ...string) (out inventory) {
	for _, line := range i {
		kind, _, _ := strings.Cut(line, " ")
		if slices.Contains(kinds, kind) {
			out = append(out, line)
		}
	}
	return out
}

// inventory of home, or of a lender: what it has of home's.
func (e *exam) inventory(ctx context.Context, p *place) (out inventory, err error) {
	var namespaces []string
	var mine metav1.ListOptions
	switch {
	case p == e.home:
		for _, c := range e.courses {
			ns, err := p.api.CoreV1().Namespaces().Get(ctx, c.namespace, metav1.GetOptions{})
			switch {
			case apierrors.IsNotFound(err):
				continue
			case err != nil:
				return nil, err
			}
			out.add("namespace", ns.ObjectMeta)
			namespaces = append(namespaces, ns.Name)
		}
	case p.campus:
		namespaces = []string{campus.Namespace}
		mine.LabelSelector = rewrite.HomeLabel + ",!" + external.PartLabel
	default:
		twins, err := p.api.CoreV1().Namespaces().List(ctx, metav1.ListOptions{LabelSelector: policy.OriginLabel})
		if err != nil {
			return nil, err
		}
		for _, ns := range twins.Items {
			out.add("namespace", ns.ObjectMeta)
			namespaces = append(namespaces, ns.Name)
		}
	}
	for _, ns := range namespaces {
		if err := out.namespace(ctx, p, ns, mine); err != nil {
			return nil, err
		}
	}
	volumes, err := p.api.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, v := range volumes.Items {
		out.add("volume", v.ObjectMeta)
	}
	return out, nil
}

func (i *inventory) namespace(ctx context.Context, p *place, ns string, mine metav1.ListOptions) error {
	pods, err := p.api.CoreV1().Pods(ns).List(ctx, mine)
	if err != nil {
		return err
	}
	for _, o := range pods.Items {
		if o.Status.Phase != corev1.PodSucceeded && o.Status.Phase != corev1.PodFailed {
			i.add("pod", o.ObjectMeta)
		}
	}
	jobs, err := p.api.BatchV1().Jobs(ns).List(ctx, mine)
	if err != nil {
		return err
	}
	for _, o := range jobs.Items {
		i.add("job", o.ObjectMeta)
	}
	claims, err := p.api.CoreV1().PersistentVolumeClaims(ns).List(ctx, mine)
	if err != nil {
		return err
	}
	for _, o := range claims.Items {
		i.add("claim", o.ObjectMeta)
	}
	return nil
}

// away are the pods that lenders run for home, by UID, and where.
func (e *exam) away(ctx context.Context) (map[types.UID]string, error) {
	out := map[types.UID]string{}
	for _, p := range e.lenders {
		ns, mine := "", metav1.ListOptions{LabelSelector: policy.HomeUIDLabel}
		if p.campus {
			ns, mine.LabelSelector = campus.Namespace, rewrite.HomeLabel+",!"+external.PartLabel
		}
		pods, err := p.api.CoreV1().Pods(ns).List(ctx, mine)
		if err != nil {
			return nil, fmt.Errorf("demo: %w", err)
		}
		for _, o := range pods.Items {
			out[o.UID] = p.node + "/" + o.Spec.NodeName
		}
	}
	return out, nil
}

// places are home and the lenders.
func (e *exam) places() []*place { return append([]*place{e.home}, e.lenders...) }

// gone waits until no cluster has objects of the kinds; of lenders no Jobs either, which are home's record of what ran.
// It returns how long after begun the last of them were seen, by cluster.
func (e *exam) gone(ctx context.Context, begun time.Time, kinds ...string) (string, error) {
	last := make([]time.Duration, len(e.places()))
	err := await.Until(ctx, func() error {
		var errs []error
		for i, p := range e.places() {
			all, err := e.inventory(ctx, p)
			if err != nil {
				return err
			}
			of := kinds
			if p != e.home {
				of = append(slices.Clone(kinds), "job")
			}
			if left := all.keep(of...); len(left) > 0 {
				last[i] = time.Since(begun)
				errs = append(errs, fmt.Errorf("demo: %s has %d objects of the exam still, as %s", p.device.Name, len(left), left[0]))
			}
		}
		return errors.Join(errs...)
	})
	var parts []string
	for i, p := range e.places() {
		parts = append(parts, fmt.Sprintf("%s %.1f s", p.node, last[i].Seconds()))
	}
	return strings.Join(parts, ", "), err
}

// room is what home may use of each lender, by node.
func (e *exam) room(ctx context.Context) (map[string]string, error) {
	out := map[string]string{}
	for _, p := range e.lenders {
		n, err := e.home.api.CoreV1().Nodes().Get(ctx, p.node, metav1.GetOptions{})
		if err != nil {
			return nil, fmt.Errorf("demo: %w", err)
		}
		out[p.node] = fmt.Sprintf("%s CPU, %s pods", n.Status.Allocatable.Cpu(), n.Status.Allocatable.Pods())
	}
	return out, nil
}

// deadline has all Jobs end so long from now, as `kubectl patch job` does, and returns when the last of them does.
func (e *exam) deadline(ctx context.Context, in time.Duration) (time.Time, error) {
	var work errgroup.Group
	work.SetLimit(8)
	end := time.Now().Add(in)
	for _, c := range e.courses {
		jobs, err := e.home.api.BatchV1().Jobs(c.namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return end, fmt.Errorf("demo: %w", err)
		}
		for _, job := range jobs.Items {
			if job.Status.StartTime == nil {
				return end, fmt.Errorf("demo: %s/%s has not begun", job.Namespace, job.Name)
			}
			seconds := int64(end.Sub(job.Status.StartTime.Time).Seconds())
			work.Go(func() error {
				_, err := e.home.api.BatchV1().Jobs(job.Namespace).Patch(ctx, job.Name, types.MergePatchType,
					fmt.Appendf(nil, `{"spec":{"activeDeadlineSeconds":%d}}`, seconds), metav1.PatchOptions{})
				return err
			})
		}
	}
	return end, work.Wait()
}

// allExceeded waits until each Job has failed by its deadline, and by nothing else.
func (e *exam) allExceeded(ctx context.Context) error {
	return await.Until(ctx, func() error {
		for _, c := range e.courses {
			jobs, err := e.home.api.BatchV1().Jobs(c.namespace).List(ctx, metav1.ListOptions{})
			if err != nil {
				return err
			}
			for _, job := range jobs.Items {
				if !slices.ContainsFunc(job.Status.Conditions, func(j batchv1.JobCondition) bool {
					return j.Type == batchv1.JobFailed && j.Status == corev1.ConditionTrue && j.Reason == "DeadlineExceeded"
				}) {
					return fmt.Errorf("demo: %s/%s has not ended by its deadline: %+v", job.Namespace, job.Name, job.Status.Conditions)
				}
			}
		}
		return nil
	})
}

// ended waits until every Job has ended by its deadline and no cluster has a pod of one.
func (e *exam) ended(ctx context.Context, end time.Time) error {
	took, err := e.gone(ctx, end, "pod")
	if err := errors.Join(err, e.allExceeded(ctx)); err != nil {
		return err
	}
	e.tell("every Job ended by its deadline; pods were last seen after it: %s", took)
	return nil
}

// close deletes the courses, as kubectl delete -f courses.yaml does, and waits until no cluster has anything of them.
func (e *exam) close(ctx context.Context, before map[string]string) (string, error) {
	begun := time.Now()
	for _, c := range e.courses {
		if err := e.home.api.CoreV1().Namespaces().Delete(ctx, c.namespace, metav1.DeleteOptions{}); err != nil {
			return "", fmt.Errorf("demo: %w", err)
		}
	}
	took, err := e.gone(ctx, begun, "namespace", "pod", "job", "claim", "volume")
	if err != nil {
		return "", err
	}
	return took, await.Until(ctx, func() error {
		now, err := e.room(ctx)
		if err == nil && fmt.Sprint(now) != fmt.Sprint(before) {
			err = fmt.Errorf("demo: the room lent is %v, was %v", now, before)
		}
		return err
	})
}
