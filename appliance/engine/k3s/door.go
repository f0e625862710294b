package k3s

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"

	"github.com/k3s-io/k3s/pkg/daemons/config"
	"github.com/k3s-io/k3s/pkg/metrics"
	"github.com/k3s-io/k3s/pkg/version"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"rivulet/appliance/engine"
	"rivulet/appliance/state/paths"
	"rivulet/fabric/logbound"
	"rivulet/offload/apiproxy"
)

// door is in front of all that k3s serves on the node's port: k3s's own routes and the API server. k3s gives a
// certificate of any name that its node says it has, to whoever has a worker's token. The door knows who speaks by the
// address of the connection, and refuses what a worker does not need, and what says that it is of another node.
type door struct {
	next http.Handler
	node string // the name of this node
	list *workersList
	log  *slog.Logger
}

// guard places the door in front of the handlers of this process's server, whose agent this is. Before that k3s
// serves certificates of nodes to this node alone.
func guard(ctx context.Context, node *config.Node, state string) error {
	front, err := metrics.DefaultMetrics.Router(ctx, node) // its routes would come before those of k3s
	if err != nil {
		return err
	}
	if front.NotFoundHandler == nil {
		return errors.New("k3s: its handlers are not found, so nobody would keep workers from what is others'")
	}
	in := *front // of the type of what is there: a request that comes meanwhile gets either
	in.NotFoundHandler = &door{next: front.NotFoundHandler, node: node.AgentConfig.NodeName, list: &workersList{state: state},
		log: logbound.New(slog.New(slog.NewTextHandler(os.Stderr, nil)))}
	front.NotFoundHandler = &in
	return nil
}

// ServeHTTP implements http.Handler.
func (d *door) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	code, err := http.StatusForbidden, errors.New("the address of the connection is not known")
	if s, ok := d.speaker(r); ok {
		code, err = s.verify(r)
	}
	if err == nil {
		d.next.ServeHTTP(w, r)
		return
	}
	d.log.Warn("a request is refused", "from", r.RemoteAddr, "method", r.Method, "path", r.URL.Path, "err", err)
	reason := metav1.StatusReasonForbidden
	if code == http.StatusUnauthorized {
		reason = metav1.StatusReasonUnauthorized
	}
	apiproxy.Refuse(w, code, reason, err.Error())
}

// speaker is who sends a request.
type speaker struct {
	at netip.Addr
	// node is the name of the node with that address, "" for a pod or what is no node of this cluster any more.
	node string
	here bool // it is this node
}

func (d *door) speaker(r *http.Request) (speaker, bool) {
	at, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return speaker{}, false
	}
	s := speaker{at: at.Addr().Unmap()}
	to, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if s.here = s.at.IsLoopback() || to != nil && sameAddr(to.String(), s.at); s.here {
		s.node = d.node
	} else {
		s.node = d.list.load(d.log)[s.at]
	}
	return s, true
}

func sameAddr(to string, at netip.Addr) bool {
	a, err := netip.ParseAddrPort(to)
	return err == nil && a.Addr().Unmap() == at
}

// route is one of k3s's that a worker needs.
type route struct {
	method string
	signs  bool // a certificate for the key in the request
	named  bool // it is of the node in the request's headers
}

// Routes of k3s, below ownRoutes. Every other is for this node alone.
const ownRoutes = "/v1-"

var workerRoutes = map[string]route{
	"client-ca.crt":         {method: http.MethodGet},
	"server-ca.crt":         {method: http.MethodGet},
	"config":                {method: http.MethodGet},
	"apiservers":            {method: http.MethodGet},
	"readyz":                {method: http.MethodGet},
	"connect":               {method: http.MethodGet},
	"client-kube-proxy.crt": {method: http.MethodPost, signs: true},
	"client-" + version.Program + "-controller.crt": {method: http.MethodPost, signs: true},
	"client-kubelet.crt":                            {method: http.MethodPost, signs: true, named: true},
	"serving-kubelet.crt":                           {method: http.MethodPost, signs: true, named: true},
}

// verify returns why a request is refused and the status of that answer; no error leaves it to k3s and the API server.
func (s speaker) verify(r *http.Request) (int, error) {
	if err := s.owns(r); err != nil {
		return http.StatusUnauthorized, err // k3s's agent goes on with its token
	}
	if s.here {
		return 0, nil
	}
	return http.StatusForbidden, s.needs(r)
}

// owns returns an error for a certificate of another node, or of one that was removed.
func (s speaker) owns(r *http.Request) error {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return nil
	}
	who := r.TLS.PeerCertificates[0].Subject.CommonName
	node, kubelet := strings.CutPrefix(who, "system:node:")
	every := who == user.KubeProxy || who == "system:"+version.Program+"-controller"
	if kubelet && (s.node == "" || !strings.EqualFold(node, s.node)) || every && s.node == "" {
		return fmt.Errorf("%s does not speak from %s; join that device again", who, s.at)
	}
	return nil
}

// needs returns an error for a request of k3s's that another machine does not need.
func (s speaker) needs(r *http.Request) error {
	closed := errors.New("this is for nodes of this cluster, and what they need; see: rivulet nodes")
	path, own := strings.CutPrefix(r.URL.Path, ownRoutes)
	switch {
	case r.Method == http.MethodConnect || strings.HasPrefix(r.URL.Path, "/static"):
		return closed
	case !own:
		return nil
	}
	name, ours := strings.CutPrefix(path, version.Program+"/")
	if to, ok := workerRoutes[name]; s.node == "" || !ours || !ok || to.method != r.Method {
		return closed
	} else if to.named && (!strings.EqualFold(r.Header.Get(version.Program+"-Node-Name"), s.node) || r.Header.Get(version.Program+"-Node-IP") != s.at.String()) {
		return fmt.Errorf("a node gets certificates of itself alone: name %s, address %s", s.node, s.at)
	} else if to.signs {
		return ownKey(r)
	}
	return nil
}

// maxSigning bounds the request for a certificate, bytes.
const maxSigning = 16 << 10

// ownKey returns an error for a request that is none for a key which its sender has: k3s would answer with a key of the
// server's that all who ask so have. The body stays readable.
func ownKey(r *http.Request) error {
	raw, err := io.ReadAll(io.LimitReader(r.Body, maxSigning+1))
	if err != nil {
		return err
	}
	r.Body = io.NopCloser(bytes.NewReader(raw))
	if len(raw) > maxSigning {
		return fmt.Errorf("a request for a certificate has %d bytes at most; make it smaller", maxSigning)
	}
	csr, err := x509.ParseCertificateRequest(raw)
	if err == nil {
		err = csr.CheckSignature()
	}
	if err != nil {
		return fmt.Errorf("a certificate is for a key of the node's own; sign the request with it: %w", err)
	}
	return nil
}

// workersList is the present engine.Workers, read when their file has changed.
type workersList struct {
	state string

	mu  sync.Mutex
	was os.FileInfo
	now engine.Workers
}

// load returns the workers; none where they are not known.
func (l *workersList) load(log *slog.Logger) engine.Workers {
	l.mu.Lock()
	defer l.mu.Unlock()
	fi, err := os.Stat(paths.Workers(l.state))
	if err != nil {
		l.was, l.now = nil, nil
		return nil
	}
	if l.was == nil || !os.SameFile(l.was, fi) || !l.was.ModTime().Equal(fi.ModTime()) || l.was.Size() != fi.Size() {
		if l.now, err = engine.LoadWorkers(l.state); err != nil {
			log.Error("no worker is served", "err", err)
		}
		l.was = fi
	}
	return l.now
}
