package pod

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"rivulet/offload/consumer/pod/translate"
	"rivulet/offload/policy"
	"rivulet/offload/replacement"
	"rivulet/offload/watch"
)

// twinConfig is what a twin is made of.
type twinConfig struct {
	home, name string // the namespace and its twin
	cluster    string // home's ID
	client     kubernetes.Interface
	noHomeAPI  bool // pods there do not wait for a way to home's API server
	ends       *ends
	events     eventCopy
	// changed is called with the name of the home pod after one of its objects has changed, and with "" when all may be
	// read.
	changed func(pod string)
	// lost is called when the API refuses a watch, worry when the twin is not ready for its first pod for long, moved
	// after addresses of pods have changed. moved may be nil.
	lost, worry func(error)
	moved       func()
}

// twin watches this cluster's wrappers and their pods in one twin namespace. Rights end at the namespace, so watches do
// as well.
type twin struct {
	home, name string
	cluster    string // the ID of home's
	client     kubernetes.Interface
	pods       cache.SharedIndexInformer
	ends       *ends
	sets, jobs cache.SharedIndexInformer
	secrets    cache.SharedIndexInformer // with tokens; without their data
	api        apiAddress
	links      links
	bare       atomic.Pointer[lack] // nil once pods may be sent: see furnish
	stop       context.CancelFunc
	done       sync.WaitGroup
}

const (
	byUID  = "uid"  // HomeUIDLabel
	byName = "name" // HomePodAnnotation
	byAddr = "addr" // of pods, as the target sees them
)

// indexers are those of the informers of a twin.
var indexers = cache.Indexers{
	byUID:  indexBy(func(m metav1.Object) string { return m.GetLabels()[policy.HomeUIDLabel] }),
	byName: indexBy(func(m metav1.Object) string { return m.GetAnnotations()[policy.HomePodAnnotation] }),
	byAddr: addresses,
}

// newTwin starts the watches.
func newTwin(ctx context.Context, cfg twinConfig) *twin {
	factory := informers.NewSharedInformerFactoryWithOptions(cfg.client, 0, informers.WithNamespace(cfg.name),
		informers.WithTransform(func(obj any) (any, error) { // for deleted objects as well, before they leave the cache
			obj, err := trim(obj)
			if p, ok := obj.(*corev1.Pod); ok {
				cfg.ends.note(p)
			}
			return obj, err
		}),
		watch.Labelled(policy.OriginLabel+"="+cfg.cluster))
	t := over(cfg, factory.Core().V1().Pods().Informer(), factory.Apps().V1().ReplicaSets().Informer(),
		factory.Batch().V1().Jobs().Informer(), factory.Core().V1().Secrets().Informer())
	ctx, t.stop = context.WithCancel(ctx)
	enqueue := func(obj any) {
		if m, err := meta.Accessor(obj); err == nil {
			cfg.changed(m.GetAnnotations()[policy.HomePodAnnotation])
		}
	}
	for _, inf := range []cache.SharedIndexInformer{t.pods, t.sets, t.jobs, t.secrets} {
		// These fail only on an informer that runs already; these do not yet.
		_ = inf.AddIndexers(indexers)
		_ = inf.SetWatchErrorHandler(func(_ *cache.Reflector, err error) { cfg.lost(err) })
		_, _ = inf.AddEventHandler(watch.All(enqueue))
		if cfg.moved != nil && inf == t.pods {
			_, _ = inf.AddEventHandler(moves(cfg.moved))
		}
		t.done.Go(func() { inf.RunWithContext(ctx) })
	}
	t.bare.Store(&lack{})
	t.done.Go(func() { cfg.events.follow(ctx, t) })
	t.done.Go(func() {
		// Pods wait for it: cache.WaitForCacheSync checks every 100 ms only.
		if wait.PollUntilContextCancel(ctx, firstLook, true, func(context.Context) (bool, error) { return t.synced(), nil }) == nil {
			cfg.changed("")
			t.furnish(ctx, cfg.noHomeAPI, func() { cfg.changed("") }, cfg.worry)
		}
	})
	return t
}

// over is a twin that is ready for pods, over informers with indexers that somebody else runs.
func over(cfg twinConfig, pods, sets, jobs, secrets cache.SharedIndexInformer) *twin {
	return &twin{home: cfg.home, name: cfg.name, cluster: cfg.cluster, client: cfg.client, ends: cfg.ends,
		pods: pods, sets: sets, jobs: jobs, secrets: secrets, stop: func() {}}
}

func (t *twin) synced() bool {
	return t.pods.HasSynced() && t.sets.HasSynced() && t.jobs.HasSynced() && t.secrets.HasSynced()
}

func (t *twin) close() {
	t.stop()
	t.done.Wait()
}

func trim(obj any) (any, error) {
	if s, ok := obj.(*corev1.Secret); ok {
		for key := range s.Data {
			s.Data[key] = nil // only its existence is needed
		}
	}
	return watch.Unmanaged(obj)
}

func indexBy(f func(metav1.Object) string) cache.IndexFunc {
	return func(obj any) ([]string, error) {
		m, err := meta.Accessor(obj)
		if err != nil {
			return nil, err
		}
		return []string{f(m)}, nil
	}
}

// pod returns the pod of that name in the twin, nil without one.
func (t *twin) pod(name string) *corev1.Pod {
	obj, ok, _ := t.pods.GetStore().GetByKey(t.name + "/" + name)
	if !ok {
		return nil
	}
	return obj.(*corev1.Pod)
}

// podsOf lists the away pods of one home pod.
func (t *twin) podsOf(uid types.UID) []*corev1.Pod {
	objs, _ := t.pods.GetIndexer().ByIndex(byUID, string(uid))
	out := make([]*corev1.Pod, 0, len(objs))
	for _, o := range objs {
		out = append(out, o.(*corev1.Pod))
	}
	return out
}

// tokens returns the Secret with the tokens of one home pod, nil if there is none.
func (t *twin) tokens(uid types.UID) *corev1.Secret {
	objs, _ := t.secrets.GetIndexer().ByIndex(byUID, string(uid))
	for _, o := range objs {
		if s := o.(*corev1.Secret); s.Name == translate.TokenSecret(uid) {
			return s
		}
	}
	return nil
}

// wrappersOf lists the wrappers of one home pod, wrappersNamed those of all home pods of that name.
func (t *twin) wrappersOf(uid types.UID) []translate.Wrapper  { return t.wrappers(byUID, string(uid)) }
func (t *twin) wrappersNamed(name string) []translate.Wrapper { return t.wrappers(byName, name) }

func (t *twin) wrappers(index, value string) []translate.Wrapper {
	var out []translate.Wrapper
	sets, _ := t.sets.GetIndexer().ByIndex(index, value)
	for _, o := range sets {
		out = append(out, translate.Wrapper{ReplicaSet: o.(*appsv1.ReplicaSet)})
	}
	jobs, _ := t.jobs.GetIndexer().ByIndex(index, value)
	for _, o := range jobs {
		out = append(out, translate.Wrapper{Job: o.(*batchv1.Job)})
	}
	return append(out, t.records(index, value)...)
}

// names lists the home pods that have anything here.
func (t *twin) names() []string {
	var out []string
	for _, inf := range []cache.SharedIndexInformer{t.pods, t.sets, t.jobs, t.secrets} {
		out = append(out, inf.GetIndexer().ListIndexFuncValues(byName)...)
	}
	return out
}

// get reads the wrapper from the API: caches may lag behind this process's writes.
func (t *twin) get(ctx context.Context, like translate.Wrapper) (translate.Wrapper, error) {
	name := like.Object().GetName()
	switch {
	case like.Job != nil:
		job, err := t.client.BatchV1().Jobs(t.name).Get(ctx, name, metav1.GetOptions{})
		return translate.Wrapper{Job: job}, err
	case like.Pod != nil:
		p, err := t.client.CoreV1().Pods(t.name).Get(ctx, name, metav1.GetOptions{})
		return translate.Wrapper{Pod: p}, err
	}
	set, err := t.client.AppsV1().ReplicaSets(t.name).Get(ctx, name, metav1.GetOptions{})
	return translate.Wrapper{ReplicaSet: set}, err
}

// find reads the pod's wrapper from the API, of whichever kind; like is the wrapper for a target that does not replace
// pods, and records: it may do so. Without a wrapper of this pod the error is that for like's kind.
func (t *twin) find(ctx context.Context, uid types.UID, like translate.Wrapper, records bool) (translate.Wrapper, error) {
	if like.ReplicaSet != nil && records {
		p, err := t.get(ctx, translate.Wrapper{Pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: like.Object().GetName()}}})
		if err == nil && p.IsOf(uid) || err != nil && !apierrors.IsNotFound(err) {
			return p, err
		}
	}
	return t.get(ctx, like)
}

// away collects the state of one pod of home.
func (t *twin) away(uid types.UID, w translate.Wrapper) translate.Away {
	a := translate.OfWrapper(w)
	a.Pod, a.Last = translate.Current(t.podsOf(uid)), t.ends.get(uid)
	return a
}

// stands reads from the API whether anything exists for the pod of home.
func (t *twin) stands(ctx context.Context, home *corev1.Pod) (bool, error) {
	pods, err := t.client.CoreV1().Pods(t.name).List(ctx, metav1.ListOptions{LabelSelector: policy.HomeUIDLabel + "=" + string(home.UID)})
	if err != nil {
		return false, err
	}
	if len(pods.Items) > 0 {
		return true, nil
	}
	like := translate.Wrapper{ReplicaSet: &appsv1.ReplicaSet{}}
	if translate.RestartPolicy(home) != corev1.RestartPolicyAlways {
		like = translate.Wrapper{Job: &batchv1.Job{}}
	}
	like.Object().SetName(translate.WrapperName(home.Name))
	w, err := t.get(ctx, like)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil && w.IsOf(home.UID), err
}

// rehearse creates the wrapper's pod by a dry run. The error is a refusal for good.
func (t *twin) rehearse(ctx context.Context, w translate.Wrapper) error {
	template := w.Template()
	_, err := t.client.CoreV1().Pods(t.name).Create(ctx, &corev1.Pod{Spec: template.Spec,
		ObjectMeta: metav1.ObjectMeta{Name: w.Object().GetName(), Labels: template.Labels, Annotations: template.Annotations}},
		metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if !replacement.ForGood(err) {
		return nil
	}
	return err
}

func (t *twin) create(ctx context.Context, w translate.Wrapper) (translate.Wrapper, error) {
	switch {
	case w.Job != nil:
		job, err := t.client.BatchV1().Jobs(t.name).Create(ctx, w.Job, metav1.CreateOptions{})
		return translate.Wrapper{Job: job}, err
	case w.Pod != nil:
		p, err := t.client.CoreV1().Pods(t.name).Create(ctx, w.Pod, metav1.CreateOptions{})
		return translate.Wrapper{Pod: p}, err
	}
	set, err := t.client.AppsV1().ReplicaSets(t.name).Create(ctx, w.ReplicaSet, metav1.CreateOptions{})
	return translate.Wrapper{ReplicaSet: set}, err
}

// remove deletes the wrapper in the foreground: its pods may exist as long as it does, and are gone once it is. grace,
// if given, is sent to pods with a longer one. A pod that is its own record is not replaced from then on.
func (t *twin) remove(ctx context.Context, w translate.Wrapper, grace *int64) error {
	if w.Pod != nil {
		err := replacement.End(ctx, t.client, w.Pod, translate.Sooner(grace, ptr.Deref(w.Pod.Spec.TerminationGracePeriodSeconds, 30)))
		if errors.Is(err, replacement.ErrMarked) {
			return errNotYet
		}
		return err
	}
	obj := w.Object()
	uid := obj.GetUID()
	opts := metav1.DeleteOptions{
		Preconditions:     &metav1.Preconditions{UID: &uid},
		PropagationPolicy: ptr.To(metav1.DeletePropagationForeground),
	}
	var err error
	if w.Job != nil {
		err = t.client.BatchV1().Jobs(t.name).Delete(ctx, obj.GetName(), opts)
	} else {
		err = t.client.AppsV1().ReplicaSets(t.name).Delete(ctx, obj.GetName(), opts)
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	var errs []error
	for _, p := range t.podsOf(types.UID(obj.GetLabels()[policy.HomeUIDLabel])) {
		errs = append(errs, t.deletePod(ctx, p, translate.Sooner(grace, ptr.Deref(p.Spec.TerminationGracePeriodSeconds, 30))))
	}
	return errors.Join(errs...)
}

// twins are the watched twins of one target. The zero value is ready.
type twins struct {
	mu  sync.Mutex
	all map[string]*twin // by home namespace
}

func (s *twins) get(home string) *twin {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[home]
}

// ensure returns the watched twin of home; it makes one if there is none or its name has changed.
func (s *twins) ensure(home, name string, make func() *twin) *twin {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.all[home]; t != nil {
		if t.name == name {
			return t
		}
		go t.close()
	}
	t := make()
	if s.all == nil {
		s.all = map[string]*twin{}
	}
	s.all[home] = t
	return t
}

// renew restarts every watch.
func (s *twins) renew(make func(home, name string) *twin) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for home, t := range s.all {
		go t.close()
		s.all[home] = make(home, t.name)
	}
}

func (s *twins) list() []*twin {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.all))
}

func (s *twins) drop(home string) {
	s.mu.Lock()
	t := s.all[home]
	delete(s.all, home)
	s.mu.Unlock()
	if t != nil {
		go t.close() // its handlers may wait for the caller
	}
}

func (s *twins) closeAll() {
	s.mu.Lock()
	all := s.all
	s.all = nil
	s.mu.Unlock()
	for _, t := range all {
		t.close()
	}
}
