// Package drain gives back what runs on a virtual node: it keeps new pods off it and evicts those that are there, as
// their PodDisruptionBudgets allow, so that their owners make them again elsewhere. It reads the node, its pods and
// home's answers to evictions. It alone writes the node's spec.unschedulable (as kubectl cordon does) and evictions.
// Nothing is remembered: a drain that was broken off is begun again. Failure: a pod that may not go yet is named with
// the API server's reason; what is left is counted.
package drain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"rivulet/fabric/changes"
)

// Event is one step, for a person or a program.
type Event struct {
	// What is cordoned, evicted, blocked, gone or done.
	What      string `json:"event"`
	Namespace string `json:"namespace,omitempty"`
	Pod       string `json:"pod,omitempty"`
	// Why a pod may not go yet, in the API server's words.
	Why string `json:"why,omitempty"`
	// Left counts the pods that are still there; All is how many there were.
	Left int `json:"left"`
	All  int `json:"all"`
}

// The kinds of events.
const (
	Cordoned = "cordoned"
	Evicted  = "evicted" // asked to leave
	Blocked  = "blocked" // a PodDisruptionBudget is in the way; tried again
	Gone     = "gone"
	Done     = "done"
)

// Drain is one drain of a target's nodes.
type Drain struct {
	Client kubernetes.Interface
	Nodes  []string
	// Force evicts pods, too, that nobody will make again.
	Force bool
	// Report gets every step; it is not called concurrently.
	Report func(Event)
	// Retry is how often what is blocked is tried again, and what leaves is looked
	// at; zero is a second.
	Retry time.Duration

	mu   sync.Mutex
	all  map[types.UID]*state
	left int
}

// state is how far one pod is.
type state struct {
	pod     corev1.Pod
	evicted bool
	why     string // it was blocked last
	gone    bool
}

// Unmanaged is the error for pods that nobody makes again; nothing was done.
type Unmanaged struct{ Pods []string }

func (u *Unmanaged) Error() string {
	var cures []string
	for i, name := range u.Pods { // they are in the order of their namespaces
		ns, pod, _ := strings.Cut(name, "/")
		if i == 0 || !strings.HasPrefix(u.Pods[i-1], ns+"/") {
			cures = append(cures, "rivulet kubectl delete pod -n "+ns)
		}
		cures[len(cures)-1] += " " + pod
	}
	return fmt.Sprintf("nobody makes these pods again elsewhere, so nothing was done: %s; delete them: %s", strings.Join(u.Pods, ", "), strings.Join(cures, "; and: "))
}

// ErrLeft says that the time was over before all pods were gone.
var ErrLeft = errors.New("drain: not all pods have left")

// Run blocks until all pods are gone or ctx ends, then with an error that wraps
// ErrLeft. Pods that have finished run nowhere, and are left for their logs.
func (d *Drain) Run(ctx context.Context) error {
	if d.Retry == 0 {
		d.Retry = time.Second
	}
	d.all = map[types.UID]*state{}
	pods, err := Pods(ctx, d.Client, d.Nodes)
	if err != nil {
		return err
	}
	if alone := Alone(pods); len(alone) > 0 && !d.Force {
		return &Unmanaged{alone}
	}
	for _, node := range d.Nodes {
		if err := Cordon(ctx, d.Client, node, true); err != nil {
			return err
		}
	}
	d.report(Event{What: Cordoned})
	for {
		pods, err := Pods(ctx, d.Client, d.Nodes)
		if err == nil {
			d.note(pods)
			if d.left == 0 {
				d.report(Event{What: Done})
				return nil
			}
			d.evict(ctx)
		}
		if !changes.Wait(ctx, d.Retry) {
			return d.unfinished(err)
		}
	}
}

// Pods are those that run on the nodes, DaemonSets' apart: these come back at once.
func Pods(ctx context.Context, client kubernetes.Interface, nodes []string) ([]corev1.Pod, error) {
	var all []corev1.Pod
	for _, node := range nodes {
		list, err := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String()})
		if err != nil {
			return nil, fmt.Errorf("drain: pods of %s: %w; is rivulet running?", node, err)
		}
		all = append(all, list.Items...)
	}
	return slices.DeleteFunc(all, func(p corev1.Pod) bool {
		owner := metav1.GetControllerOf(&p)
		finished := p.DeletionTimestamp == nil && (p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed)
		return finished || owner != nil && owner.Kind == "DaemonSet"
	}), nil
}

// Alone are the names of those pods, sorted, that nobody makes again when they end.
func Alone(pods []corev1.Pod) (names []string) {
	for i := range pods {
		if p := &pods[i]; metav1.GetControllerOf(p) == nil && p.DeletionTimestamp == nil {
			names = append(names, p.Namespace+"/"+p.Name)
		}
	}
	slices.Sort(names)
	return names
}

// Ends tells in sentences what becomes of pods that are to leave; empty if there are none.
func Ends(pods []corev1.Pod) (text string) {
	alone := Alone(pods)
	var again []string
	for i := range pods {
		if name := pods[i].Namespace + "/" + pods[i].Name; pods[i].DeletionTimestamp == nil && !slices.Contains(alone, name) {
			again = append(again, name)
		}
	}
	slices.Sort(again)
	if len(again) > 0 {
		text += fmt.Sprintf(". Pods that end there and that their owners make again elsewhere: %d (%s)", len(again), some(again))
	}
	if len(alone) > 0 {
		text += fmt.Sprintf(". Pods that end there and that nobody makes again: %d (%s)", len(alone), some(alone))
	}
	return text
}

// note takes over what is there now and tells of those that are gone.
func (d *Drain) note(pods []corev1.Pod) {
	there := map[types.UID]bool{}
	for _, p := range pods {
		there[p.UID] = true
		if d.all[p.UID] == nil {
			d.all[p.UID] = &state{}
		}
		d.all[p.UID].pod = p
	}
	d.left = len(pods)
	for uid, s := range d.all {
		if !there[uid] && !s.gone {
			s.gone = true
			d.report(Event{What: Gone, Namespace: s.pod.Namespace, Pod: s.pod.Name})
		}
	}
}

// atOnce is how many evictions are under way at the same time.
const atOnce = 8

// evict asks every pod to leave that has not been asked, or might not.
func (d *Drain) evict(ctx context.Context) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, atOnce)
	for _, s := range d.all {
		if s.gone || s.evicted || s.pod.DeletionTimestamp != nil {
			continue
		}
		if s.pod.Spec.NodeName == "" {
			continue
		}
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			d.evictOne(ctx, s)
		})
	}
	wg.Wait()
}

func (d *Drain) evictOne(ctx context.Context, s *state) {
	p := &s.pod
	err := d.Client.CoreV1().Pods(p.Namespace).EvictV1(ctx, &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &p.UID}},
	})
	switch {
	case err == nil:
		s.evicted = true
		d.report(Event{What: Evicted, Namespace: p.Namespace, Pod: p.Name})
	case apierrors.IsNotFound(err), apierrors.IsConflict(err), ctx.Err() != nil: // the next look knows
	default:
		if why := reason(err); why != s.why {
			s.why = why
			d.report(Event{What: Blocked, Namespace: p.Namespace, Pod: p.Name, Why: why})
		}
	}
}

// reason is the API server's word, with the names of the budgets in the way.
func reason(err error) string {
	why := err.Error()
	var status apierrors.APIStatus
	if errors.As(err, &status) && status.Status().Details != nil {
		for _, c := range status.Status().Details.Causes {
			why += " " + c.Message
		}
	}
	return why
}

func (d *Drain) report(e Event) {
	d.mu.Lock()
	defer d.mu.Unlock()
	e.Left, e.All = d.left, len(d.all)
	if d.Report != nil {
		d.Report(e)
	}
}

func (d *Drain) unfinished(err error) error {
	var blocked, leaving []string
	for _, s := range d.all {
		switch name := s.pod.Namespace + "/" + s.pod.Name; {
		case s.gone:
		case s.evicted || s.pod.DeletionTimestamp != nil:
			leaving = append(leaving, name)
		default:
			blocked = append(blocked, name)
		}
	}
	slices.Sort(blocked)
	slices.Sort(leaving)
	var parts []string
	if len(blocked) > 0 {
		parts = append(parts, fmt.Sprintf("%d may not go yet (%s)", len(blocked), some(blocked)))
	}
	if len(leaving) > 0 {
		parts = append(parts, fmt.Sprintf("%d are leaving (%s)", len(leaving), some(leaving)))
	}
	if len(parts) == 0 {
		return fmt.Errorf("%w from %s: %w", ErrLeft, strings.Join(d.Nodes, ", "), err)
	}
	return fmt.Errorf("%w %s: %s", ErrLeft, strings.Join(d.Nodes, ", "), strings.Join(parts, ", "))
}

func some(names []string) string {
	if len(names) > 5 {
		return strings.Join(names[:5], ", ") + ", …"
	}
	return strings.Join(names, ", ")
}
