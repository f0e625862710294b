package clusterset

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"rivulet/offload/policy"
)

// ObjectLabel is on all objects that this package makes; its value is the name of the import.
const ObjectLabel = "rivulet.dev/clusterset"

// managedBy is the value of discoveryv1.LabelManagedBy.
const managedBy = "clusterset.rivulet.dev"

// key identifies an object that this package makes.
type key struct{ kind, namespace, name string }

// written is the last write of an object: a hash of it, and its version after it.
type written struct {
	hash    [32]byte
	version string
}

var resources = map[string]schema.GroupVersionResource{
	mcs.ServiceImportKindName: imports,
	"Service":                 corev1.SchemeGroupVersion.WithResource("services"),
	"EndpointSlice":           discoveryv1.SchemeGroupVersion.WithResource("endpointslices"),
}

// derivedName is the name of the Service that has the address of an import. No user has a Service of such a name by
// chance.
func derivedName(name string) string {
	return fmt.Sprintf("clusterset-%.40s-%s", name, digest(name)[:8])
}

func digest(of string) string {
	sum := sha256.Sum256([]byte(of))
	return hex.EncodeToString(sum[:])
}

// one makes the objects of one merged Service, and adds them to wanted. It returns the address, if there is one.
func (c *controller) one(ctx context.Context, m merged, sites map[string]site, wanted map[key]bool) (address string, err error) {
	labels := func(more map[string]string) map[string]string {
		out := map[string]string{ObjectLabel: m.Name}
		for k, v := range more {
			out[k] = v
		}
		return out
	}
	derived := derivedName(m.Name)
	k := key{"Service", m.Namespace, derived}
	imported := key{mcs.ServiceImportKindName, m.Namespace, m.Name}
	spec := m.Spec
	if spec.Type == mcs.ClusterSetIP {
		wanted[k] = true
		ports := make([]corev1.ServicePort, 0, len(m.Spec.Ports))
		for _, p := range m.Spec.Ports {
			ports = append(ports, corev1.ServicePort{Name: p.Name, Protocol: p.Protocol, AppProtocol: p.AppProtocol, Port: p.Port})
		}
		service, err := c.apply(ctx, k, &corev1.Service{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}, ObjectMeta: metav1.ObjectMeta{Labels: labels(nil), Annotations: map[string]string{policy.ReflectAnnotation: "off"}},
			Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, Ports: ports, SessionAffinity: m.Spec.SessionAffinity, SessionAffinityConfig: m.Spec.SessionAffinityConfig,
				IPFamilyPolicy: ptr.To(corev1.IPFamilyPolicySingleStack), IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}},
		})
		if err != nil {
			return "", err
		}
		if address, _, _ = unstructured.NestedString(service.Object, "spec", "clusterIP"); address != "" {
			spec.IPs = []string{address}
		}
	}
	wanted[imported] = true
	if err := c.foreign(ctx, imported); err != nil {
		return address, err
	}
	if spec.Ports == nil {
		spec.Ports = []mcs.ServicePort{}
	}
	if _, err := c.apply(ctx, imported, &mcs.ServiceImport{
		TypeMeta: metav1.TypeMeta{APIVersion: mcs.GroupVersion.String(), Kind: mcs.ServiceImportKindName}, ObjectMeta: metav1.ObjectMeta{Labels: labels(m.Labels), Annotations: m.Annotations}, Spec: spec,
	}); err != nil {
		return address, err
	}
	if err := c.statusOfImport(ctx, imported, m); err != nil {
		return address, err
	}
	used := map[string]map[string]bool{} // clusters by port name
	for _, p := range m.Spec.Ports {
		used[p.Name] = m.used(p, sites)
	}
	for _, x := range m.Contributions {
		connected := sites[x.Cluster].Own || sites[x.Cluster].Connected
		for _, s := range x.Slices {
			for name, part := range m.parts(x, s, used) {
				slice := &discoveryv1.EndpointSlice{
					TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"}, AddressType: discoveryv1.AddressTypeIPv4, Ports: part,
					ObjectMeta: metav1.ObjectMeta{Labels: labels(map[string]string{mcs.LabelServiceName: m.Name, mcs.LabelSourceCluster: x.Cluster, discoveryv1.LabelManagedBy: managedBy})},
				}
				if name != "" {
					slice.Labels[discoveryv1.LabelServiceName] = derived
				}
				for _, e := range s.Endpoints {
					endpoint := discoveryv1.Endpoint{Addresses: []string{e.Address.String()}, Conditions: discoveryv1.EndpointConditions{
						Ready: ptr.To(e.Ready && connected), Serving: ptr.To(e.Serving && connected), Terminating: ptr.To(e.Terminating)}}
					if e.Hostname != "" {
						endpoint.Hostname = ptr.To(e.Hostname)
					}
					slice.Endpoints = append(slice.Endpoints, endpoint)
				}
				k := key{"EndpointSlice", m.Namespace, fmt.Sprintf("clusterset-%.40s-%s", m.Name, digest(fmt.Sprint(m.Name, "|", x.Cluster, "|", slice.Endpoints[0].Addresses, "|", name, "|", portNames(s.Ports)))[:12])}
				if wanted[k] { // a cluster that exports two slices as one would have each written for the other, for ever
					continue
				}
				wanted[k] = true
				if _, err := c.apply(ctx, k, slice); err != nil {
					return address, err
				}
			}
		}
	}
	return address, nil
}

func portNames(ports []discoveryv1.EndpointPort) (out []string) {
	for _, p := range ports {
		out = append(out, *p.Name)
	}
	return out
}

// parts are the ports of a slice that get traffic ("used"), and the others (""), if there are any. A headless import
// gets none: its names lead to the pods.
func (m merged) parts(x contribution, s Slice, used map[string]map[string]bool) map[string][]discoveryv1.EndpointPort {
	out := map[string][]discoveryv1.EndpointPort{}
	for _, p := range s.Ports {
		part := ""
		i := slices.IndexFunc(m.Spec.Ports, func(o mcs.ServicePort) bool { return o.Name == *p.Name })
		if m.Spec.Type == mcs.ClusterSetIP && i >= 0 && m.carries(x, m.Spec.Ports[i]) && used[*p.Name][x.Cluster] {
			part = "used"
		}
		out[part] = append(out[part], p)
	}
	if len(out) == 0 {
		out[""] = nil
	}
	return out
}

// statusOfImport writes the clusters and the condition Ready.
func (c *controller) statusOfImport(ctx context.Context, k key, m merged) error {
	clusters := make([]any, 0, len(m.Contributions))
	for _, x := range m.Contributions {
		clusters = append(clusters, map[string]any{"cluster": x.Cluster})
	}
	conditions := []metav1.Condition{{Type: string(mcs.ServiceImportConditionReady), Status: metav1.ConditionTrue, Reason: string(mcs.ServiceImportReasonReady), Message: "the names and addresses of the import can be used"}}
	if weighted, ok := m.weightedCondition(); ok {
		conditions = append(conditions, weighted)
	}
	hash := sha256.Sum256(fmt.Append(nil, clusters, conditions))
	at := key{k.kind + "/status", k.namespace, k.name}
	if c.written[at].hash == hash && c.stands(k) {
		return nil
	}
	var list []any
	for _, x := range conditions {
		list = append(list, map[string]any{"type": x.Type, "status": string(x.Status), "reason": x.Reason, "message": x.Message, "lastTransitionTime": metav1.Now().UTC().Format("2006-01-02T15:04:05Z")})
	}
	_, err := c.o.Dynamic.Resource(imports).Namespace(k.namespace).ApplyStatus(ctx, k.name, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": mcs.GroupVersion.String(), "kind": mcs.ServiceImportKindName, "metadata": map[string]any{"name": k.name, "namespace": k.namespace},
		"status": map[string]any{"clusters": clusters, "conditions": list},
	}}, metav1.ApplyOptions{FieldManager: policy.FieldManager, Force: true})
	if err == nil {
		c.written[at] = written{hash: hash}
	}
	return err
}

// foreign is the error for an import of that name which somebody else has made.
func (c *controller) foreign(ctx context.Context, k key) error {
	if _, ok := c.written[k]; ok || c.stands(k) {
		return nil
	}
	o, err := c.o.Dynamic.Resource(imports).Namespace(k.namespace).Get(ctx, k.name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return err
	case o.GetLabels()[ObjectLabel] == "":
		return fmt.Errorf("there is a ServiceImport of that name that Rivulet has not made; delete it: kubectl -n %s delete serviceimport %s", k.namespace, k.name)
	}
	return nil
}

// stands reports whether the object is there, as far as the watch knows.
func (c *controller) stands(k key) bool {
	_, ok, _ := c.watches.own[k.kind].GetStore().GetByKey(k.namespace + "/" + k.name)
	return ok
}

// apply writes an object unless it is there as it was last written. It returns the object as it is.
func (c *controller) apply(ctx context.Context, k key, object any) (*unstructured.Unstructured, error) {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return nil, err
	}
	delete(fields, "status")
	o := &unstructured.Unstructured{Object: fields}
	o.SetNamespace(k.namespace)
	o.SetName(k.name)
	unstructured.RemoveNestedField(fields, "metadata", "creationTimestamp")
	raw, err := json.Marshal(fields)
	if err != nil {
		return nil, err
	}
	hash, last := sha256.Sum256(raw), c.written[k]
	if obj, ok, _ := c.watches.own[k.kind].GetStore().GetByKey(k.namespace + "/" + k.name); ok && last.hash == hash {
		is := obj.(*unstructured.Unstructured)
		if is.GetDeletionTimestamp() == nil && version(is) == last.version {
			return is, nil
		}
	}
	made, err := c.o.Dynamic.Resource(resources[k.kind]).Namespace(k.namespace).Apply(ctx, k.name, o, metav1.ApplyOptions{FieldManager: policy.FieldManager, Force: true})
	if err != nil {
		delete(c.written, k)
		return nil, err
	}
	c.written[k] = written{hash, version(made)}
	return made, nil
}

// version changes with what apply writes. The status of an import is written apart, and has no part in its generation.
func version(o *unstructured.Unstructured) string {
	if o.GetKind() == mcs.ServiceImportKindName {
		return fmt.Sprint(o.GetUID(), o.GetGeneration())
	}
	return o.GetResourceVersion()
}

func (c *controller) remove(ctx context.Context, k key) error {
	delete(c.written, k)
	delete(c.written, key{k.kind + "/status", k.namespace, k.name})
	err := c.o.Dynamic.Resource(resources[k.kind]).Namespace(k.namespace).Delete(ctx, k.name, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
