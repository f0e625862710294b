package twin

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"rivulet/fabric/changes"
	"rivulet/fabric/panics"
	"rivulet/offload/consumer/pod/translate"
	"rivulet/offload/foreign"
	"rivulet/offload/policy"
	"rivulet/offload/watch"
)

// Config is what a twin is made of.
type Config struct {
	Home, Name string // the namespace and its twin
	Cluster    string // home's ID
	Client     kubernetes.Interface
	Kept       *foreign.Kept // of the target's objects
	NoHomeAPI  bool          // pods there do not wait for a way to home's API server
	Ends       *Ends
	Events     EventCopy
	User       User
	Moved      *changes.Signal // of addresses of pods; may be nil
	Log        *slog.Logger
}

// User is who reconciles the pods of a twin.
type User interface {
	// Changed is called with the name of the home pod after one of its objects has changed, and with "" when all may be
	// read.
	Changed(pod string)
	// Lost is called when the API refuses a watch.
	Lost(error)
	// Failed is called with a panic; the user has to end the twin then.
	Failed(error)
}

// Twin watches this cluster's wrappers and their pods in one twin namespace. Rights end at the namespace, so watches do
// as well.
type Twin struct {
	Home, Name string
	cluster    string // home's ID
	client     kubernetes.Interface
	pods       cache.SharedIndexInformer
	ends       *Ends
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

// Indexers are those of the informers of a twin.
var Indexers = cache.Indexers{
	byUID:  indexBy(func(m metav1.Object) string { return m.GetLabels()[policy.HomeUIDLabel] }),
	byName: indexBy(func(m metav1.Object) string { return m.GetAnnotations()[policy.HomePodAnnotation] }),
	byAddr: addresses,
}

// New starts the watches.
func New(ctx context.Context, cfg Config) *Twin {
	ours := policy.OriginLabel + "=" + cfg.Cluster
	noted := func(obj any) (any, error) { // for deleted objects as well, before they leave the cache
		obj, err := trim(obj)
		if p, ok := obj.(*corev1.Pod); ok {
			cfg.Ends.note(p)
		}
		return obj, err
	}
	api, kept := cfg.Client, cfg.Kept
	t := Over(cfg, foreign.Informer(kept, api, api.CoreV1().Pods(cfg.Name), &corev1.Pod{}, ours, noted), foreign.Informer(kept, api, api.AppsV1().ReplicaSets(cfg.Name), &appsv1.ReplicaSet{}, ours, trim),
		foreign.Informer(kept, api, api.BatchV1().Jobs(cfg.Name), &batchv1.Job{}, ours, trim), foreign.Informer(kept, api, api.CoreV1().Secrets(cfg.Name), &corev1.Secret{}, ours, trim))
	ctx, t.stop = context.WithCancel(ctx)
	enqueue := func(obj any) {
		if m, err := meta.Accessor(obj); err == nil {
			cfg.User.Changed(m.GetAnnotations()[policy.HomePodAnnotation])
		}
	}
	for _, inf := range []cache.SharedIndexInformer{t.pods, t.sets, t.jobs, t.secrets} {
		// These fail only on an informer that runs already; these do not yet.
		_ = inf.AddIndexers(Indexers)
		_ = inf.SetWatchErrorHandler(func(_ *cache.Reflector, err error) { cfg.User.Lost(err) })
		_, _ = inf.AddEventHandler(watch.All(enqueue))
		if cfg.Moved != nil && inf == t.pods {
			_, _ = inf.AddEventHandler(moves(cfg.Moved.Notify))
		}
		t.done.Go(func() {
			defer panics.To(cfg.User.Failed)
			inf.RunWithContext(ctx)
		})
	}
	t.bare.Store(&lack{})
	t.done.Go(func() {
		defer panics.To(cfg.User.Failed)
		cfg.Events.follow(ctx, t, kept, cfg.User.Failed)
	})
	t.done.Go(func() {
		defer panics.To(cfg.User.Failed)
		// Pods wait for it: cache.WaitForCacheSync checks every 100 ms only.
		if wait.PollUntilContextCancel(ctx, firstLook, true, func(context.Context) (bool, error) { return t.Synced(), nil }) == nil {
			cfg.User.Changed("")
			t.furnish(ctx, cfg)
		}
	})
	return t
}

// Over is a twin that is ready for pods, over informers with indexers that somebody else runs.
func Over(cfg Config, pods, sets, jobs, secrets cache.SharedIndexInformer) *Twin {
	return &Twin{Home: cfg.Home, Name: cfg.Name, cluster: cfg.Cluster, client: cfg.Client, ends: cfg.Ends,
		pods: pods, sets: sets, jobs: jobs, secrets: secrets, stop: func() {}}
}

// Synced reports whether everything was listed.
func (t *Twin) Synced() bool {
	return t.pods.HasSynced() && t.sets.HasSynced() && t.jobs.HasSynced() && t.secrets.HasSynced()
}

func (t *Twin) close() {
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

// Pod returns the pod of that name in the twin, nil without one.
func (t *Twin) Pod(name string) *corev1.Pod {
	obj, ok, _ := t.pods.GetStore().GetByKey(t.Name + "/" + name)
	if !ok {
		return nil
	}
	return obj.(*corev1.Pod)
}

// PodsOf lists the away pods of one home pod.
func (t *Twin) PodsOf(uid types.UID) []*corev1.Pod {
	objs, _ := t.pods.GetIndexer().ByIndex(byUID, string(uid))
	out := make([]*corev1.Pod, 0, len(objs))
	for _, o := range objs {
		out = append(out, o.(*corev1.Pod))
	}
	return out
}

// Tokens returns the Secret with the tokens of one home pod, nil if there is none.
func (t *Twin) Tokens(uid types.UID) *corev1.Secret {
	objs, _ := t.secrets.GetIndexer().ByIndex(byUID, string(uid))
	for _, o := range objs {
		if s := o.(*corev1.Secret); s.Name == translate.TokenSecret(uid) {
			return s
		}
	}
	return nil
}

// WrappersOf lists the wrappers of one home pod.
func (t *Twin) WrappersOf(uid types.UID) []translate.Wrapper { return t.wrappers(byUID, string(uid)) }

// WrappersNamed lists the wrappers of all home pods of that name.
func (t *Twin) WrappersNamed(name string) []translate.Wrapper { return t.wrappers(byName, name) }

func (t *Twin) wrappers(index, value string) []translate.Wrapper {
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

// Names lists the home pods that have anything here.
func (t *Twin) Names() []string {
	var out []string
	for _, inf := range []cache.SharedIndexInformer{t.pods, t.sets, t.jobs, t.secrets} {
		out = append(out, inf.GetIndexer().ListIndexFuncValues(byName)...)
	}
	return out
}
