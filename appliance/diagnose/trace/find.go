package trace

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"

	"rivulet/fabric/cure"
	"rivulet/offload/consumer/pod/translate"
	"rivulet/offload/policy"
)

// Request is what a user wants to follow.
type Request struct {
	// Object is [NAMESPACE/ or KIND/]NAME[:PORT]. KIND is one of kubectl's words for Services and pods; without one, a
	// Service comes before a pod. PORT is a number, or a name of the Service's.
	Object    string
	Namespace string // of Object; empty is all, unless Object has one
	From      string // [NAMESPACE/]POD; empty is this device
}

const (
	kindService = "service"
	kindPod     = "pod"
)

var kinds = map[string]string{
	"svc": kindService, "service": kindService, "services": kindService, "po": kindPod, "pod": kindPod, "pods": kindPod,
}

// object is a parsed Request.Object.
type object struct{ kind, namespace, name, port string }

func (q Request) parse() (o object, err error) {
	text, port, hasPort := strings.Cut(q.Object, ":")
	o = object{namespace: q.Namespace, name: text, port: port}
	if before, name, two := strings.Cut(text, "/"); two {
		o.name = name
		if o.kind = kinds[strings.ToLower(before)]; o.kind == "" {
			if q.Namespace != "" && q.Namespace != before {
				return o, cure.Errorf("%.80q names another namespace than %.80q; leave one of them out", q.Object, q.Namespace)
			}
			o.namespace = before
		}
	}
	if !isName(o.name) || o.namespace != "" && !isName(o.namespace) || hasPort && len(validation.IsDNS1123Label(port)) > 0 {
		return o, cure.Errorf("%.80q is no Service and no pod; write svc/NAME, pod/NAME or NAMESPACE/NAME, with :PORT if it has several", q.Object)
	}
	return o, nil
}

// isName reports whether an object may have the name.
func isName(s string) bool { return len(validation.IsDNS1123Subdomain(s)) == 0 }

// find reads the object into f.
func (o object) find(ctx context.Context, client kubernetes.Interface, f *Facts) error {
	one := metav1.ListOptions{FieldSelector: "metadata.name=" + o.name}
	if o.kind != kindPod {
		list, err := client.CoreV1().Services(o.namespace).List(ctx, one)
		if err != nil {
			return err
		}
		if len(list.Items) > 1 {
			return o.several(kindService, list.Items[0].Namespace, len(list.Items))
		}
		if len(list.Items) == 1 {
			f.Service = &list.Items[0]
			return o.servicePort(f)
		}
	}
	if o.kind != kindService {
		list, err := client.CoreV1().Pods(o.namespace).List(ctx, one)
		if err != nil {
			return err
		}
		if len(list.Items) > 1 {
			return o.several(kindPod, list.Items[0].Namespace, len(list.Items))
		}
		if len(list.Items) == 1 {
			f.Pod = &list.Items[0]
			return o.podPort(f)
		}
	}
	in := ""
	if o.namespace != "" {
		in = " in namespace " + o.namespace
	}
	return cure.Errorf("there is no %s %s%s; see: rivulet kubectl get services,pods -A", cmp.Or(o.kind, "Service or pod"), o.name, in)
}

func (o object) several(kind, namespace string, n int) error {
	return cure.Errorf("%d namespaces have a %s %s; name one: rivulet trace %s/%s -n %s", n, kind, o.name, kind, o.name, namespace)
}

// servicePort chooses the port: the named one, or the only one, or the first for TCP.
func (o object) servicePort(f *Facts) error {
	all := f.Service.Spec.Ports
	if f.Service.Spec.Type == corev1.ServiceTypeExternalName {
		return nil
	}
	at := slices.IndexFunc(all, func(p corev1.ServicePort) bool {
		if o.port == "" {
			return cmp.Or(p.Protocol, corev1.ProtocolTCP) == corev1.ProtocolTCP
		}
		return o.port == p.Name || o.port == strconv.Itoa(int(p.Port))
	})
	if at < 0 && o.port == "" && len(all) > 0 {
		at = 0
	}
	if at < 0 {
		var there []string
		for _, p := range all {
			there = append(there, strconv.Itoa(int(p.Port)))
		}
		return cure.Errorf("Service %s has no port %.60s; it has: %s", f.Service.Name, o.port, cmp.Or(strings.Join(there, ", "), "none"))
	}
	f.Port = all[at]
	return nil
}

// podPort chooses the named port, or the first that the pod declares; 0 if it declares none.
func (o object) podPort(f *Facts) error {
	for c := range translate.KeepRunning(f.Pod) {
		for _, p := range c.Ports {
			if cmp.Or(p.Protocol, corev1.ProtocolTCP) == corev1.ProtocolTCP && (o.port == "" || o.port == p.Name) && f.PodPort == 0 {
				f.PodPort = uint16(p.ContainerPort)
			}
		}
	}
	if f.PodPort != 0 || o.port == "" {
		return nil
	}
	n, err := strconv.ParseUint(o.port, 10, 16)
	if err != nil || n == 0 {
		return cure.Errorf("pod %s has no port %.60q; write a number from 1 to 65535, or a name of its container ports", f.Pod.Name, o.port)
	}
	f.PodPort = uint16(n)
	return nil
}

// source reads the pod of Request.From into f.
func (q Request) source(ctx context.Context, client kubernetes.Interface, f *Facts) error {
	if q.From == "" {
		return nil
	}
	own := ""
	if f.Service != nil {
		own = f.Service.Namespace
	} else {
		own = f.Pod.Namespace
	}
	namespace, name, two := strings.Cut(q.From, "/")
	if !two {
		namespace, name = own, q.From
	} else if kinds[namespace] == kindPod {
		namespace = own
	}
	if !isName(namespace) || !isName(name) {
		return cure.Errorf("%.80q is no pod; write --from POD or --from NAMESPACE/POD", q.From)
	}
	list, err := client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	if err != nil {
		return err
	}
	if len(list.Items) == 0 {
		return cure.Errorf("there is no pod %s in namespace %s; see: rivulet kubectl get pods -n %s", name, namespace, namespace)
	}
	p := &list.Items[0]
	switch {
	case p.Labels[policy.OriginLabel] != "":
		return cure.Errorf("pod %s/%s is of another cluster; follow the way there", namespace, name)
	case p.Status.PodIP == "" || finished(p):
		return cure.Errorf("pod %s/%s does not run, so nothing connects from it; see: rivulet why %s/%s", namespace, name, namespace, name)
	}
	f.From = p
	return nil
}

// describe is an error of the API server, with a cure.
func describe(err error) error {
	return fmt.Errorf("home's API server: %w; see: rivulet status", err)
}
