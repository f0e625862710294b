// Package drain empties a virtual node: it cordons the node and evicts its pods, as their PodDisruptionBudgets allow,
// so that their owners replace them elsewhere. It reads the node, its pods and home's answers to evictions. It alone
// writes spec.unschedulable of the node (as kubectl cordon does) and evictions. Restart: an interrupted drain starts
// again. Failure: a pod that may not be evicted yet is reported with the API server's reason, together with the number
// of pods left.
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
	"rivulet/fabric/panics"
)

// Event is one step of a drain.
type Event struct {
	// What is one of the kinds below.
	What      string `json:"event"`
	Namespace string `json:"namespace,omitempty"`
	Pod       string `json:"pod,omitempty"`
	// Why a pod may not be evicted yet, in the API server's words.
	Why string `json:"why,omitempty"`
	// Left is the number of pods still there, All the number at the start.
	Left int `json:"left"`
	All  int `json:"all"`
}

// The kinds of events.
const (
	Cordoned = "cordoned"
	Evicted  = "evicted" // eviction accepted
	Blocked  = "blocked" // refused by a PodDisruptionBudget; repeated
	Gone     = "gone"
	Done     = "done"
)

// Drain is one drain of a target's nodes.
type Drain struct {
	Client kubernetes.Interface
	Nodes  []string
	// Force also evicts pods without an owner that replaces them.
	Force bool
	// Report is called for every step, never concurrently.
	Report func(Event)
	// Retry is the interval of retries and of checks of leaving pods; zero is 1 s.
	Retry time.Duration

	mu   sync.Mutex
	all  map[types.UID]*state
	left int
}

// state is the progress of one pod.
type state struct {
	pod     corev1.Pod
	evicted bool
	why     string // the last refusal
	gone    bool
}

// Unmanaged is the error for pods without an owner that replaces them; nothing was done.
type Unmanaged struct{ Pods []string }

func (u *Unmanaged) Error() string {
	var cures []string
	for i, name := range u.Pods { // sorted by namespace
		ns, pod, _ := strings.Cut(name, "/")
		if i == 0 || !strings.HasPrefix(u.Pods[i-1], ns+"/") {
			cures = append(cures, "rivulet kubectl delete pod -n "+ns)
		}
		cures[len(cures)-1] += " " + pod
	}
	return fmt.Sprintf("nobody makes these pods again elsewhere, so nothing was done: %s; delete them: %s", strings.Join(u.Pods, ", "), strings.Join(cures, "; and: "))
}

// ErrLeft: the context ended before all pods were gone.
var ErrLeft = errors.New("drain: not all pods have left")

// Run blocks until all pods are gone or ctx ends; the error then wraps ErrLeft. Finished pods are kept for their logs.
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

// Pods are those on the nodes, except pods of DaemonSets, which would be replaced at once on the same node.
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

// Alone are the names, sorted, of the pods without an owner that replaces them.
func Alone(pods []corev1.Pod) (names []string) {
	for i := range pods {
		if p := &pods[i]; metav1.GetControllerOf(p) == nil && p.DeletionTimestamp == nil {
			names = append(names, p.Namespace+"/"+p.Name)
		}
	}
	slices.Sort(names)
	return names
}

// Ends describes in sentences what happens to the pods after they leave; empty without pods.
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

// note updates the state from the current pods and reports those that are gone.
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

// atOnce bounds concurrent evictions.
const atOnce = 8

// evict requests the eviction of every pod without an accepted one.
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
			defer panics.To(func(err error) { s.why = err.Error() })
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
	case apierrors.IsNotFound(err), apierrors.IsConflict(err), ctx.Err() != nil: // seen in the next list
	default:
		if why := reason(err); why != s.why {
			s.why = why
			d.report(Event{What: Blocked, Namespace: p.Namespace, Pod: p.Name, Why: why})
		}
	}
}

// reason is the API server's message, with the names of the budgets that refuse.
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
