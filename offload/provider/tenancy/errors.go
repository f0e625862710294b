package tenancy

import (
	"errors"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
)

// refusal is an unsuccessful answer. (Under /k8s/ it is the Kubernetes API's own Status, see status.)
type refusal struct {
	status int
	body   rpc.Error
}

func (r *refusal) Error() string { return "tenancy: " + r.body.Error() }

func refuse(status int, code, cure, format string, args ...any) *refusal {
	return &refusal{status, rpc.Error{Code: code, Message: fmt.Sprintf(format, args...), Cure: cure}}
}

// admitted passes the requesting peer to a handler, and refuses clusters that are no peers or may not borrow.
func (t *Tenancy) admitted(h func(http.ResponseWriter, *http.Request, peer.ID)) http.Handler {
	return t.known(func(w http.ResponseWriter, r *http.Request, id peer.ID) {
		if !t.lends(id) {
			fail(w, refuse(http.StatusForbidden, "not-lent", "ask its owner: rivulet peer NAME --provide=on", "%s lends nothing to this cluster", t.ClusterName()))
			return
		}
		h(w, r, id)
	})
}

func (t *Tenancy) lends(id peer.ID) bool { return t.Lends == nil || t.Lends(id) }

// known is admitted for routes that peers may use without borrowing.
func (t *Tenancy) known(h func(http.ResponseWriter, *http.Request, peer.ID)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, known := t.PeerID(r)
		if !known || !id.Valid() {
			fail(w, refuse(http.StatusUnauthorized, "unknown-peer", "peer with this cluster first", "only peers of %s are served", t.ClusterName()))
			return
		}
		h(w, r, id)
	})
}

// counted applies the limits of the consumer to a route.
func (t *Tenancy) counted(h func(http.ResponseWriter, *http.Request, peer.ID)) func(http.ResponseWriter, *http.Request, peer.ID) {
	return func(w http.ResponseWriter, r *http.Request, id peer.ID) {
		ctx, leave, why := t.visitors.enter(r.Context(), id, short, 0)
		if leave == nil {
			fail(w, refuse(http.StatusTooManyRequests, "too-many-requests", "try again in a moment", "%s", why))
			return
		}
		defer leave()
		h(w, r.WithContext(ctx), id)
	}
}

// fail answers with a refusal; any other error is one of the API server.
func fail(w http.ResponseWriter, err error) {
	var known *refusal
	if !errors.As(err, &known) {
		status := http.StatusServiceUnavailable
		var said apierrors.APIStatus
		if errors.As(err, &said) {
			status = http.StatusInternalServerError
		}
		known = refuse(status, "provider-unavailable", statusCure, "%v", err)
	}
	rpc.Fail(w, known.status, &known.body)
}
