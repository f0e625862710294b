package twin

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/flowcontrol"

	"rivulet/fabric/panics"
	"rivulet/offload/consumer/pod/translate"
	"rivulet/offload/foreign"
	"rivulet/offload/policy"
	"rivulet/offload/watch"
)

// The provider's events on an away pod or its wrapper are copied to the home pod: one event for each, with the same
// count. Its name is made of the original's UID, so that it is found after a restart. Home's events are read once, to
// find what is copied already.

const (
	eventTries = 6 // until the pod itself has arrived, about 3 s
	// The provider can produce any number of events; home's datastore cannot store them.
	eventsPerSecond, eventsAtOnce = 5, 200
	// eventBacklog is the queue length above which only warnings are copied.
	eventBacklog = 500
	// selfMending is how long a wrapper may be without a pod before home gets a warning. Home did not make the
	// ReplicaSet that the warning is about, and a quota that follows demand usually admits the pod in that time.
	selfMending = 10 * time.Second
	// reasonFailedCreate is the reason of a controller's event that the API server refuses a pod.
	reasonFailedCreate = "FailedCreate"
)

// copiedEvents are home's events, by name: the count last written, and since when a warning that may resolve itself is
// held back.
type copiedEvents struct {
	mu     sync.Mutex
	counts map[string]int32
	held   map[string]time.Time
}

// hold returns how much longer the named event is held back.
func (t *copiedEvents) hold(name string, now time.Time) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	since, known := t.held[name]
	if !known {
		since, t.held[name] = now, now
	}
	return selfMending - now.Sub(since)
}

func (t *copiedEvents) is(name string, count int32) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	had, ok := t.counts[name]
	return ok && had >= count
}

func (t *copiedEvents) set(name string, count int32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counts[name] = count
}

func (t *copiedEvents) drop(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.counts, name)
	delete(t.held, name)
}

// EventCopy copies the events of twins to home.
type EventCopy struct {
	Home   kubernetes.Interface
	Target string // its name
	Words  translate.Words
}

// follow copies the twin's events until ctx ends.
func (c EventCopy) follow(ctx context.Context, t *Twin, kept *foreign.Kept, failed func(error)) {
	if !cache.WaitForCacheSync(ctx.Done(), t.pods.HasSynced, t.sets.HasSynced, t.jobs.HasSynced) {
		return
	}
	told := &copiedEvents{counts: map[string]int32{}, held: map[string]time.Time{}}
	if list, err := c.Home.CoreV1().Events(t.Home).List(ctx, metav1.ListOptions{FieldSelector: "reportingComponent=" + translate.EventReporter}); err == nil {
		for i := range list.Items {
			told.set(list.Items[i].Name, list.Items[i].Count)
		}
	}
	queue := watch.Queue[string](50*time.Millisecond, 10*time.Second)
	events := foreign.Informer(kept, t.client, t.client.CoreV1().Events(t.Name), &corev1.Event{}, "", trim)
	enqueue := func(obj any) {
		if e, ok := obj.(*corev1.Event); ok {
			queue.Add(e.Name)
		}
	}
	_, _ = events.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: enqueue, UpdateFunc: func(_, obj any) { enqueue(obj) },
		DeleteFunc: func(obj any) { // home's copies expire by themselves
			if e, ok := obj.(*corev1.Event); ok {
				told.drop(translate.EventName(e))
			}
		}}) // fails only on a stopped informer
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() {
		defer panics.To(failed)
		events.RunWithContext(ctx)
	})
	context.AfterFunc(ctx, queue.ShutDown)
	pace := flowcontrol.NewTokenBucketRateLimiter(eventsPerSecond, eventsAtOnce)
	defer pace.Stop()
	for {
		name, stop := queue.Get()
		if stop {
			return
		}
		again, later := false, time.Duration(0)
		if obj, ok, _ := events.GetStore().GetByKey(t.Name + "/" + name); ok {
			e := obj.(*corev1.Event)
			if mended, wait := t.mends(e, told); mended || wait > 0 {
				later = wait
			} else if worthIt := e.Type == corev1.EventTypeWarning || queue.Len() < eventBacklog; worthIt && pace.Wait(ctx) == nil {
				again = !c.copy(ctx, t, e, told)
			}
		}
		queue.Done(name)
		if later > 0 {
			queue.AddAfter(name, later)
		} else if again && queue.NumRequeues(name) < eventTries {
			queue.AddRateLimited(name)
		} else {
			queue.Forget(name)
		}
	}
}

// copy writes one event at home, unless it is there. It reports false if a retry may succeed.
func (c EventCopy) copy(ctx context.Context, t *Twin, e *corev1.Event, told *copiedEvents) bool {
	if unwanted(e) {
		return true
	}
	pod, about := t.subject(&e.InvolvedObject)
	if !about {
		return true
	}
	if pod == nil {
		return false
	}
	want := translate.Event(e, t.Name, t.Home, pod, c.Target)
	want.Message = c.Words.Of(want.Message)
	if told.is(want.Name, want.Count) {
		return true
	}
	events := c.Home.CoreV1().Events(t.Home)
	_, err := events.Create(ctx, want, metav1.CreateOptions{FieldManager: policy.FieldManager})
	if apierrors.IsAlreadyExists(err) {
		var have *corev1.Event
		if have, err = events.Get(ctx, want.Name, metav1.GetOptions{}); err == nil && have.Count < want.Count {
			want.ResourceVersion = have.ResourceVersion
			_, err = events.Update(ctx, want, metav1.UpdateOptions{FieldManager: policy.FieldManager})
		}
	}
	switch {
	case err == nil:
		told.set(want.Name, want.Count)
		return true
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err):
		return true // the namespace is being deleted, or home's API server refuses the event for good
	}
	return false
}

// unwanted reports whether an event means nothing at home: a pod's node at the provider, and what a controller does with
// the wrapper and by which of its rules. Home made the wrapper, not the user. Only that it can make no pod is for the user.
func unwanted(e *corev1.Event) bool {
	switch e.InvolvedObject.Kind {
	case "Pod":
		return e.Type != corev1.EventTypeWarning && e.Reason == "Scheduled"
	case "PersistentVolumeClaim":
		return e.Type != corev1.EventTypeWarning
	}
	return e.Reason != reasonFailedCreate
}

// mends reports whether the cause of an event, that a wrapper could make no pod, is resolved; otherwise when to check
// again, if it may still resolve itself.
func (t *Twin) mends(e *corev1.Event, told *copiedEvents) (mended bool, wait time.Duration) {
	if e.Reason != reasonFailedCreate || e.InvolvedObject.Kind != "ReplicaSet" && e.InvolvedObject.Kind != "Job" {
		return false, 0
	}
	wrapper, _ := t.subject(&e.InvolvedObject)
	if wrapper != nil && len(t.PodsOf(types.UID(wrapper.GetLabels()[policy.HomeUIDLabel]))) > 0 {
		return true, 0
	}
	return false, max(told.hold(translate.EventName(e), time.Now()), 0)
}

// subject returns the object in the twin that an event is about, nil if it is not in the cache (yet); about is false
// for events on other objects.
func (t *Twin) subject(ref *corev1.ObjectReference) (found metav1.Object, about bool) {
	if ref.Kind == "PersistentVolumeClaim" { // its event explains why a pod waits
		pod := t.userOf(ref.Name)
		return pod, pod != nil
	}
	store := map[string]cache.SharedIndexInformer{"Pod": t.pods, "ReplicaSet": t.sets, "Job": t.jobs}[ref.Kind]
	if store == nil {
		return nil, false
	}
	obj, ok, _ := store.GetStore().GetByKey(t.Name + "/" + ref.Name)
	if !ok {
		return nil, true
	}
	m, ok := obj.(metav1.Object)
	if !ok || m.GetLabels()[policy.HomeUIDLabel] == "" {
		return nil, false
	}
	return m, true
}

// userOf returns an away pod that uses a claim of the twin, nil if there is none.
func (t *Twin) userOf(claim string) metav1.Object {
	for _, obj := range t.pods.GetStore().List() {
		p := obj.(*corev1.Pod)
		for _, v := range p.Spec.Volumes {
			if v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claim {
				return p
			}
		}
	}
	return nil
}
