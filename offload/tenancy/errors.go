package tenancy

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"rivulet/fabric/peer"
)

// Problem is the body of every answer that is not a success, except under /k8s/,
// where the Kubernetes API's own Status is used.
type Problem struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Cure    string `json:"cure"`
	status  int
}

func (p *Problem) Error() string { return "tenancy: " + p.Message + "; " + p.Cure }

func problem(status int, code, cure, format string, args ...any) *Problem {
	return &Problem{status: status, Code: code, Cure: cure, Message: fmt.Sprintf(format, args...)}
}

// asked gives a handler the peer that asks and refuses who is none.
func (t *Tenancy) asked(h func(http.ResponseWriter, *http.Request, peer.ID)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, known := t.PeerID(r)
		if !known || !id.Valid() {
			fail(w, problem(http.StatusUnauthorized, "UnknownPeer", "peer with this cluster first", "only peers of %s are served", t.ClusterName))
			return
		}
		h(w, r, id)
	})
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the client went away: nobody is left to tell
}

// fail answers with the problem; any other error is one of the API server.
func fail(w http.ResponseWriter, err error) {
	var p *Problem
	if !errors.As(err, &p) {
		status := http.StatusServiceUnavailable
		var known apierrors.APIStatus
		if errors.As(err, &known) {
			status = http.StatusInternalServerError
		}
		p = problem(status, "ProviderUnavailable", "try again; `rivulet doctor` on the provider says what is wrong", "%v", err)
	}
	answer(w, p.status, p)
}
