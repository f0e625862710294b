package tenancy

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/util/retry"

	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
	"rivulet/offload/policy"
)

// list answers GET /v1/namespaces: the consumer's twins, and those being deleted, in which pods may still run. Peers
// that may not borrow have access as well: a namespace that is in neither list counts as gone.
func (t *Tenancy) list(w http.ResponseWriter, r *http.Request, consumer peer.ID) {
	twins, going := map[string]string{}, map[string]string{}
	namespaces, err := t.of(r.Context(), consumer)
	if err != nil {
		fail(w, err)
		return
	}
	for _, ns := range namespaces {
		if ns.DeletionTimestamp == nil {
			twins[ns.Annotations[policy.HomeNamespaceAnnotation]] = ns.Name
		} else {
			going[ns.Annotations[policy.HomeNamespaceAnnotation]] = ns.Name
		}
	}
	rpc.Write(w, http.StatusOK, map[string]any{"twins": twins, "going": going})
}

// ensure answers PUT /v1/namespaces/{home}.
func (t *Tenancy) ensure(w http.ResponseWriter, r *http.Request, consumer peer.ID) {
	home, err := homeName(r)
	if err != nil {
		fail(w, err)
		return
	}
	var ns *corev1.Namespace
	if err = t.inForce(r.Context()); err == nil {
		ns, err = t.twin(r.Context(), home, consumer)
	}
	if err == nil {
		err = t.furnish(r.Context(), ns.Name, consumer)
	}
	if err != nil {
		t.Log.Warn("no twin for a consumer's namespace", "peer", consumer.Short(), "namespace", home, "err", err)
		fail(w, err)
		return
	}
	rpc.Write(w, http.StatusOK, map[string]string{"name": ns.Name})
}

// remove answers DELETE /v1/namespaces/{home}. Only namespaces with the consumer's own label are ever deleted, and with
// ?uid only that one: a repeated request must not delete a newer twin.
func (t *Tenancy) remove(w http.ResponseWriter, r *http.Request, consumer peer.ID) {
	home, err := homeName(r)
	if err != nil {
		fail(w, err)
		return
	}
	ns, err := t.find(r.Context(), home, consumer)
	if err != nil {
		fail(w, err)
		return
	}
	if asked := r.URL.Query().Get("uid"); ns == nil || asked != "" && asked != string(ns.UID) {
		fail(w, refuse(http.StatusNotFound, "no-twin", "nothing is left to do", "namespace %s has no twin here", home))
		return
	}
	if ns.DeletionTimestamp == nil {
		if err := t.dataless(r.Context(), ns.Name); err != nil {
			fail(w, err)
			return
		}
		uid := ns.UID
		err := t.client.CoreV1().Namespaces().Delete(r.Context(), ns.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
		if err != nil && !apierrors.IsNotFound(err) {
			fail(w, fmt.Errorf("tenancy: delete twin %s: %w", ns.Name, err))
			return
		}
		t.Log.Info("twin released", "peer", consumer.Short(), "namespace", home, "twin", ns.Name)
	}
	rpc.Write(w, http.StatusAccepted, map[string]string{"name": ns.Name, "uid": string(ns.UID)})
}

// dataless refuses to delete a twin with claims, since their data would be deleted.
func (t *Tenancy) dataless(ctx context.Context, twin string) error {
	claims, err := t.client.CoreV1().PersistentVolumeClaims(twin).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("tenancy: claims of twin %s: %w", twin, err)
	}
	if n := len(claims.Items); n > 0 {
		return refuse(http.StatusConflict, "holds-data", "move their data (rivulet move volume NAMESPACE/CLAIM home), or delete them", "twin %s holds %d claims, the first is %s", twin, n, claims.Items[0].Name)
	}
	return nil
}

func homeName(r *http.Request) (string, error) {
	home := r.PathValue("home")
	if faults := validation.IsDNS1123Label(home); len(faults) > 0 {
		return "", refuse(http.StatusBadRequest, "bad-namespace", "use the name of a namespace", "%q is no namespace name: %s", home, strings.Join(faults, "; "))
	}
	return home, nil
}

// twin returns the consumer's twin of home and makes it if it is missing.
func (t *Tenancy) twin(ctx context.Context, home string, consumer peer.ID) (*corev1.Namespace, error) {
	for _, known := range t.twinsOf(consumer) { // found in the cache, verified at the API server
		if !isTwin(known, home, consumer) {
			continue
		}
		if ns, err := t.client.CoreV1().Namespaces().Get(ctx, known.Name, metav1.GetOptions{}); err == nil && isTwin(ns, home, consumer) && ns.DeletionTimestamp == nil {
			return t.repair(ctx, ns, home, consumer)
		}
	}
	// One at a time, so that no other is made between counting and creation.
	leave, err := t.visitors.wait(ctx, consumer, func(v *visitor) chan struct{} { return v.twins })
	if err != nil {
		return nil, err
	}
	defer leave()
	held, err := ofAccount(ctx, t, t.account(consumer))
	if err != nil {
		return nil, err
	}
	if ns := twinAmong(held, home, consumer); ns != nil { // made by a concurrent request
		return t.kept(ctx, ns, home, consumer)
	}
	if len(held) >= maxTwins {
		going := 0
		for _, ns := range held {
			if ns.DeletionTimestamp != nil {
				going++
			}
		}
		return nil, refuse(http.StatusForbidden, "too-many-twins", "give some back: rivulet unoffload NS; those that are being deleted count until they are gone",
			"%s holds %d namespaces of yours already, %d of which are being deleted", t.ClusterName(), len(held), going)
	}
	memory := memoryBound("", t.partOf(consumer))
	names := twinNames(home, t.PeerName(consumer), consumer)
	for _, name := range names {
		want := twinNamespace(name, home, consumer)
		want.Annotations[memoryAnnotation] = memory
		if host := t.hostOf(consumer); host != "" {
			want.Labels[policy.HostLabel] = string(host)
		}
		ns, err := t.client.CoreV1().Namespaces().Create(ctx, want, metav1.CreateOptions{FieldManager: policy.FieldManager})
		if err == nil {
			t.Log.Info("twin made", "peer", consumer.Short(), "namespace", home, "twin", name)
			return ns, nil
		}
		if !apierrors.IsAlreadyExists(err) {
			return nil, fmt.Errorf("tenancy: make twin %s: %w", name, err)
		}
		// A list may lag behind a creation, which must not cause a second twin.
		if have, err := t.client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{}); err == nil && isTwin(have, home, consumer) {
			return t.kept(ctx, have, home, consumer)
		}
	}
	return nil, refuse(http.StatusConflict, "name-taken", fmt.Sprintf("rename or delete namespace %s on %s", names[1], t.ClusterName()),
		"%s has namespaces %s and %s already and they are not yours", t.ClusterName(), names[0], names[1])
}

// kept returns an existing twin.
func (t *Tenancy) kept(ctx context.Context, ns *corev1.Namespace, home string, consumer peer.ID) (*corev1.Namespace, error) {
	if ns.DeletionTimestamp != nil {
		return nil, refuse(http.StatusConflict, "terminating", "ask again in a moment", "the former twin %s is still being deleted", ns.Name)
	}
	return t.repair(ctx, ns, home, consumer)
}

// repair restores labels that were removed from a twin, as the watch of twins does.
func (t *Tenancy) repair(ctx context.Context, ns *corev1.Namespace, home string, consumer peer.ID) (*corev1.Namespace, error) {
	all := t.client.CoreV1().Namespaces()
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		fixed := ns.DeepCopy()
		maps.Copy(fixed.Labels, twinNamespace(ns.Name, home, consumer).Labels)
		if maps.Equal(fixed.Labels, ns.Labels) {
			return nil
		}
		fixed, err := all.Update(ctx, fixed, metav1.UpdateOptions{FieldManager: policy.FieldManager})
		if err == nil {
			ns = fixed
		} else if now, gerr := all.Get(ctx, ns.Name, metav1.GetOptions{}); apierrors.IsConflict(err) && gerr == nil && isTwin(now, home, consumer) {
			ns = now
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("tenancy: repair twin %s: %w", ns.Name, err)
	}
	return ns, nil
}

// find returns the consumer's twin of home, nil if there is none; one that is being deleted only if there is no other.
func (t *Tenancy) find(ctx context.Context, home string, consumer peer.ID) (*corev1.Namespace, error) {
	namespaces, err := t.of(ctx, consumer)
	if err != nil {
		return nil, err
	}
	return twinAmong(namespaces, home, consumer), nil
}

// twinAmong is find in a list.
func twinAmong(namespaces []corev1.Namespace, home string, consumer peer.ID) *corev1.Namespace {
	var going *corev1.Namespace
	for i := range namespaces {
		ns := &namespaces[i]
		switch {
		case !isTwin(ns, home, consumer):
		case ns.DeletionTimestamp == nil:
			return ns
		default:
			going = ns
		}
	}
	return going
}

// ofAccount lists the twins that count for a consumer: its own and those of its virtual clusters.
func ofAccount(ctx context.Context, t *Tenancy, consumer peer.ID) ([]corev1.Namespace, error) {
	own, err := t.of(ctx, consumer)
	if err != nil {
		return nil, err
	}
	hosted, err := t.client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{LabelSelector: policy.HostLabel + "=" + string(consumer)})
	if err != nil {
		return nil, fmt.Errorf("tenancy: list twins: %w", err)
	}
	return append(own, hosted.Items...), nil
}

// of lists the twins of the consumer from the API server: a cache may lag behind the last request.
func (t *Tenancy) of(ctx context.Context, consumer peer.ID) ([]corev1.Namespace, error) {
	list, err := t.client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{LabelSelector: policy.OriginLabel + "=" + string(consumer)})
	if err != nil {
		return nil, fmt.Errorf("tenancy: list twins: %w", err)
	}
	return list.Items, nil
}
