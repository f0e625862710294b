package ingress

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"rivulet/appliance/addons/loadbalancer"
	"rivulet/appliance/health"
	"rivulet/offload/policy"
)

// renewal is the interval of checks whether certificates have expired.
const renewal = time.Hour

// settle makes the table, writes statuses and sends events about problems. It returns when to repeat that without a
// change; 0 is never.
func (c *Controller) settle(ctx context.Context, w *world) (time.Duration, error) {
	ingresses, classes := w.all()
	class := c.keepClass(ctx, w.on, classes)
	failed := []error{class}
	var mine, others []*source
	for _, i := range ingresses {
		if i.DeletionTimestamp != nil {
			continue
		}
		s, st := &source{Ingress: i}, standingOf(i, classes)
		if s.lent = st.lent(); w.on && st.ours() {
			origin, known := w.origin(ctx, i.Namespace)
			if !known {
				continue // its namespace is not listed yet
			}
			s.origin, s.served = origin, true
			mine = append(mine, s)
			continue
		}
		others = append(others, s)
	}
	addrs := loadbalancer.Addresses(c.cfg.LANs.LANs())
	if w.on {
		c.server.table.Store(c.build(w, admitted(mine)))
	}
	for _, s := range mine {
		want := addrs
		if s.origin != "" && !s.lent {
			want = nil
		}
		failed = append(failed, c.write(ctx, s.Ingress, want))
		if len(addrs) == 0 {
			s.find(reasonNoLAN, "plug in a cable or join a Wi-Fi; it goes on by itself", "the device has no address on a LAN")
		}
	}
	next := time.Duration(0)
	if len(mine) > 0 {
		next = renewal
	}
	for _, s := range others {
		if written(s.Ingress) {
			failed = append(failed, c.write(ctx, s.Ingress, nil))
		}
	}
	if wait := c.withoutController(ctx, w, others, classes); wait > 0 {
		next = wait
	}
	c.report(append(mine, others...), addrs, class)
	return next, errors.Join(failed...)
}

func (c *Controller) keepClass(ctx context.Context, on bool, classes []*networkingv1.IngressClass) error {
	if on {
		return c.ensureClass(ctx, classes)
	}
	return c.removeClass(ctx, classes)
}

// build makes the table of Ingresses, and watches the objects that they name.
func (c *Controller) build(w *world, all []*source) *table {
	spaces, secrets := map[string]bool{}, map[secretName]bool{}
	for _, s := range all {
		spaces[s.Namespace] = s.origin != ""
		for _, t := range s.Spec.TLS {
			if t.SecretName != "" && len(secrets) < maxCertificates {
				secrets[secretName{s.Namespace, t.SecretName}] = true
			}
		}
	}
	w.want(spaces, secrets)
	t := build(all, facts{
		service: func(namespace, name string) (*corev1.Service, bool) { return w.spaces[namespace].service(name) },
		slices: func(namespace, service string) []*discoveryv1.EndpointSlice {
			return w.spaces[namespace].slices(service)
		},
		secret: w.secret, pods: w.podsOf, networks: c.cfg.Networks(), certs: c.certs, now: time.Now(),
	})
	c.certs.sweep()
	return t
}

// podsOf are the addresses of a twin's pods that run here.
func (w *world) podsOf(namespace string) map[netip.Addr]bool {
	out := map[netip.Addr]bool{}
	s := w.spaces[namespace]
	if s == nil || s.pods == nil || !s.known() {
		return out
	}
	pods, _ := s.pods.List(labels.Everything()) // a cache does not fail
	for _, p := range pods {
		ended := p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
		if a, err := netip.ParseAddr(p.Status.PodIP); err == nil && !ended && !p.Spec.HostNetwork {
			out[a] = true
		}
	}
	return out
}

// withoutController finds Ingresses without a controller. It returns when to check again.
func (c *Controller) withoutController(ctx context.Context, w *world, all []*source, classes []*networkingv1.IngressClass) (next time.Duration) {
	missed := map[string]time.Time{}
	now := time.Now()
	for _, s := range all {
		text, cure := c.missing(s.Ingress, w.on, classes)
		elsewhere := len(s.Status.LoadBalancer.Ingress) > 0 && !written(s.Ingress)
		if text == "" || elsewhere || s.Annotations[policy.ReflectAnnotation] == "on" {
			continue // it has a controller, or is served where its pods are
		}
		since, known := c.missed[string(s.UID)]
		if !known {
			since = now
		}
		missed[string(s.UID)] = since
		if left := c.absent - now.Sub(since); left > 0 {
			if next == 0 || left < next {
				next = left
			}
			continue
		}
		// Only owners in this cluster have received an event.
		if f := (finding{reasonNobody, text, cure}); !c.reported[string(s.UID)][f.String()] {
			if origin, known := w.origin(ctx, s.Namespace); !known || origin != "" {
				continue // its owner is elsewhere, and was informed at the creation
			}
		}
		s.find(reasonNobody, cure, "%s", text)
	}
	c.missed = missed
	return next
}

// missing returns why no controller serves an Ingress; empty if one may.
func (c *Controller) missing(i *networkingv1.Ingress, on bool, classes []*networkingv1.IngressClass) (text, cure string) {
	s := standingOf(i, classes)
	cure = switchOn(c.cfg.File)
	if on {
		cure = fmt.Sprintf(`rivulet kubectl -n %s patch ingress %s --type merge -p '{"spec":{"ingressClassName":"%s"}}'`, i.Namespace, i.Name, Class)
	}
	cure += "; or: install another controller"
	switch {
	case s.class == nil && s.name == "":
		return "no controller serves this Ingress: it names no class, and there is no default one", cure
	case s.class == nil:
		return fmt.Sprintf("no controller serves this Ingress: there is no IngressClass %s", s.name), cure
	case s.ours() && !on:
		return fmt.Sprintf("no controller serves this Ingress: its IngressClass %s is Rivulet's, whose controller is switched off", s.name), cure
	}
	return "", ""
}

var ownKey = regexp.MustCompile(`(?m)^ingress:.*$`)

// switchOn is the command that switches the controller on, with effect at once.
func switchOn(file string) string {
	switch text, err := os.ReadFile(file); {
	case err != nil:
		return "echo 'ingress: true' | install -D -m 600 /dev/stdin " + file
	case ownKey.Match(text):
		return "sed -i 's/^ingress:.*/ingress: true/' " + file
	}
	return `printf '\ningress: true\n' >> ` + file // the last line of the file may lack a line break
}

// written reports whether this controller has written an Ingress's addresses, in this or an earlier run.
func written(i *networkingv1.Ingress) bool {
	return len(i.Status.LoadBalancer.Ingress) > 0 && slices.ContainsFunc(i.ManagedFields, func(m metav1.ManagedFieldsEntry) bool {
		return m.Manager == fieldManager && m.FieldsV1 != nil && strings.Contains(string(m.FieldsV1.Raw), `"f:ingress"`)
	})
}

// write writes an Ingress's addresses.
func (c *Controller) write(ctx context.Context, i *networkingv1.Ingress, addrs []netip.Addr) error {
	var want []networkingv1.IngressLoadBalancerIngress
	for _, a := range addrs {
		want = append(want, networkingv1.IngressLoadBalancerIngress{IP: a.String()})
	}
	same := func(a, b networkingv1.IngressLoadBalancerIngress) bool {
		return a.IP == b.IP && a.Hostname == b.Hostname
	}
	if slices.EqualFunc(want, i.Status.LoadBalancer.Ingress, same) {
		return nil
	}
	update := i.DeepCopy()
	update.Status.LoadBalancer.Ingress = want
	_, err := c.cfg.Client.NetworkingV1().Ingresses(i.Namespace).UpdateStatus(ctx, update, metav1.UpdateOptions{FieldManager: fieldManager})
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil // its change triggers the next pass
	}
	if err != nil {
		return fmt.Errorf("status of Ingress %s/%s: %w", i.Namespace, i.Name, err)
	}
	return nil
}

// report sends each Ingress an event for new findings, and shows in `rivulet status` all findings of this cluster's own
// Ingresses and of the class.
func (c *Controller) report(all []*source, addrs []netip.Addr, class error) {
	told, problems := map[string]map[string]bool{}, map[string][2]string{}
	if errors.Is(class, errForeign) {
		problems["IngressClass "+Class] = [2]string{class.Error() + ", so Ingresses of that class are not served", "give that one another name: kubectl delete ingressclass " + Class}
	}
	for _, s := range all {
		before, now := c.reported[string(s.UID)], map[string]bool{}
		event := func(kind, reason, text string) {
			if now[text] = true; !before[text] {
				c.recorder.Event(s.Ingress, kind, reason, text)
			}
		}
		for _, f := range s.found {
			event(corev1.EventTypeWarning, f.reason, f.String())
			if _, first := problems[s.String()]; !first && s.origin == "" {
				problems[s.String()] = [2]string{f.text, f.cure}
			}
		}
		if s.served && !s.pending && len(s.found) == 0 {
			event(corev1.EventTypeNormal, reasonServed, "reached from the LAN at "+joined(addrs))
		}
		told[string(s.UID)] = now
	}
	c.reported = told
	c.cfg.Health.Replace(health.IngressUnserved, problems)
}

func joined(addrs []netip.Addr) string {
	var out []string
	for _, a := range addrs {
		out = append(out, a.String())
	}
	return strings.Join(out, ", ")
}
