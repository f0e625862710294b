package stream

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/client-go/kubernetes"
)

// access is a kubelet's: requesters are authenticated by a certificate of home's authority, or by a token that home's
// API server accepts, and authorized by home's RBAC on nodes. Anonymous requests are refused.
type access struct {
	node   string
	tokens authenticator.Request
	rbac   authorizer.Authorizer
}

// How long answers of home's API server are cached, as by a kubelet.
const (
	tokenAge      = 2 * time.Minute
	allowedAge    = 5 * time.Minute
	deniedAge     = 30 * time.Second
	reviewTimeout = 10 * time.Second
)

// reviewAgain is the back-off of requests to an API server that does not answer.
var reviewAgain = wait.Backoff{Duration: 500 * time.Millisecond, Factor: 1.5, Jitter: 0.2, Steps: 5}

func newAccess(home kubernetes.Interface, node string) (*access, error) {
	tokens, _, err := authenticatorfactory.DelegatingAuthenticatorConfig{
		TokenAccessReviewClient: home.AuthenticationV1(), TokenAccessReviewTimeout: reviewTimeout,
		WebhookRetryBackoff: &reviewAgain, CacheTTL: tokenAge,
	}.New()
	if err != nil {
		return nil, fmt.Errorf("offload: who may use a virtual node's kubelet API: %w", err)
	}
	rbac, err := authorizerfactory.DelegatingAuthorizerConfig{
		SubjectAccessReviewClient: home.AuthorizationV1(), WebhookRetryBackoff: &reviewAgain,
		AllowCacheTTL: allowedAge, DenyCacheTTL: deniedAge,
	}.New()
	if err != nil {
		return nil, fmt.Errorf("offload: who may use a virtual node's kubelet API: %w", err)
	}
	return &access{node: node, tokens: tokens, rbac: rbac}, nil
}

func (a *access) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who, err := a.who(r)
		if err != nil || who == nil {
			http.Error(w, "Unauthorized", http.StatusUnauthorized)
			return
		}
		if who.GetName() != apiServer {
			asked := attributes(who, a.node, r)
			decision, _, err := a.rbac.Authorize(r.Context(), asked)
			if err != nil || decision != authorizer.DecisionAllow {
				http.Error(w, fmt.Sprintf("Forbidden (user=%s, verb=%s, resource=nodes, subresource=%s); a ClusterRole has to give it, for a Prometheus nodes/metrics",
					who.GetName(), asked.Verb, asked.Subresource), http.StatusForbidden)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// who returns nil for an unknown requester. The handshake has verified the certificate.
func (a *access) who(r *http.Request) (user.Info, error) {
	if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
		subject := r.TLS.PeerCertificates[0].Subject
		return &user.DefaultInfo{Name: subject.CommonName, Groups: append([]string{user.AllAuthenticated}, subject.Organization...)}, nil
	}
	known, ok, err := a.tokens.AuthenticateRequest(r)
	if err != nil || !ok {
		return nil, err
	}
	if known.User.GetName() == apiServer {
		return nil, nil // it has a certificate
	}
	return known.User, nil
}

// attributes are a kubelet's, with one difference: running a program or opening a connection is a write, although a
// WebSocket begins with GET; so read access to nodes/proxy does not include it.
func attributes(who user.Info, node string, r *http.Request) authorizer.AttributesRecord {
	verb := map[string]string{http.MethodPost: "create", http.MethodPut: "update", http.MethodPatch: "patch", http.MethodDelete: "delete"}[r.Method]
	if verb == "" {
		verb = "get"
	}
	of := "proxy"
	for path, subresource := range map[string]string{"/metrics": "metrics", "/stats": "stats", "/healthz": "healthz", "/pods": "pods", "/runningpods": "pods"} {
		if r.URL.Path == path || strings.HasPrefix(r.URL.Path, path+"/") {
			of = subresource
		}
	}
	if of == "proxy" && !strings.HasPrefix(r.URL.Path, "/containerLogs/") {
		verb = "create"
	}
	return authorizer.AttributesRecord{User: who, Verb: verb, APIGroup: "", APIVersion: "v1", Resource: "nodes", Subresource: of, Name: node, ResourceRequest: true, Path: r.URL.Path}
}
