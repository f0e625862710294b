package tenancy

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"path"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"rivulet/fabric/peer"
	"rivulet/offload/apiproxy"
)

// prefix of the Kubernetes API on the control port.
const prefix = "/k8s"

// proxy forwards requests to the local API server as the consumer's user, whose rights RBAC decides there.
type proxy struct{ *apiproxy.Proxy }

func newProxy(local *rest.Config, log *slog.Logger) (*proxy, error) {
	p, err := apiproxy.New(local, log)
	return &proxy{p}, err
}

// serve answers /k8s/….
func (p *proxy) serve(w http.ResponseWriter, r *http.Request, consumer peer.ID) {
	target, allowed := apiPath(r.URL)
	if !allowed {
		status(w, http.StatusForbidden, metav1.StatusReasonForbidden, fmt.Sprintf("%q is not open to other clusters", r.URL.Path))
		return
	}
	p.Serve(w, r, as(consumer), target, "")
}

// as is the consumer as a user of the API server.
func as(consumer peer.ID) apiproxy.As {
	return apiproxy.As{User: User(consumer), Group: Group, Silent: "the provider's API server does not answer; try again"}
}

// open are the paths of the API server that consumers may reach; RBAC decides what they may do there.
var open = []string{"/api", "/apis", "/version", "/openapi/v2", "/openapi/v3"}

// apiPath returns the path on the API server. Only plain paths pass: without escapes, and in clean form.
func apiPath(u *url.URL) (string, bool) {
	target, ok := strings.CutPrefix(u.Path, prefix)
	if !ok || u.RawPath != "" || path.Clean(target) != strings.TrimSuffix(target, "/") {
		return "", false
	}
	for _, o := range open {
		if target == o || strings.HasPrefix(target, o+"/") {
			return target, true
		}
	}
	return "", false
}

// status answers in the form of the API server.
func status(w http.ResponseWriter, code int, reason metav1.StatusReason, message string) {
	apiproxy.Refuse(w, code, reason, message)
}
