package ingress

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	networkinglisters "k8s.io/client-go/listers/networking/v1"
	"k8s.io/client-go/tools/cache"

	"rivulet/offload/policy"
)

// world is the watched state of the cluster. Objects named by Ingresses are watched once they are named.
type world struct {
	on      bool
	client  kubernetes.Interface
	changed chan struct{}

	ingresses  networkinglisters.IngressLister
	classes    networkinglisters.IngressClassLister
	namespaces corelisters.NamespaceLister // nil while it is off
	spaces     map[string]*space
	secrets    map[secretName]*secretWatch
	ctx        context.Context // of the watches
}

type secretName struct{ namespace, name string }

// watch adds the informers that are always needed to a factory.
func (c *Controller) watch(ctx context.Context, factory informers.SharedInformerFactory, on bool) (*world, []cache.InformerSynced, error) {
	w := &world{on: on, client: c.cfg.Client, changed: c.changed, ctx: ctx, spaces: map[string]*space{}, secrets: map[secretName]*secretWatch{}}
	var synced []cache.InformerSynced
	follow := func(i cache.SharedIndexInformer) error {
		registration, err := i.AddEventHandler(w.handler())
		if err == nil {
			synced = append(synced, registration.HasSynced)
		}
		return err
	}
	net := factory.Networking().V1()
	w.ingresses, w.classes = net.Ingresses().Lister(), net.IngressClasses().Lister()
	if err := follow(net.Ingresses().Informer()); err != nil {
		return nil, nil, err
	}
	if err := follow(net.IngressClasses().Informer()); err != nil {
		return nil, nil, err
	}
	if on {
		namespaces := factory.Core().V1().Namespaces()
		w.namespaces = namespaces.Lister()
		if err := namespaces.Informer().SetTransform(bare); err != nil {
			return nil, nil, err
		}
		if err := follow(namespaces.Informer()); err != nil {
			return nil, nil, err
		}
	}
	return w, synced, nil
}

func (w *world) handler() cache.ResourceEventHandlerFuncs {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { poke(w.changed) }, UpdateFunc: func(any, any) { poke(w.changed) }, DeleteFunc: func(any) { poke(w.changed) },
	}
}

// bare drops unused parts of an object before it is stored.
func bare(o any) (any, error) {
	if m, err := meta.Accessor(o); err == nil {
		m.SetManagedFields(nil)
		delete(m.GetAnnotations(), corev1.LastAppliedConfigAnnotation)
	}
	return o, nil
}

// barePod keeps the parts of a pod that identify the addresses of its namespace.
func barePod(o any) (any, error) {
	p, ok := o.(*corev1.Pod)
	if !ok {
		return o, nil
	}
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: p.Namespace, UID: p.UID, ResourceVersion: p.ResourceVersion},
		Spec: corev1.PodSpec{HostNetwork: p.Spec.HostNetwork}, Status: corev1.PodStatus{Phase: p.Status.Phase, PodIP: p.Status.PodIP}}, nil
}

// space is the watched state of a namespace with Ingresses.
type space struct {
	stop     func()
	twin     bool
	synced   []cache.InformerSynced
	services corelisters.ServiceNamespaceLister
	slices   discoverySlices
	pods     corelisters.PodNamespaceLister // of a twin
}

// discoverySlices lists the EndpointSlices of a Service.
type discoverySlices func(service string) []*discoveryv1.EndpointSlice

// secretWatch follows one Secret.
type secretWatch struct {
	stop   func()
	synced cache.InformerSynced
	lister corelisters.SecretNamespaceLister
}

// want watches these namespaces, whose value is whether they are twins, and these Secrets, and no others.
func (w *world) want(spaces map[string]bool, secrets map[secretName]bool) {
	for name, have := range w.spaces {
		if twin, wanted := spaces[name]; !wanted || twin != have.twin {
			have.stop()
			delete(w.spaces, name)
		}
	}
	for name, have := range w.secrets {
		if !secrets[name] {
			have.stop()
			delete(w.secrets, name)
		}
	}
	for name, twin := range spaces {
		if w.spaces[name] == nil {
			w.spaces[name] = w.watchSpace(name, twin)
		}
	}
	for name := range secrets {
		if w.secrets[name] == nil {
			w.secrets[name] = w.watchSecret(name)
		}
	}
}

// start runs a factory until stop is called, and triggers a new table when it has synced.
func (w *world) start(factory informers.SharedInformerFactory, all ...cache.SharedIndexInformer) (stop func(), synced []cache.InformerSynced) {
	ctx, cancel := context.WithCancel(w.ctx)
	for _, i := range all {
		i.AddEventHandler(w.handler()) //nolint:errcheck // the informer is new, and accepts one
		synced = append(synced, i.HasSynced)
	}
	factory.Start(ctx.Done())
	go func() {
		if cache.WaitForCacheSync(ctx.Done(), synced...) {
			poke(w.changed)
		}
	}()
	return cancel, synced
}

func (w *world) watchSpace(name string, twin bool) *space {
	factory := informers.NewSharedInformerFactoryWithOptions(w.client, 0, informers.WithNamespace(name), informers.WithTransform(bare))
	services, slices := factory.Core().V1().Services(), factory.Discovery().V1().EndpointSlices()
	lister := slices.Lister().EndpointSlices(name)
	s := &space{twin: twin, services: services.Lister().Services(name), slices: func(service string) []*discoveryv1.EndpointSlice {
		// It cannot fail.
		found, _ := lister.List(labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: service}))
		return found
	}}
	all := []cache.SharedIndexInformer{services.Informer(), slices.Informer()}
	if twin {
		pods := factory.Core().V1().Pods()
		s.pods = pods.Lister().Pods(name)
		pods.Informer().SetTransform(barePod) //nolint:errcheck // it has not started
		all = append(all, pods.Informer())
	}
	s.stop, s.synced = w.start(factory, all...)
	return s
}

func (w *world) watchSecret(n secretName) *secretWatch {
	factory := informers.NewSharedInformerFactoryWithOptions(w.client, 0, informers.WithNamespace(n.namespace), informers.WithTransform(bare),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, n.name).String()
		}))
	secrets := factory.Core().V1().Secrets()
	s := &secretWatch{lister: secrets.Lister().Secrets(n.namespace)}
	var synced []cache.InformerSynced
	s.stop, synced = w.start(factory, secrets.Informer())
	s.synced = synced[0]
	return s
}

// known reports whether all objects of the namespace were listed.
func (s *space) known() bool {
	for _, synced := range s.synced {
		if !synced() {
			return false
		}
	}
	return true
}

// origin returns the cluster whose twin a namespace is, empty for one of this cluster; false while that is not known.
func (w *world) origin(ctx context.Context, namespace string) (string, bool) {
	var ns *corev1.Namespace
	var err error
	if w.namespaces != nil {
		ns, err = w.namespaces.Get(namespace)
	} else {
		ns, err = w.client.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
	}
	if err != nil {
		return "", false
	}
	return ns.Labels[policy.OriginLabel], true
}

// service is nil if there is none; it is false while that is not known.
func (s *space) service(name string) (*corev1.Service, bool) {
	if s == nil || !s.known() {
		return nil, false
	}
	found, err := s.services.Get(name)
	if err != nil {
		return nil, apierrors.IsNotFound(err)
	}
	return found, true
}

// secret is nil if there is none; it is false while that is not known.
func (w *world) secret(n secretName) (*corev1.Secret, bool) {
	s := w.secrets[n]
	if s == nil || !s.synced() {
		return nil, false
	}
	found, err := s.lister.Get(n.name)
	if err != nil {
		return nil, apierrors.IsNotFound(err)
	}
	return found, true
}

// all returns the Ingresses and IngressClasses.
func (w *world) all() (ingresses []*networkingv1.Ingress, classes []*networkingv1.IngressClass) {
	ingresses, _ = w.ingresses.List(labels.Everything()) // a cache does not fail
	classes, _ = w.classes.List(labels.Everything())
	return ingresses, classes
}
