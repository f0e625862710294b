package clusterset

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"rivulet/appliance/addons/clusterset/weights"
	"rivulet/appliance/addons/customresource"
	"rivulet/fabric/peer"
	"rivulet/offload/policy"
	"rivulet/offload/watch"
)

const (
	// gather is how long changes are collected.
	gather = 50 * time.Millisecond
	// settle is how long after a start existing imports stay as they are, unless all members have answered before.
	settle = 15 * time.Second
)

// controller compares what there is with what there should be. One goroutine does all of its work.
type controller struct {
	*Set
	o       customresource.Objects
	started time.Time
	watches *watches // nil until there is something to export or to import
	clean   bool     // no import of an earlier run is left
	written map[key]written
	seen    map[string][]string // clusters by Service, in the order in which their exports were seen
	ctx     context.Context
}

// watches are the objects that are read, and those that are written.
type watches struct {
	namespaces, services, slices cache.SharedIndexInformer
	own                          map[string]cache.SharedIndexInformer // by kind
}

func newController(ctx context.Context, s *Set, o customresource.Objects) *controller {
	time.AfterFunc(s.settle, o.Poke)
	return &controller{Set: s, o: o, started: time.Now(), written: map[key]written{}, seen: map[string][]string{}, ctx: ctx}
}

// watch starts the watches; false if ctx ended before they are loaded.
func (c *controller) watch() bool {
	if c.watches != nil {
		return true
	}
	others := informers.NewSharedInformerFactoryWithOptions(c.o.Kube, 0, informers.WithTransform(slim), informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.LabelSelector = "!" + ObjectLabel
	}))
	mine := dynamicinformer.NewFilteredDynamicSharedInformerFactory(c.o.Dynamic, 0, metav1.NamespaceAll, func(o *metav1.ListOptions) { o.LabelSelector = ObjectLabel })
	w := &watches{namespaces: others.Core().V1().Namespaces().Informer(), services: others.Core().V1().Services().Informer(), slices: others.Discovery().V1().EndpointSlices().Informer(),
		own: map[string]cache.SharedIndexInformer{}}
	all := []cache.SharedIndexInformer{w.namespaces, w.services, w.slices}
	for kind, resource := range resources {
		w.own[kind] = mine.ForResource(resource).Informer()
		all = append(all, w.own[kind])
	}
	var synced []cache.InformerSynced
	for _, i := range all {
		_, _ = i.AddEventHandler(watch.Changes(c.o.Poke)) // fails only on a stopped informer
		go i.RunWithContext(c.ctx)
		synced = append(synced, i.HasSynced)
	}
	c.watches = w
	return cache.WaitForCacheSync(c.ctx.Done(), synced...)
}

func slim(obj any) (any, error) {
	if o, ok := obj.(metav1.Object); ok {
		o.SetManagedFields(nil)
		o.SetAnnotations(nil)
	}
	return obj, nil
}

// sync compares everything.
func (c *controller) sync(ctx context.Context) error {
	theirs, faults, complete := c.contributions()
	var mine []mcs.ServiceExport
	for _, obj := range c.o.Store.List() {
		var e mcs.ServiceExport
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(obj.(*unstructured.Unstructured).Object, &e); err == nil {
			mine = append(mine, e)
		}
	}
	if len(mine)+len(theirs) == 0 && c.watches == nil && !c.leftover(ctx) {
		c.publish(nil)
		c.Weights.Set(nil)
		c.status.Store(&Status{Members: c.membersNow(faults)})
		return nil
	}
	if !c.watch() {
		return nil
	}
	slices.SortFunc(mine, func(a, b mcs.ServiceExport) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	published, invalid := []Export{}, map[string]metav1.Condition{}
	var room room
	for _, e := range mine {
		x, condition := c.export(e)
		if condition.Status == metav1.ConditionTrue && !room.take(x) {
			condition = mcs.NewServiceExportCondition(mcs.ServiceExportConditionValid, metav1.ConditionFalse, "TooMany",
				fmt.Sprintf("older exports take the %d exports, %d endpoints or %d bytes that peers accept; delete some", maxExports, maxEndpoints, maxLine))
		}
		invalid[e.Namespace+"/"+e.Name] = condition
		if condition.Status == metav1.ConditionTrue {
			published = append(published, x)
		}
	}
	c.publish(published)
	all := theirs
	for _, e := range published {
		all = append(all, contribution{Cluster: string(c.ID), Own: true, Export: e})
	}
	groups := map[string][]contribution{}
	for _, x := range all {
		name := x.Namespace + "/" + x.Name
		groups[name] = append(groups[name], x)
	}
	heard := complete || time.Since(c.started) >= c.settle
	if heard {
		maps.DeleteFunc(c.seen, func(name string, _ []string) bool { return groups[name] == nil })
	}
	services := map[string]merged{}
	for name, g := range groups {
		if _, known := c.seen[name]; !known {
			c.seen[name] = c.importedFrom(name)
		}
		c.seen[name] = place(c.seen[name], g, heard)
		m := merge(g)
		c.weigh(&m)
		services[name] = m
	}
	var errs []error
	for _, e := range mine {
		errs = append(errs, c.report(ctx, e, invalid[e.Namespace+"/"+e.Name], services[e.Namespace+"/"+e.Name]))
	}
	sites := c.sites()
	if heard {
		errs = append(errs, c.write(ctx, services, sites))
	}
	c.status.Store(c.statusOf(services, invalid, sites, faults))
	return errors.Join(errs...)
}

// importedFrom are the clusters in the status of the import of an earlier run, which statusOfImport has written in their
// order.
func (c *controller) importedFrom(name string) (out []string) {
	obj, ok, _ := c.watches.own[mcs.ServiceImportKindName].GetStore().GetByKey(name)
	if !ok {
		return nil
	}
	list, _, _ := unstructured.NestedSlice(obj.(*unstructured.Unstructured).Object, "status", "clusters")
	for _, one := range list {
		if m, ok := one.(map[string]any); ok {
			id, _ := m["cluster"].(string)
			out = append(out, id)
		}
	}
	return out
}

// leftover reports whether an earlier run has left an import. It asks until the API server has answered that there is
// none.
func (c *controller) leftover(ctx context.Context) bool {
	if !c.clean {
		list, err := c.o.Dynamic.Resource(imports).List(ctx, metav1.ListOptions{LabelSelector: ObjectLabel, Limit: 1})
		c.clean = err == nil && len(list.Items) == 0
	}
	return !c.clean
}

// publish makes the exports known to the members.
func (c *controller) publish(all []Export) {
	if old := c.published.Load(); old != nil && reflect.DeepEqual(old.exports, all) {
		return
	}
	c.published.Store(&publication{all, encode(all)})
	c.own.Notify()
	c.Exported()
}

// export makes the Export of an object, and its condition Valid.
func (c *controller) export(e mcs.ServiceExport) (Export, metav1.Condition) {
	no := func(reason mcs.ServiceExportConditionReason, format string, args ...any) (Export, metav1.Condition) {
		return Export{}, mcs.NewServiceExportCondition(mcs.ServiceExportConditionValid, metav1.ConditionFalse, reason, fmt.Sprintf(format, args...))
	}
	if !shared(c.Setting(), e.Namespace) || c.twin(e.Namespace) {
		return no("NamespaceNotExported", "namespace %s takes no part: it is a system's, another cluster's, or not in the setting services.namespaces", e.Namespace)
	}
	obj, ok, _ := c.watches.services.GetStore().GetByKey(e.Namespace + "/" + e.Name)
	if !ok {
		return no(mcs.ServiceExportReasonNoService, "there is no Service %s in namespace %s", e.Name, e.Namespace)
	}
	s := obj.(*corev1.Service)
	if s.Spec.Type == corev1.ServiceTypeExternalName {
		return no(mcs.ServiceExportReasonInvalidServiceType, "a Service of type ExternalName has no endpoints to export")
	}
	out := Export{Namespace: e.Namespace, Name: e.Name, Headless: s.Spec.ClusterIP == corev1.ClusterIPNone,
		SessionAffinity: s.Spec.SessionAffinity, AffinityConfig: s.Spec.SessionAffinityConfig, InternalTrafficPolicy: s.Spec.InternalTrafficPolicy,
		TrafficDistribution: s.Spec.TrafficDistribution, Labels: e.Spec.ExportedLabels, Annotations: e.Spec.ExportedAnnotations}
	for _, p := range s.Spec.Ports {
		out.Ports = append(out.Ports, mcs.ServicePort{Name: p.Name, Protocol: p.Protocol, AppProtocol: p.AppProtocol, Port: p.Port})
	}
	of := labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: e.Name})
	all, _ := discoverylisters.NewEndpointSliceLister(c.watches.slices.GetIndexer()).EndpointSlices(e.Namespace).List(of) // a cache cannot fail
	for _, slice := range all {
		if slice.AddressType != discoveryv1.AddressTypeIPv4 {
			continue
		}
		if one, ok := c.slice(slice, out.Headless); ok {
			out.Slices = append(out.Slices, one)
		}
	}
	slices.SortFunc(out.Slices, func(a, b Slice) int { return a.Endpoints[0].Address.Compare(b.Endpoints[0].Address) })
	if err := out.check(); err != nil {
		return no("NotExportable", "%s", err)
	}
	return out, mcs.NewServiceExportCondition(mcs.ServiceExportConditionValid, metav1.ConditionTrue, mcs.ServiceExportReasonValid, "the Service can be exported")
}

// slice keeps the endpoints that are pods of this cluster, here.
func (c *controller) slice(s *discoveryv1.EndpointSlice, headless bool) (Slice, bool) {
	var out Slice
	for _, p := range s.Ports {
		if p.Name != nil && p.Protocol != nil && p.Port != nil {
			out.Ports = append(out.Ports, p)
		}
	}
	for _, e := range s.Endpoints {
		if len(e.Addresses) == 0 {
			continue
		}
		addr, err := netip.ParseAddr(e.Addresses[0])
		if err != nil || !c.PodCIDR().Contains(addr) {
			continue
		}
		p := Endpoint{Address: addr, Ready: ptr.Deref(e.Conditions.Ready, true), Terminating: ptr.Deref(e.Conditions.Terminating, false)}
		p.Serving = ptr.Deref(e.Conditions.Serving, p.Ready)
		if headless { // the same name in all clusters, as DNS makes one here of an address
			p.Hostname = ptr.Deref(e.Hostname, strings.ReplaceAll(addr.String(), ".", "-"))
		}
		out.Endpoints = append(out.Endpoints, p)
	}
	slices.SortFunc(out.Endpoints, func(a, b Endpoint) int { return a.Address.Compare(b.Address) })
	return out, len(out.Endpoints) > 0
}

// twin reports whether a namespace belongs to another cluster.
func (c *controller) twin(namespace string) bool {
	obj, ok, _ := c.watches.namespaces.GetStore().GetByKey(namespace)
	return ok && obj.(*corev1.Namespace).Labels[policy.OriginLabel] != ""
}

// report writes the conditions of a ServiceExport.
func (c *controller) report(ctx context.Context, e mcs.ServiceExport, valid metav1.Condition, m merged) error {
	ready := mcs.NewServiceExportCondition(mcs.ServiceExportConditionReady, metav1.ConditionTrue, mcs.ServiceExportReasonReady, "the peers that take part read it")
	if valid.Status != metav1.ConditionTrue {
		ready = mcs.NewServiceExportCondition(mcs.ServiceExportConditionReady, metav1.ConditionFalse, mcs.ServiceExportReasonFailed, "it is not valid")
	}
	conflict := mcs.NewServiceExportCondition(mcs.ServiceExportConditionConflict, metav1.ConditionFalse, mcs.ServiceExportReasonNoConflicts, "all exports are alike")
	if valid.Status == metav1.ConditionTrue && len(m.Reasons) > 0 {
		conflict = mcs.NewServiceExportCondition(mcs.ServiceExportConditionConflict, metav1.ConditionTrue, mcs.ServiceExportConditionReason(strings.Join(m.Reasons, ",")), m.Message)
	}
	changed := false
	for _, condition := range []metav1.Condition{valid, ready, conflict} {
		condition.ObservedGeneration = e.Generation
		changed = meta.SetStatusCondition(&e.Status.Conditions, condition) || changed
	}
	if !changed {
		return nil
	}
	u, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&mcs.ServiceExport{
		TypeMeta: metav1.TypeMeta{APIVersion: mcs.GroupVersion.String(), Kind: mcs.ServiceExportKindName}, ObjectMeta: metav1.ObjectMeta{Namespace: e.Namespace, Name: e.Name}, Status: e.Status})
	if err != nil {
		return err
	}
	unstructured.RemoveNestedField(u, "metadata", "creationTimestamp")
	delete(u, "spec")
	_, err = c.o.Dynamic.Resource(exports).Namespace(e.Namespace).ApplyStatus(ctx, e.Name, &unstructured.Unstructured{Object: u}, metav1.ApplyOptions{FieldManager: policy.FieldManager, Force: true})
	if err != nil {
		return fmt.Errorf("export %s/%s: %w", e.Namespace, e.Name, err)
	}
	return nil
}

// sites are this cluster and the members.
func (c *controller) sites() map[string]site {
	out := map[string]site{string(c.ID): {Own: true, Connected: true, Nearness: peer.MaxNearness}}
	cordoned := c.Cordoned()
	for id, l := range c.links() {
		out[string(id)] = site{Connected: l.State == peer.Connected, Cordoned: cordoned[id], Nearness: l.Nearness}
	}
	return out
}

// hosts are the namespaces that may have imports.
func (c *controller) hosts(namespace string) bool {
	obj, ok, _ := c.watches.namespaces.GetStore().GetByKey(namespace)
	if !ok || !shared(c.Setting(), namespace) || c.twin(namespace) {
		return false
	}
	ns := obj.(*corev1.Namespace)
	return ns.DeletionTimestamp == nil && ns.Status.Phase != corev1.NamespaceTerminating
}

// write makes the objects of the merged Services, and removes all others.
func (c *controller) write(ctx context.Context, services map[string]merged, sites map[string]site) error {
	var errs []error
	wanted := map[key]bool{}
	var split []weights.Service
	for _, name := range slices.Sorted(maps.Keys(services)) {
		m := services[name]
		if !c.hosts(m.Namespace) {
			continue
		}
		address, err := c.one(ctx, m, sites, wanted)
		if err != nil {
			errs = append(errs, fmt.Errorf("import %s: %w", name, err))
		}
		split = append(split, m.splits(address, sites)...)
	}
	c.Weights.Set(split)
	for _, kind := range []string{"EndpointSlice", "Service", mcs.ServiceImportKindName} { // leftover looks for the last
		for _, obj := range c.watches.own[kind].GetStore().List() {
			o := obj.(*unstructured.Unstructured)
			if k := (key{kind, o.GetNamespace(), o.GetName()}); !wanted[k] && o.GetDeletionTimestamp() == nil {
				errs = append(errs, c.remove(ctx, k))
			}
		}
	}
	return errors.Join(errs...)
}
