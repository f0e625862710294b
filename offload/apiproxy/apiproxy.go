// Package apiproxy forwards HTTP requests to this cluster's API server as a user whom the caller has authenticated: a
// peer with a pinned certificate, or a user of a kubeconfig of this cluster (Impersonate-User is set here). RBAC at the
// API server decides what that user may do. Bodies that would cost the API server too much are refused (package foreign).
// The package reads and writes nothing. Failure: while the API server is down requests get 503.
package apiproxy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/httpstream"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/rest"

	"rivulet/fabric/httpserver"
	"rivulet/fabric/rpc"
	"rivulet/offload/foreign"
)

// Proxy forwards to one API server. It may be used concurrently.
type Proxy struct {
	server  *url.URL
	plain   http.RoundTripper
	upgrade http.RoundTripper // HTTP/1.1: HTTP/2 has no upgrades
	log     *slog.Logger
}

// New makes a Proxy to the API server of local, whose credentials may impersonate.
func New(local *rest.Config, log *slog.Logger) (*Proxy, error) {
	server, _, err := rest.DefaultServerUrlFor(local)
	if err != nil {
		return nil, fmt.Errorf("apiproxy: address of the API server: %w", err)
	}
	plain, err := rest.TransportFor(local)
	if err != nil {
		return nil, fmt.Errorf("apiproxy: transport to the API server: %w", err)
	}
	old := rest.CopyConfig(local)
	old.NextProtos = []string{"http/1.1"}
	upgrade, err := rest.TransportFor(old)
	if err != nil {
		return nil, fmt.Errorf("apiproxy: transport to the API server: %w", err)
	}
	return &Proxy{server: server, plain: plain, upgrade: upgrade, log: log}, nil
}

// As is the user of a request. Every user is also in the group system:authenticated, which may use discovery.
type As struct {
	User, Group string
	// Itself: the proxy's credentials are the user's own. Nobody is impersonated except whom the user names, and the
	// API server authorizes that.
	Itself bool
	// Silent is the message while the API server does not answer.
	Silent string
}

// Serve forwards the request with the path at, which may be escaped (url.URL.RawPath).
func (p *Proxy) Serve(w http.ResponseWriter, r *http.Request, as As, at, escaped string) {
	if judged(r, at) && (r.ContentLength < 0 || r.ContentLength > smallBody) {
		// A name is that of another user at another API server.
		large.Serve(fmt.Sprintf("%p %s", p, as.User), w, r, func(w http.ResponseWriter, r *http.Request) { p.serve(w, r, as, at, escaped) })
		return
	}
	p.serve(w, r, as, at, escaped)
}

func (p *Proxy) serve(w http.ResponseWriter, r *http.Request, as As, at, escaped string) {
	if !acceptable(w, r, at) {
		return
	}
	transport := p.plain
	if httpstream.IsUpgradeRequest(r) {
		transport = p.upgrade
	}
	reverse := httputil.ReverseProxy{
		Transport:     transport,
		FlushInterval: -1, // watches and logs are not buffered
		ErrorLog:      slog.NewLogLogger(p.log.Handler(), slog.LevelDebug),
		Rewrite: func(out *httputil.ProxyRequest) {
			out.Out.URL.Scheme, out.Out.URL.Host = p.server.Scheme, p.server.Host
			out.Out.URL.Path, out.Out.URL.RawPath = at, escaped
			out.Out.Host = p.server.Host
			if as.Itself {
				strip(out.Out.Header, true)
			} else {
				Impersonate(out.Out.Header, as)
			}
		},
		ModifyResponse: rpc.EndBody(r),
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if r.Context().Err() == nil {
				p.log.Warn("a request did not reach the API server", "user", as.User, "path", at, "err", err)
			}
			Refuse(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, as.Silent)
		},
	}
	reverse.ServeHTTP(w, r)
}

const (
	// maxBody is the API server's own bound, in bytes. A body up to smallBody is always read.
	maxBody, smallBody = 3 << 20, 64 << 10
	// bodyTime is for a whole body.
	bodyTime = time.Minute
)

// large has the requests under way whose larger bodies are in memory: four of one user, and one when there are many.
var large = httpserver.Gate{Each: 4, Total: 16, Bytes: 1 << 20}

var infos = request.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api")}

// Parse returns how the API server understands a request with that path.
func Parse(r *http.Request, at string) *request.RequestInfo {
	info, err := infos.NewRequestInfo(&http.Request{Method: r.Method, URL: &url.URL{Path: at, RawQuery: r.URL.RawQuery}})
	if err != nil { // without a resource
		return &request.RequestInfo{Verb: strings.ToLower(r.Method)}
	}
	return info
}

// acceptable reports whether the API server may have the body of the request, which is read for that; it is answered otherwise.
// Bodies for what runs in pods and nodes are passed as they come.
func acceptable(w http.ResponseWriter, r *http.Request, at string) bool {
	if !judged(r, at) {
		return true
	}
	raw, err := io.ReadAll(http.MaxBytesReader(w, &timely{r.Body, time.Now().Add(bodyTime)}, maxBody))
	if tooLarge := new(http.MaxBytesError); errors.As(err, &tooLarge) {
		Refuse(w, http.StatusRequestEntityTooLarge, metav1.StatusReasonRequestEntityTooLarge, fmt.Sprintf("the object is larger than %d KiB; make it smaller", tooLarge.Limit>>10))
		return false
	} else if err != nil {
		Refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, "the request ended before its object")
		return false
	}
	if len(raw) > 0 {
		err = foreign.Body(r.Header.Get("Content-Type"), raw)
	}
	if err != nil {
		Refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error())
		return false
	}
	r.Body, r.ContentLength, r.TransferEncoding = io.NopCloser(bytes.NewReader(raw)), int64(len(raw)), nil
	if len(raw) == 0 {
		r.Body = http.NoBody
	}
	return true
}

// judged reports whether the body of the request is read here.
func judged(r *http.Request, at string) bool {
	if r.Body == nil || r.Body == http.NoBody {
		return false
	}
	what := Parse(r, at)
	return what.IsResourceRequest && what.Subresource != "proxy"
}

// timely is a body that has to be read by a time; the server bounds the wait for each piece.
type timely struct {
	io.ReadCloser
	until time.Time
}

func (t *timely) Read(p []byte) (int, error) {
	if time.Now().After(t.until) {
		return 0, os.ErrDeadlineExceeded
	}
	return t.ReadCloser.Read(p)
}

// bearer is the WebSocket subprotocol in which the API server accepts tokens.
const bearer = "base64url.bearer.authorization.k8s.io."

// Close closes idle connections.
func (p *Proxy) Close() {
	utilnet.CloseIdleConnectionsFor(p.plain)
	utilnet.CloseIdleConnectionsFor(p.upgrade)
}

// Says reports whether the header identifies the sender.
func Says(header string) bool {
	k := strings.ToLower(header)
	return Impersonates(header) || strings.HasPrefix(k, "x-remote-") || k == "authorization" || k == "cookie"
}

// Impersonates reports whether the header names a user to impersonate.
func Impersonates(header string) bool {
	return strings.HasPrefix(strings.ToLower(header), "impersonate-")
}

// Impersonate makes the request the user's, and removes every other identification. Hop-by-hop headers, Connection's
// list included, are gone already: they cannot remove what is set here.
func Impersonate(h http.Header, as As) {
	strip(h, false)
	h.Set("Impersonate-User", as.User)
	h["Impersonate-Group"] = []string{as.Group, "system:authenticated"}
}

// strip removes credentials, and impersonation unless that may stay.
func strip(h http.Header, impersonated bool) {
	for key := range h {
		if Says(key) && !(impersonated && Impersonates(key)) {
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
}

// Refuse answers in the form of the API server, for Kubernetes clients.
func Refuse(w http.ResponseWriter, code int, reason metav1.StatusReason, message string) {
	rpc.Write(w, code, metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure, Code: int32(code), Reason: reason, Message: message,
	})
}
