package policy

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"rivulet/fabric/changes"
)

// Watcher watches the labels of namespaces. Its methods may be called concurrently, and before Run.
type Watcher struct {
	client kubernetes.Interface
	log    *slog.Logger
	synced chan struct{}
	all    bool // see NewAll

	mu         sync.Mutex
	namespaces map[string]Namespace // only those that are offloaded
	refused    map[string]string    // the last invalid value with a warning, by namespace
	signal     changes.Signal
}

// New returns a Watcher without content until Run.
func New(client kubernetes.Interface, log *slog.Logger) *Watcher {
	return &Watcher{
		client: client, log: log, synced: make(chan struct{}),
		namespaces: map[string]Namespace{}, refused: map[string]string{},
	}
}

// NewAll is New for a home without nodes of its own: see ParseAll.
func NewAll(client kubernetes.Interface, log *slog.Logger) *Watcher {
	w := New(client, log)
	w.all = true
	return w
}

// Parse reads a namespace like the Watcher does.
func (w *Watcher) Parse(ns *corev1.Namespace) (Namespace, error) {
	if w.all {
		return ParseAll(ns)
	}
	return Parse(ns)
}

// Run watches the API server until ctx ends; it may be called once.
func (w *Watcher) Run(ctx context.Context) error {
	events := record.NewBroadcaster(record.WithContext(ctx))
	defer events.Shutdown()
	events.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: w.client.CoreV1().Events("")})
	recorder := events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "rivulet"})

	factory := informers.NewSharedInformerFactoryWithOptions(w.client, 0,
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			if !w.all {
				o.LabelSelector = NamespaceLabel
			}
		}),
		informers.WithTransform(trim))
	informer := factory.Core().V1().Namespaces().Informer()
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { w.seen(o.(*corev1.Namespace), recorder) },
		UpdateFunc: func(_, o any) { w.seen(o.(*corev1.Namespace), recorder) },
		DeleteFunc: func(o any) {
			if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(o); err == nil {
				w.set(key, Namespace{When: Off}, "")
			}
		},
	})
	if err != nil {
		return fmt.Errorf("policy: watch namespaces: %w", err)
	}
	factory.Start(ctx.Done())
	defer factory.Shutdown()
	if cache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
		close(w.synced)
		w.signal.Notify()
	}
	<-ctx.Done()
	return nil
}

// WaitSynced waits until every namespace was listed once; false if ctx ended before.
func (w *Watcher) WaitSynced(ctx context.Context) bool {
	select {
	case <-w.synced:
		return true
	case <-ctx.Done():
		return false
	}
}

// Namespaces returns the offloaded namespaces, without those that are off, invalid or being deleted.
func (w *Watcher) Namespaces() map[string]Namespace {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.namespaces)
}

// Get returns how the namespace is offloaded, false if it is not.
func (w *Watcher) Get(name string) (Namespace, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	ns, ok := w.namespaces[name]
	return ns, ok
}

// Check reads a namespace from the API server and updates the result of Get: a watch lags, and one that the server has
// lost shows nothing until it is renewed, minutes later. An error is that of the API server.
func (w *Watcher) Check(ctx context.Context, name string) error {
	ns, err := w.client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		w.set(name, Namespace{When: Off}, "")
		return nil
	}
	if err != nil {
		return fmt.Errorf("policy: namespace %s: %w", name, err)
	}
	if now, err := w.Parse(ns); err == nil { // the watch reports invalid labels
		w.set(name, now, "")
	}
	return nil
}

// Changed returns a channel that gets a value after Namespaces changed, several changes as one, and the function that
// ends the subscription.
func (w *Watcher) Changed() (<-chan struct{}, func()) { return w.signal.Changed() }

func (w *Watcher) seen(ns *corev1.Namespace, recorder record.EventRecorder) {
	now, err := w.Parse(ns)
	bad := ""
	if err != nil {
		bad = fmt.Sprintf("%q %q %q", ns.Labels[NamespaceLabel], ns.Labels[PreferLabel], ns.Annotations[ReflectAnnotation])
	}
	if warned := w.set(ns.Name, now, bad); err != nil && !warned {
		w.log.Warn("namespace label or annotation is not understood", "namespace", ns.Name, "err", err)
		// Recorded inside the namespace, where its users can read it.
		recorder.Event(&corev1.ObjectReference{Kind: "Namespace", APIVersion: "v1", Name: ns.Name, Namespace: ns.Name, UID: ns.UID},
			corev1.EventTypeWarning, "InvalidOffload", err.Error())
	}
}

// set records the state of one namespace and reports whether there was a warning for the same invalid value before.
func (w *Watcher) set(name string, now Namespace, bad string) (warned bool) {
	w.mu.Lock()
	before, had := w.namespaces[name]
	warned = bad != "" && w.refused[name] == bad
	if bad == "" {
		delete(w.refused, name)
	} else {
		w.refused[name] = bad
	}
	if now.When == Off {
		delete(w.namespaces, name)
	} else {
		w.namespaces[name] = now
	}
	changed := had != (now.When != Off) || had && before != now
	w.mu.Unlock()
	if changed {
		w.signal.Notify()
	}
	return warned
}

// trim keeps the parts of a namespace that Parse uses.
func trim(o any) (any, error) {
	ns, ok := o.(*corev1.Namespace)
	if !ok {
		return o, nil
	}
	var notes map[string]string
	if v, ok := ns.Annotations[ReflectAnnotation]; ok {
		notes = map[string]string{ReflectAnnotation: v}
	}
	return &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: ns.Name, UID: ns.UID, ResourceVersion: ns.ResourceVersion, Labels: ns.Labels, Annotations: notes, DeletionTimestamp: ns.DeletionTimestamp},
		Status:     corev1.NamespaceStatus{Phase: ns.Status.Phase},
	}, nil
}
