package explain

import (
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/fabric/peer"
)

// subject is an object that is not a pod: the reasons found, in order, and the text without any.
type subject struct {
	kind    string
	meta    metav1.ObjectMeta
	state   string
	reasons []Reason
	fine    string
}

// object explains f.Object.
func (f Facts) object() Answer {
	s := f.subject()
	a := Answer{Kind: s.kind, Namespace: s.meta.Namespace, Name: s.meta.Name, State: s.state}
	if left := f.remains(&s.meta); left != nil {
		a.State, a.Reasons = "Terminating", left
	}
	if a.Reasons = append(a.Reasons, s.reasons...); len(a.Reasons) == 0 {
		a.Reasons = []Reason{{Code: Fine, What: s.fine}}
	}
	return f.withLeftOut(a)
}

func (f Facts) subject() subject {
	switch o := f.Object.(type) {
	case *appsv1.Deployment:
		return f.workload(workload{kind: "Deployment", meta: o.ObjectMeta, want: wanted(o.Spec.Replicas), ready: o.Status.ReadyReplicas, paused: o.Spec.Paused && o.Status.UpdatedReplicas < wanted(o.Spec.Replicas),
			conditions: conditionsOf(o.Status.Conditions, func(c appsv1.DeploymentCondition) known {
				return known{string(c.Type), c.Reason, c.Message, c.Status == corev1.ConditionTrue}
			})})
	case *appsv1.StatefulSet:
		return f.workload(workload{kind: "StatefulSet", meta: o.ObjectMeta, want: wanted(o.Spec.Replicas), ready: o.Status.ReadyReplicas})
	case *appsv1.ReplicaSet:
		return f.workload(workload{kind: "ReplicaSet", meta: o.ObjectMeta, want: wanted(o.Spec.Replicas), ready: o.Status.ReadyReplicas,
			conditions: conditionsOf(o.Status.Conditions, func(c appsv1.ReplicaSetCondition) known {
				return known{string(c.Type), c.Reason, c.Message, c.Status == corev1.ConditionTrue}
			})})
	case *appsv1.DaemonSet:
		return f.workload(workload{kind: "DaemonSet", meta: o.ObjectMeta, want: o.Status.DesiredNumberScheduled, ready: o.Status.NumberReady})
	case *batchv1.Job:
		return f.workload(job(o))
	case *batchv1.CronJob:
		return f.cronJob(o)
	case *corev1.Service:
		return f.service(o)
	case *corev1.PersistentVolumeClaim:
		return subject{"PersistentVolumeClaim", o.ObjectMeta, string(o.Status.Phase),
			slices.Concat(f.lostClaim(o), f.pending(o), f.bound(o)), f.wherever(o)}
	case *networkingv1.Ingress:
		return f.ingress(o)
	case *corev1.Namespace:
		return f.namespace(o)
	case *corev1.Node:
		return f.nodeItself(o)
	case *peer.View:
		return f.peer(o)
	}
	return subject{}
}

// remains explains an object that was deleted and still exists.
func (f Facts) remains(m *metav1.ObjectMeta) []Reason {
	ns, isNamespace := f.Object.(*corev1.Namespace)
	switch {
	case m.DeletionTimestamp == nil:
		return nil
	case isNamespace:
		var what []string
		for _, c := range ns.Status.Conditions {
			if c.Status == corev1.ConditionTrue {
				what = append(what, short(c.Message))
			}
		}
		if len(what) > 0 {
			return []Reason{{Deleting, "it was deleted, and something in it remains: " + strings.Join(what, "; "), "see what has a finalizer, and why: rivulet kubectl get all,pvc -n " + m.Name}}
		}
		return []Reason{{Deleting, "it was deleted, and what is in it is being deleted", ""}}
	}
	claim, _ := f.Object.(*corev1.PersistentVolumeClaim)
	if claim != nil && slices.Contains(m.Finalizers, "kubernetes.io/pvc-protection") {
		if users := f.users(claim); len(users) > 0 {
			return []Reason{{Deleting, "it was deleted, and goes when pod " + users[0].Name + " does not use it any more", "rivulet kubectl delete pod -n " + m.Namespace + " " + users[0].Name}}
		}
	}
	if len(m.Finalizers) > 0 {
		return []Reason{{Deleting, "it was deleted and waits for " + strings.Join(m.Finalizers, ", "), "look at what set that finalizer"}}
	}
	return []Reason{{Deleting, "it was deleted, and is going", ""}}
}

// namespace explains whether the pods of a namespace may go away, and whether a target accepts them.
func (f Facts) namespace(n *corev1.Namespace) subject {
	pods := f.podsOf(n.Name, func(*corev1.Pod) bool { return true })
	return subject{"Namespace", n.ObjectMeta, string(n.Status.Phase),
		slices.Concat(f.whereTo(n), f.quotas(), f.worst(pods)), f.wherePods(n, pods)}
}

// ingress explains an Ingress; its controller's report comes first.
func (f Facts) ingress(i *networkingv1.Ingress) subject {
	fine := "it is served"
	if all := i.Status.LoadBalancer.Ingress; len(all) > 0 {
		fine += fmt.Sprintf(" at %s%s", all[0].IP, all[0].Hostname)
	}
	return subject{"Ingress", i.ObjectMeta, "", append(f.unserved(i), f.backends(i)...), fine}
}

// ownClass is the built-in IngressClass.
const ownClass = "rivulet"

func (f Facts) unserved(i *networkingv1.Ingress) []Reason {
	if p := f.problem("ingress-unserved", i.Namespace+"/"+i.Name); p != nil {
		return []Reason{{Address, p.Text, p.Cure}}
	}
	name := ""
	if i.Spec.IngressClassName != nil {
		name = *i.Spec.IngressClassName
	}
	class := named(f.IngressClasses, name)
	missing := name != "" && class == nil
	if name == "" && i.Annotations["kubernetes.io/ingress.class"] == "" {
		missing = !slices.ContainsFunc(f.IngressClasses, func(c networkingv1.IngressClass) bool {
			return c.Annotations[networkingv1.AnnotationIsDefaultIngressClass] == "true"
		})
	}
	if missing {
		what := "there is no IngressClass " + name
		if name == "" {
			what = "it names no class, and none is the default"
		}
		if named(f.IngressClasses, ownClass) == nil {
			return []Reason{{Class, what + "; the controller that is built in is switched off", "write `ingress: true` into the configuration, and then: rivulet config reload"}}
		}
		return []Reason{{Class, what, "rivulet kubectl patch ingress -n " + i.Namespace + " " + i.Name + ` -p '{"spec":{"ingressClassName":"` + ownClass + `"}}'`}}
	}
	for k := range f.Problems {
		if p := &f.Problems[k]; p.Code == "ingress-port" && (name == ownClass || class == nil) {
			return []Reason{{Address, p.Text, p.Cure}}
		}
	}
	return nil
}

// backends are the problems of an Ingress's Services.
func (f Facts) backends(i *networkingv1.Ingress) (out []Reason) {
	var names []string
	add := func(b *networkingv1.IngressBackend) {
		if b != nil && b.Service != nil && !slices.Contains(names, b.Service.Name) {
			names = append(names, b.Service.Name)
		}
	}
	add(i.Spec.DefaultBackend)
	for _, r := range i.Spec.Rules {
		if r.HTTP != nil {
			for k := range r.HTTP.Paths {
				add(&r.HTTP.Paths[k].Backend)
			}
		}
	}
	for _, name := range names {
		s := named(f.Services, name)
		if s == nil {
			out = append(out, Reason{Endpoints, "there is no Service " + name + " for it to lead to", "make it, or name another in the Ingress: rivulet kubectl get services -n " + i.Namespace})
			continue
		}
		for _, r := range f.endpoints(s) {
			r.What = "Service " + name + ": " + r.What
			out = append(out, r)
		}
	}
	return out
}
