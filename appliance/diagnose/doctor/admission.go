package doctor

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"rivulet/appliance/addons/nodeservice"
	"rivulet/appliance/health"
)

var admission = Probe{Kind: health.Admission, Title: "webhooks and APIs of other programs", Every: soon, Run: probeAdmission}

// calls are the kinds of objects for which the API server calls other programs, with their paths.
var calls = [][2]string{
	{"validatingwebhookconfiguration", "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"},
	{"mutatingwebhookconfiguration", "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"},
	{"apiservice", "/apis/apiregistration.k8s.io/v1/apiservices"},
}

// caller is the needed part of an object of these kinds.
type caller struct {
	Metadata metav1.ObjectMeta
	Webhooks []struct {
		FailurePolicy string
		ClientConfig  struct{ Service *called }
	}
	Spec   struct{ Service *called }
	Status struct{ Conditions []metav1.Condition }
}

type called struct {
	Namespace, Name string
	Port            int32
}

// probeAdmission finds webhooks whose failure refuses requests, and APIs without a server.
func probeAdmission(ctx context.Context, e *Env) Result {
	client, err := e.API()
	if err != nil {
		return e.unasked("the API server cannot be asked", err)
	}
	var refusing, silent, cures []string
	own := false
	found := func(list *[]string, kind string, o metav1.ObjectMeta, does, why string) {
		*list = append(*list, fmt.Sprintf("%s %s %s: %s", kind, o.Name, does, why))
		if o.Labels[nodeservice.ManagedByLabel] == nodeservice.ManagedBy {
			own = true
			return
		}
		cures = append(cures, "rivulet kubectl delete "+kind+" "+o.Name)
	}
	for _, kind := range calls {
		raw, err := client.Discovery().RESTClient().Get().AbsPath(kind[1]).Param("resourceVersion", "0").DoRaw(ctx)
		var all struct{ Items []caller }
		if err == nil {
			err = json.Unmarshal(raw, &all)
		}
		if err != nil {
			return e.unasked("the API server cannot be asked", err)
		}
		for _, c := range all.Items {
			for _, w := range c.Webhooks {
				if w.FailurePolicy == "Ignore" {
					continue
				}
				if why := e.unserved(ctx, client, w.ClientConfig.Service); why != "" {
					found(&refusing, kind[0], c.Metadata, "refuses what it is about", why)
					break
				}
			}
			for _, s := range c.Status.Conditions {
				if c.Spec.Service != nil && s.Type == "Available" && s.Status == metav1.ConditionFalse && e.Now().Sub(s.LastTransitionTime.Time) > time.Minute {
					found(&silent, kind[0], c.Metadata, "is not served, so that namespaces do not end", s.Message)
				}
			}
		}
	}
	var cure []string
	if len(cures) > 0 {
		cure = append(cure, "start what they belong to, or remove them: "+strings.Join(cures, " && "))
	}
	if own { // of this program, at an address of this device
		cure = append(cure, "find what keeps this device from its own address: rivulet doctor --only cidr,firewall,pod-network")
	}
	switch text := strings.Join(append(refusing, silent...), "; "); {
	case len(refusing) > 0:
		return Failf(strings.Join(cure, "; "), "%s", text)
	case len(silent) > 0:
		return Warnf(strings.Join(cure, "; "), "%s", text)
	}
	return Passf("all are served")
}

// unserved returns why the API server cannot reach a Service; empty if it may.
func (e *Env) unserved(ctx context.Context, client kubernetes.Interface, at *called) string {
	if at == nil {
		return ""
	}
	name := at.Namespace + "/" + at.Name
	s, err := client.CoreV1().Services(at.Namespace).Get(ctx, at.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "its Service " + name + " is not there"
	}
	if err != nil {
		return ""
	}
	ip, err := netip.ParseAddr(s.Spec.ClusterIP)
	if err != nil {
		return ""
	}
	addr := netip.AddrPortFrom(ip, uint16(cmp.Or(at.Port, 443)))
	for range 2 { // one of several pods may be gone
		if e.Dial(ctx, addr) == nil || ctx.Err() != nil {
			return ""
		}
	}
	return fmt.Sprintf("nobody answers for its Service %s (%s)", name, addr)
}
