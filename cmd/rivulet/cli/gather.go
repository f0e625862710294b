package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"rivulet/appliance/api"
	"rivulet/appliance/diagnose/doctor"
	"rivulet/appliance/diagnose/why"
	"rivulet/appliance/health"
	"rivulet/fabric/peer"
	"rivulet/offload/consumer/explain"
	"rivulet/offload/consumer/reflect"
	"rivulet/offload/policy"
	"rivulet/offload/target"
)

// gatherer finds the object of `rivulet why`, and the facts for its answer: from home's API server, and from the
// supervisor, which need not run.
type gatherer struct {
	*common
	ctx     context.Context
	client  kubernetes.Interface
	status  api.Status
	running bool
}

func (c *common) gatherer(ctx context.Context) (*gatherer, error) {
	client, err := c.client()
	if err != nil {
		return nil, err
	}
	g := &gatherer{common: c, ctx: ctx, client: client}
	g.status, err = api.Get(ctx, c.dirs.Run)
	g.running = err == nil
	return g, nil
}

// whyKind is a kind with an answer, and its names.
type whyKind struct {
	name, resource string
	words          []string
	of             func(kubernetes.Interface) rest.Interface
	list           func() runtime.Object
}

func core(c kubernetes.Interface) rest.Interface  { return c.CoreV1().RESTClient() }
func apps(c kubernetes.Interface) rest.Interface  { return c.AppsV1().RESTClient() }
func batch(c kubernetes.Interface) rest.Interface { return c.BatchV1().RESTClient() }
func web(c kubernetes.Interface) rest.Interface   { return c.NetworkingV1().RESTClient() }

func listOf[T any, P interface {
	*T
	runtime.Object
}]() runtime.Object {
	return P(new(T))
}

// whyKinds are in the order of the search for a name.
var whyKinds = []whyKind{
	{"pod", "pods", []string{"po"}, core, listOf[corev1.PodList]},
	{"deployment", "deployments", []string{"deploy"}, apps, listOf[appsv1.DeploymentList]},
	{"statefulset", "statefulsets", []string{"sts"}, apps, listOf[appsv1.StatefulSetList]},
	{"daemonset", "daemonsets", []string{"ds"}, apps, listOf[appsv1.DaemonSetList]},
	{"job", "jobs", nil, batch, listOf[batchv1.JobList]},
	{"cronjob", "cronjobs", []string{"cj"}, batch, listOf[batchv1.CronJobList]},
	{"replicaset", "replicasets", []string{"rs"}, apps, listOf[appsv1.ReplicaSetList]},
	{"ingress", "ingresses", []string{"ing"}, web, listOf[networkingv1.IngressList]},
	{"service", "services", []string{"svc"}, core, listOf[corev1.ServiceList]},
	{"pvc", "persistentvolumeclaims", []string{"persistentvolumeclaim"}, core, listOf[corev1.PersistentVolumeClaimList]},
	{"namespace", "namespaces", []string{"ns"}, core, listOf[corev1.NamespaceList]},
	{"peer", "peers", nil, nil, nil},
	{"node", "nodes", []string{"no"}, core, listOf[corev1.NodeList]},
}

func (k *whyKind) is(word string) bool {
	word = strings.ToLower(word)
	return word == k.name || word == k.resource || slices.Contains(k.words, word)
}

// named are objects of a kind by name, in one namespace or in all.
func (g *gatherer) named(k *whyKind, namespace, name string) (found []any, err error) {
	if k.list == nil {
		if !g.running {
			return nil, api.ErrNotRunning
		}
		for _, v := range peer.MeantViews(g.status.Peers, name) {
			found = append(found, &v)
		}
		return found, nil
	}
	list := k.list()
	get := k.of(g.client).Get().Resource(k.resource).VersionedParams(&metav1.ListOptions{FieldSelector: "metadata.name=" + name}, scheme.ParameterCodec)
	if k.name != "namespace" && k.name != "node" {
		get = get.NamespaceIfScoped(namespace, namespace != "")
	}
	if err := get.Do(g.ctx).Into(list); err != nil {
		return nil, fmt.Errorf("%s %s: %w; see: rivulet status", k.name, name, err)
	}
	objects, err := meta.ExtractList(list)
	for _, o := range objects {
		found = append(found, o)
	}
	return found, err
}

// find returns the one object: KIND/NAME, or a pod by NAMESPACE/NAME or NAME; if no pod has the name, an object of
// another kind.
func (g *gatherer) find(namespace, arg string) (any, error) {
	kind, name, ok := strings.Cut(arg, "/")
	for i := range whyKinds {
		if k := &whyKinds[i]; ok && k.is(kind) {
			found, err := g.named(k, namespace, name)
			if err == nil && len(found) == 0 {
				err = fmt.Errorf("there is no %s %s%s; see: rivulet kubectl get %s -A", k.name, name, in(namespace), k.name)
				if k.name == "peer" {
					err = fmt.Errorf("there is no peer %s; see: rivulet peers", name)
				}
			}
			return one(k.name, name, found, err)
		}
	}
	if ok {
		namespace = kind
	} else {
		name = arg
	}
	for i := range whyKinds {
		k := &whyKinds[i]
		if ok && k.name != "pod" || k.name == "peer" && !g.running {
			continue
		}
		if found, err := g.named(k, namespace, name); err != nil || len(found) > 0 {
			return one(k.name, name, found, err)
		}
	}
	return nil, fmt.Errorf("there is no pod %s%s, and nothing else of that name; see: rivulet pods", name, in(namespace))
}

func in(namespace string) string {
	if namespace == "" {
		return ""
	}
	return " in namespace " + namespace
}

// one returns the only object of those that were found.
func one(kind, name string, found []any, err error) (any, error) {
	switch {
	case err != nil:
		return nil, err
	case len(found) > 1 && kind == "peer":
		return nil, fmt.Errorf("%d peers are called %s; write the beginning of its ID: rivulet peers -o wide", len(found), name)
	case len(found) > 1 && kind == "pod":
		return nil, fmt.Errorf("%d namespaces have a pod %s; name one: rivulet why %s/%s", len(found), name, why.NamespaceOf(found[0]), name)
	case len(found) > 1:
		return nil, fmt.Errorf("%d namespaces have a %s %s; name one: rivulet why %s/%s -n %s", len(found), kind, name, kind, name, why.NamespaceOf(found[0]))
	}
	return found[0], nil
}

// facts are the input of an answer. The disk is checked now, as the supervisor does periodically.
func (g *gatherer) facts(object any) (explain.Facts, error) {
	st := g.status
	st.Health = slices.DeleteFunc(slices.Clone(st.Health), func(p health.Problem) bool { return p.Code == health.DiskSpace.Code })
	now := &health.Tracker{}
	doctor.Run(g.ctx, here(g.common), slices.DeleteFunc(doctor.Probes(), func(p doctor.Probe) bool { return p.Kind != health.DiskSpace })).Report(now)
	for _, p := range now.Problems() {
		if p.Severity != health.Error {
			continue // the kubelet frees space by itself
		}
		if names, err := g.unused(g.ctx, g.client); err == nil && len(names) > 0 {
			p.Cure = "remove images that were pushed and nothing uses: rivulet image rm --yes " + strings.Join(names, " ") + "; or: " + p.Cure
		}
		st.Health = append(st.Health, p)
	}
	f, err := why.Facts(g.ctx, g.client, object, st)
	if err != nil {
		return f, fmt.Errorf("%w; see: rivulet status", err)
	}
	return f, g.fromHere(&f)
}

// fromHere adds what only some answers need.
func (g *gatherer) fromHere(f *explain.Facts) (err error) {
	switch o := f.Object.(type) {
	case nil:
		if f.Pod.Spec.NodeName == "" {
			return nil
		}
		f.UsedCPU = usedCPU(g.ctx, g.client, f.Pod)
		for i := range f.Nodes {
			if n := &f.Nodes[i]; n.Name == f.Pod.Spec.NodeName && n.Labels[policy.KindLabel] == string(target.Peer) {
				f.LeftOut, err = leftOut(g.ctx, g.client, f.Pod.Namespace, n.Name, f.Pods)
			}
		}
	case *corev1.Service:
		for i := range f.Nodes {
			ns, _ := policy.Parse(f.Namespace)
			if n := &f.Nodes[i]; err == nil && len(f.LeftOut) == 0 && n.Labels[policy.KindLabel] == string(target.Peer) && ns.Allows(n.Name) {
				f.LeftOut, err = leftOut(g.ctx, g.client, o.Namespace, n.Name, f.Pods)
			}
		}
		f.LeftOut = slices.DeleteFunc(f.LeftOut, func(l reflect.LeftOut) bool { return l.Service != o.Name })
	}
	return err
}
