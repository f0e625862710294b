package tenancy

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/url"
	"path"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/httpstream"
	"k8s.io/client-go/rest"

	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
)

// prefix of the Kubernetes API on the control port.
const prefix = "/k8s"

// proxy passes requests on to the local API server as the consumer's user. What
// that user may do is decided there, by RBAC.
//
//	consumer ──mTLS──▶ control port ──/k8s/…──▶ API server
//	   who: pinned certificate         who: Impersonate-User set here
type proxy struct {
	server  *url.URL
	plain   http.RoundTripper
	upgrade http.RoundTripper // HTTP/1.1: HTTP/2 has no upgrades
	log     *slog.Logger
}

func newProxy(local *rest.Config, log *slog.Logger) (*proxy, error) {
	server, _, err := rest.DefaultServerUrlFor(local)
	if err != nil {
		return nil, fmt.Errorf("tenancy: address of the API server: %w", err)
	}
	plain, err := rest.TransportFor(local)
	if err != nil {
		return nil, fmt.Errorf("tenancy: transport to the API server: %w", err)
	}
	old := rest.CopyConfig(local)
	old.NextProtos = []string{"http/1.1"}
	upgrade, err := rest.TransportFor(old)
	if err != nil {
		return nil, fmt.Errorf("tenancy: transport to the API server: %w", err)
	}
	return &proxy{server: server, plain: plain, upgrade: upgrade, log: log}, nil
}

// serve answers /k8s/….
func (p *proxy) serve(w http.ResponseWriter, r *http.Request, consumer peer.ID) {
	target, allowed := apiPath(r.URL)
	if !allowed {
		status(w, http.StatusForbidden, metav1.StatusReasonForbidden, fmt.Sprintf("%q is not open to other clusters", r.URL.Path))
		return
	}
	transport := p.plain
	if httpstream.IsUpgradeRequest(r) {
		transport = p.upgrade
	}
	reverse := httputil.ReverseProxy{
		Transport:     transport,
		FlushInterval: -1, // watches and logs pass as they come
		ErrorLog:      slog.NewLogLogger(p.log.Handler(), slog.LevelDebug),
		Rewrite: func(out *httputil.ProxyRequest) {
			out.Out.URL.Scheme, out.Out.URL.Host = p.server.Scheme, p.server.Host
			out.Out.URL.Path, out.Out.URL.RawPath = target, ""
			out.Out.Host = p.server.Host
			impersonate(out.Out.Header, consumer)
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if r.Context().Err() == nil {
				p.log.Warn("a consumer's request did not reach the API server", "peer", consumer.Short(), "path", target, "error", err)
			}
			status(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "the provider's API server does not answer; try again")
		},
	}
	reverse.ServeHTTP(w, r)
}

// open are the parts of the API server that consumers may reach at all; what
// they may do there is RBAC's.
var open = []string{"/api", "/apis", "/version", "/openapi/v2", "/openapi/v3"}

// apiPath returns the path on the API server. Only plain paths pass: nothing
// escaped, nothing to clean.
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

// bearer is the WebSocket subprotocol in which the API server takes tokens.
const bearer = "base64url.bearer.authorization.k8s.io."

// impersonate makes the request the consumer's, and takes out all by which its
// sender could say otherwise. Hop-by-hop headers, Connection's list included,
// are gone already: they cannot remove what is set here.
func impersonate(h http.Header, consumer peer.ID) {
	for key := range h {
		k := strings.ToLower(key)
		if strings.HasPrefix(k, "impersonate-") || strings.HasPrefix(k, "x-remote-") || k == "authorization" || k == "cookie" {
			delete(h, key)
		}
	}
	if protocols := h.Values("Sec-Websocket-Protocol"); len(protocols) > 0 {
		var kept []string
		for _, p := range strings.Split(strings.Join(protocols, ","), ",") {
			if p = strings.TrimSpace(p); !strings.HasPrefix(p, bearer) {
				kept = append(kept, p)
			}
		}
		h.Set("Sec-Websocket-Protocol", strings.Join(kept, ", "))
	}
	h.Set("Impersonate-User", User(consumer))
	// system:authenticated is what lets every user discover the API.
	h["Impersonate-Group"] = []string{Group, "system:authenticated"}
}

// status answers as the API server would, so that every Kubernetes client
// understands it.
func status(w http.ResponseWriter, code int, reason metav1.StatusReason, message string) {
	rpc.Write(w, code, metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure, Code: int32(code), Reason: reason, Message: message,
	})
}
