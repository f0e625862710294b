package operate

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
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

// Why explains why an object does not run, is not reachable, or runs badly. what is a pod by NAME or NAMESPACE/NAME, one
// of a virtual cluster of this device by VCLUSTER/NAMESPACE/NAME, or KIND/NAME; a name that no pod has is searched among
// the other kinds. The empty namespace is all. disk has the state of the disk now; nil: that of the supervisor's status counts.
func (c Cluster) Why(ctx context.Context, namespace, what string, disk *Disk) (a explain.Answer, err error) {
	g, err := c.gatherer(ctx)
	if err != nil {
		return a, err
	}
	object, err := g.find(namespace, what)
	if err != nil {
		return a, err
	}
	if disk != nil {
		disk.check(ctx, g.client, &g.status)
	}
	facts, err := g.facts(object)
	if err != nil {
		return a, err
	}
	a = explain.Explain(facts)
	if facts.Object == nil {
		if o := why.VClustersOf(g.status.Consumers).Of(facts.Pod); o != nil {
			a.Origin = o.String()
		}
	}
	return a, nil
}

// Disk checks the disk as the supervisor does periodically.
type Disk struct {
	Env *doctor.Env
	// Unused are images that may be removed.
	Unused func(context.Context, kubernetes.Interface) ([]string, error)
}

// check replaces the problems of the disk in a status.
func (d *Disk) check(ctx context.Context, client kubernetes.Interface, st *api.Status) {
	st.Health = slices.DeleteFunc(slices.Clone(st.Health), func(p health.Problem) bool { return p.Code == health.DiskSpace.Code })
	now := &health.Tracker{}
	doctor.Run(ctx, d.Env, slices.DeleteFunc(doctor.Probes(), func(p doctor.Probe) bool { return p.Kind != health.DiskSpace })).Report(now)
	for _, p := range now.Problems() {
		if p.Severity != health.Error {
			continue // the kubelet frees space by itself
		}
		if names, err := d.Unused(ctx, client); err == nil && len(names) > 0 {
			p.Cure = "remove images that were pushed and nothing uses: rivulet image rm --yes " + strings.Join(names, " ") + "; or: " + p.Cure
		}
		st.Health = append(st.Health, p)
	}
}

// gatherer finds the object of Why, and the facts for its answer: from home's API server, and from the supervisor,
// which need not run.
type gatherer struct {
	ctx     context.Context
	client  kubernetes.Interface
	status  api.Status
	running bool
}

func (c Cluster) gatherer(ctx context.Context) (*gatherer, error) {
	client, err := c.Client()
	if err != nil {
		return nil, err
	}
	g := &gatherer{ctx: ctx, client: client}
	g.status, err = c.Status(ctx)
	g.running = err == nil
	return g, nil
}

// objectKind is a kind with an answer, and its names.
type objectKind struct {
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

// objectKinds are in the order of the search for a name.
var objectKinds = []objectKind{
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

func (k *objectKind) is(word string) bool {
	word = strings.ToLower(word)
	return word == k.name || word == k.resource || slices.Contains(k.words, word)
}

// named are objects of a kind by name, in one namespace or in all.
func (g *gatherer) named(k *objectKind, namespace, name string) (found []any, err error) {
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
	if strings.Contains(name, "/") {
		return g.inside(kind, name)
	}
	for i := range objectKinds {
		if k := &objectKinds[i]; ok && k.is(kind) {
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
	for i := range objectKinds {
		k := &objectKinds[i]
		if ok && k.name != "pod" || k.name == "peer" && !g.running {
			continue
		}
		if found, err := g.named(k, namespace, name); err != nil || len(found) > 0 {
			return one(k.name, name, found, err)
		}
	}
	return nil, fmt.Errorf("there is no pod %s%s, and nothing else of that name; see: rivulet pods", name, in(namespace))
}

// inside returns the pod of a virtual cluster by its NAMESPACE/NAME there, the newest if several have had the name.
func (g *gatherer) inside(vcluster, name string) (any, error) {
	if !g.running {
		return nil, api.ErrNotRunning
	}
	vclusters := why.VClustersOf(g.status.Consumers)
	var found *corev1.Pod
	for id, c := range vclusters {
		if c.Name != vcluster {
			continue
		}
		pods, err := g.client.CoreV1().Pods("").List(g.ctx, metav1.ListOptions{LabelSelector: policy.OriginLabel + "=" + id})
		if err != nil {
			return nil, fmt.Errorf("pods of %s: %w; see: rivulet status", vcluster, err)
		}
		for i := range pods.Items {
			p := &pods.Items[i]
			if vclusters.Of(p).Argument() == vcluster+"/"+name && (found == nil || found.CreationTimestamp.Before(&p.CreationTimestamp)) {
				found = p
			}
		}
	}
	if found == nil {
		return nil, fmt.Errorf("no virtual cluster %s has a pod %s on this device; see: rivulet pods, rivulet vcluster list", vcluster, name)
	}
	return found, nil
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

// facts are the input of an answer.
func (g *gatherer) facts(object any) (explain.Facts, error) {
	f, err := why.Facts(g.ctx, g.client, object, g.status)
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
		f.UsedCPU, f.LastLines = usedCPU(g.ctx, g.client, f.Pod), lastLines(g.ctx, g.client, f.Pod)
		for i := range f.Nodes {
			if n := &f.Nodes[i]; n.Name == f.Pod.Spec.NodeName && n.Labels[policy.KindLabel] == string(target.Peer) {
				f.LeftOut, err = leftOut(g.ctx, g.client, f.Pod.Namespace, n.Name, f.Pods)
			}
		}
	case *corev1.Service:
		for i := range f.Nodes {
			ns, _ := policy.Parse(f.Namespace)
			if n := &f.Nodes[i]; err == nil && len(f.LeftOut) == 0 && n.Labels[policy.KindLabel] == string(target.Peer) && ns.Reflects(n.Name) {
				f.LeftOut, err = leftOut(g.ctx, g.client, o.Namespace, n.Name, f.Pods)
			}
		}
		f.LeftOut = slices.DeleteFunc(f.LeftOut, func(l reflect.LeftOut) bool { return l.Service != o.Name })
	}
	return err
}

// lastLines are the last lines of the containers that ended with an error.
func lastLines(ctx context.Context, client kubernetes.Interface, p *corev1.Pod) map[string]string {
	const patience = 5 * time.Second
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	out := map[string]string{}
	for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		t := cmp.Or(c.State.Terminated, c.LastTerminationState.Terminated)
		if t == nil || t.ExitCode == 0 {
			continue
		}
		lines, bytes := int64(20), int64(4<<10)
		text, err := client.CoreV1().Pods(p.Namespace).GetLogs(p.Name, &corev1.PodLogOptions{Container: c.Name, Previous: c.State.Terminated == nil, TailLines: &lines, LimitBytes: &bytes}).DoRaw(ctx)
		if err == nil { // what cannot be read tells nothing
			out[c.Name] = string(text)
		}
	}
	return out
}

// leftOut are endpoints of the namespace's Services that are reachable at home only.
func leftOut(ctx context.Context, client kubernetes.Interface, namespace, node string, pods []corev1.Pod) (out []reflect.LeftOut, err error) {
	services, err1 := client.CoreV1().Services(namespace).List(ctx, metav1.ListOptions{})
	endpoints, err2 := client.DiscoveryV1().EndpointSlices(namespace).List(ctx, metav1.ListOptions{})
	namespaces, err3 := client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{LabelSelector: policy.NamespaceLabel})
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, fmt.Errorf("%w; see: rivulet status", err)
	}
	reached, reflected := map[netip.Addr]bool{}, map[string]bool{}
	for i := range pods {
		if pods[i].Status.Phase == corev1.PodSucceeded || pods[i].Status.Phase == corev1.PodFailed {
			continue
		}
		if a, err := netip.ParseAddr(pods[i].Status.PodIP); err == nil && !pods[i].Spec.HostNetwork {
			reached[a] = true
		}
	}
	for i := range namespaces.Items {
		n := &namespaces.Items[i]
		ns, _ := policy.Parse(n)
		reflected[n.Name] = ns.Reflects(node)
	}
	for i := range services.Items {
		out = append(out, reflect.LeftOutOfAlias(ctx, &services.Items[i], func(n string) bool { return reflected[n] }, reflect.HomeLookup))
	}
	for i := range endpoints.Items {
		out = append(out, reflect.LeftOutOfSlice(&endpoints.Items[i], func(a netip.Addr) bool { return reached[a] }))
	}
	return slices.DeleteFunc(out, func(l reflect.LeftOut) bool { return l.What == "" }), nil
}

// usedCPU is the value of the metrics API, in thousandths of a core; -1 if there is none.
func usedCPU(ctx context.Context, client kubernetes.Interface, p *corev1.Pod) int64 {
	raw, err := client.CoreV1().RESTClient().Get().AbsPath("/apis/metrics.k8s.io/v1beta1/namespaces", p.Namespace, "pods", p.Name).DoRaw(ctx)
	var m struct {
		Containers []struct{ Usage map[string]resource.Quantity }
	}
	if err != nil || json.Unmarshal(raw, &m) != nil {
		return -1
	}
	n := int64(0)
	for _, c := range m.Containers {
		q := c.Usage["cpu"]
		n += q.MilliValue()
	}
	return n
}
