package users

import (
	"context"
	"crypto"
	"crypto/ed25519"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/appliance/api"
	"rivulet/appliance/engine/controlplane"
	"rivulet/fabric/connlimit"
	"rivulet/fabric/httpserver"
	"rivulet/fabric/rpc"
	"rivulet/offload/apiproxy"
)

// ServerName is the SNI name that the control port routes here.
const ServerName = "kubernetes.rivulet"

const (
	// handshakeLimit is the time limit of a handshake.
	handshakeLimit = 10 * time.Second
	// maxConns bounds the connections of all users of one virtual cluster.
	maxConns = 256
	// maxRequests bounds the requests of one user under way, watches and sessions included, maxOfCluster those of all
	// users of one virtual cluster, maxOfAll those of all users. maxHeaders bounds the headers of one of these parties,
	// bytes.
	maxRequests, maxOfCluster, maxOfAll = 256, 512, 2048
	maxHeaders                          = 1 << 20
)

// serving is the server certificate for users, always the same, and pinned in each kubeconfig.
func serving(key crypto.Signer) (tls.Certificate, error) {
	return rpc.ServerCertificate(key, ServerName)
}

// front terminates TLS of users and forwards their requests. There is one in the process.
type front struct {
	list  *list
	clock api.PlausibleClock
	tls   *tls.Config
	log   *slog.Logger

	incoming
	proxy    *apiproxy.Proxy
	virtual  VClusters
	ways     map[[32]byte]*apiproxy.Proxy // to virtual clusters, by key
	waysLock sync.Mutex
	// requests under way of each user, and ofCluster of the users of each virtual cluster
	requests, ofCluster httpserver.Gate
}

func newFront(ctx context.Context, key ed25519.PrivateKey, l *list, clock api.PlausibleClock, log *slog.Logger) (*front, error) {
	cert, err := serving(key)
	if err != nil {
		return nil, fmt.Errorf("users: %w", err)
	}
	f := &front{list: l, clock: clock, log: log, incoming: incoming{make(chan net.Conn), ctx}, ways: map[[32]byte]*apiproxy.Proxy{},
		requests:  httpserver.Gate{Each: maxRequests, Total: maxOfAll, Bytes: maxHeaders},
		ofCluster: httpserver.Gate{Each: maxOfCluster, Total: maxOfAll, Bytes: maxHeaders}}
	f.tls = &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2", "http/1.1"},
		ClientAuth: tls.RequireAnyClientCert, SessionTicketsDisabled: true,
		// Known users, with or without access: a user without access receives the reason.
		VerifyConnection: func(s tls.ConnectionState) error {
			if _, ok := l.find(keyOf(s.PeerCertificates[0])); !ok {
				return errors.New("users: not a certificate of this cluster")
			}
			return nil
		},
	}
	return f, nil
}

// take handles one connection from the LAN until its user is authenticated.
func (f *front) take(c net.Conn) {
	kept := &conn{Conn: c, list: f.list}
	t := tls.Server(kept, f.tls)
	ctx, cancel := context.WithTimeout(f.closed, handshakeLimit)
	defer cancel()
	if err := t.HandshakeContext(ctx); err != nil {
		f.log.Debug("a stranger asked for the API server", "from", c.RemoteAddr(), "err", err)
		kept.Close()
		return
	}
	key := keyOf(t.ConnectionState().PeerCertificates[0])
	now, sure := f.clock.Plausible()
	r, ok := f.list.find(key)
	if ok && sure && r.active(now) { // all others stay strangers, and may read the reason within their time limit
		if !connlimit.Lasting(c, r.party()) {
			return // too many: it is closed
		}
		if !f.list.opens(kept, r, now) {
			kept.Close()
			return
		}
	}
	f.give(t)
}

// conn is the connection below a user's TLS. It is listed until it is closed.
type conn struct {
	net.Conn
	list *list
}

func (c *conn) Close() error {
	c.list.mu.Lock()
	delete(c.list.conns, c)
	c.list.mu.Unlock()
	return c.Conn.Close()
}

// opens adds a connection, and returns false if a virtual cluster's users have too many.
func (l *list) opens(c *conn, r record, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, o := range l.conns {
		if r.ID != "" && o.ID == r.ID {
			n++
		}
	}
	if n >= maxConns {
		return false
	}
	l.conns[c], l.used[r.key()] = r, now
	return true
}

// sweep closes the connections of users without access.
func (l *list) sweep(now time.Time, sure bool) {
	l.mu.Lock()
	open := map[[32]byte]bool{}
	for _, r := range l.all {
		open[r.key()] = sure && r.active(now)
	}
	var end []net.Conn
	for c, r := range l.conns {
		if !open[r.key()] {
			end = append(end, c)
		}
	}
	l.mu.Unlock()
	for _, c := range end {
		c.Close()
	}
}

// incoming is a listener for connections that were accepted elsewhere, until the context ends.
type incoming struct {
	queue  chan net.Conn
	closed context.Context
}

func (i incoming) give(c net.Conn) {
	select {
	case i.queue <- c:
	case <-i.closed.Done():
		c.Close()
	}
}

// Accept implements net.Listener.
func (i incoming) Accept() (net.Conn, error) {
	select {
	case c := <-i.queue:
		return c, nil
	case <-i.closed.Done():
		return nil, net.ErrClosed
	}
}
func (incoming) Close() error   { return nil }
func (incoming) Addr() net.Addr { return &net.TCPAddr{} }

type keyOfConn struct{}

// serve answers users until the context ends.
func (f *front) serve() {
	server := httpserver.New(httpserver.Users, f, f.log)
	server.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		return context.WithValue(ctx, keyOfConn{}, keyOf(c.(*tls.Conn).ConnectionState().PeerCertificates[0]))
	}
	stop := context.AfterFunc(f.closed, func() { server.Close() })
	defer stop()
	server.Serve(f) //nolint:errcheck // ends with the context
	f.list.sweep(time.Time{}, false)
}

func (f *front) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	r, ok := f.list.find(q.Context().Value(keyOfConn{}).([32]byte))
	now, sure := f.clock.Plausible()
	admitted := ok && sure && r.active(now)
	party := "" // all whose access has ended: another certificate has the name now
	if admitted {
		party = r.party()
	}
	f.requests.Serve(party, w, q, func(w http.ResponseWriter, q *http.Request) {
		if !admitted || r.ID == "" {
			f.answer(w, q, r, ok)
			return
		}
		f.ofCluster.Serve(string(r.ID), w, q, func(w http.ResponseWriter, q *http.Request) { f.answer(w, q, r, ok) })
	})
}

// answer passes a user's request on, or refuses it; ok is false if the user is not known any more.
func (f *front) answer(w http.ResponseWriter, q *http.Request, r record, ok bool) {
	now, sure := f.clock.Plausible()
	switch {
	case !ok:
		refuse(w, http.StatusUnauthorized, metav1.StatusReasonUnauthorized, "this kubeconfig is not one of this cluster; make one on the device: sudo rivulet kubeconfig > FILE")
		return
	case !sure:
		refuse(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "the device's clock cannot be right, so it is not known who has access; see on the device: rivulet doctor --only clock")
		return
	case !r.active(now):
		refuse(w, http.StatusUnauthorized, metav1.StatusReasonUnauthorized, "the access of %s has ended (%s since %s); make another on the device: sudo rivulet kubeconfig --user %s > FILE",
			r.User, r.state(now), r.ended().UTC().Format(time.RFC3339), r.User)
		return
	}
	for header := range q.Header {
		if apiproxy.Says(header) && (r.ID == "" || !apiproxy.Impersonates(header)) {
			refuse(w, http.StatusForbidden, metav1.StatusReasonForbidden, "header %s is not taken here: a kubeconfig of rivulet is one user's; leave --as and --token out", header)
			return
		}
	}
	if r.ID == "" {
		f.proxy.Serve(w, q, apiproxy.As{User: userName(r.User), Group: group, Silent: silent}, q.URL.Path, q.URL.RawPath)
		return
	}
	way, err := f.way(q.Context(), r, controlplane.Watches(q))
	switch {
	case errors.Is(err, controlplane.ErrAsleep):
		w.Header().Set("Retry-After", "15")
		apiproxy.Refuse(w, http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, "virtual cluster "+r.VCluster+": "+err.Error())
	case errors.Is(err, context.DeadlineExceeded):
		w.Header().Set("Retry-After", "5")
		fallthrough
	case err != nil:
		refuse(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "virtual cluster %s: %v", r.VCluster, err)
	default:
		way.Serve(w, q, apiproxy.As{User: userName(r.User), Itself: true, Silent: "virtual cluster " + r.VCluster + " does not answer; try again, or ask whoever gave you this access to look at it: rivulet vcluster describe " + r.VCluster}, q.URL.Path, q.URL.RawPath)
	}
}

func refuse(w http.ResponseWriter, code int, reason metav1.StatusReason, format string, args ...any) {
	w.Header().Set("Connection", "close")
	apiproxy.Refuse(w, code, reason, fmt.Sprintf(format, args...))
}

const silent = "the device's API server does not answer; see on the device: rivulet status"

// pemOf is the certificate authority of a kubeconfig.
func pemOf(c tls.Certificate) []byte { return rpc.CertificatePEM(c.Certificate[0]) }
