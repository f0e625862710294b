package vcluster

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/net/netutil"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"rivulet/appliance/engine/tenant"
	"rivulet/fabric/changes"
	"rivulet/fabric/peer"
	"rivulet/offload/offer"
)

// Virtual clusters are consumers of the cluster that they are on. Each reaches the routes of
// the provider, and nothing else, by a socket of its own in the folder that its process sees.
// The socket is the identity: there is no secret, and closing it ends all rights.

const (
	// maxHostConns are the connections of one virtual cluster at once.
	maxHostConns = 1024
	// evictLook is how often what is left of a deleted one is looked at.
	evictLook = 500 * time.Millisecond
	// evictTold is after how long the state says what is waited for.
	evictTold = 2 * time.Second
)

// newID is an identity among consumers. It is of no key, so that no peer can prove that it has it.
func newID() peer.ID {
	none := make(ed25519.PublicKey, ed25519.PublicKeySize)
	_, _ = rand.Read(none) // it cannot fail
	return peer.IDFromKey(none)
}

// consumerKey is of a request's context.
type consumerKey struct{}

// Consumers are the virtual clusters whose pods may run here, by identity: all but those that are being
// deleted.
func (k *Manager) Consumers() map[peer.ID]string {
	k.mu.Lock()
	defer k.mu.Unlock()
	out := map[peer.ID]string{}
	for _, c := range k.all {
		if r := c.record(); !r.Deleting {
			out[r.ID] = r.Name
		}
	}
	return out
}

// Members are quotas and guarantees of virtual clusters.
func (k *Manager) Members() map[peer.ID]offer.Member {
	k.mu.Lock()
	defer k.mu.Unlock()
	out := map[peer.ID]offer.Member{}
	for _, c := range k.all {
		r := c.record()
		one := offer.Member{Most: r.Quota, Least: r.Guarantee}
		if !r.Paused && !r.Deleting {
			one.Plane = planeMemory
		}
		out[r.ID] = one
	}
	return out
}

// API is where the pods of a virtual cluster find its API server; not valid for other consumers.
func (k *Manager) API(id peer.ID) (at netip.AddrPort) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range k.all {
		if r := c.record(); r.ID == id && !r.Deleting {
			return c.address()
		}
	}
	return at
}

// Changed follows Consumers, Members and API.
func (k *Manager) Changed() (<-chan struct{}, func()) { return k.changed.Changed() }

// Handle serves a route to virtual clusters, in place of what served it before.
func (k *Manager) Handle(pattern string, h http.Handler) {
	k.routesMu.Lock()
	defer k.routesMu.Unlock()
	slot := k.slots[pattern]
	if slot == nil {
		slot = new(atomic.Pointer[http.Handler])
		k.slots[pattern] = slot
		k.routes.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { (*slot.Load()).ServeHTTP(w, r) })
	}
	slot.Store(&h)
}

// PeerID tells which virtual cluster sent a request; false for one that is being deleted.
func (k *Manager) PeerID(r *http.Request) (peer.ID, bool) {
	c, ok := r.Context().Value(consumerKey{}).(*cluster)
	if !ok {
		return "", false
	}
	own := c.record()
	return own.ID, !own.Deleting
}

// Host is the cluster that virtual clusters are on.
type Host interface {
	// Evict deletes all that a consumer has there, and returns how many namespaces are left.
	Evict(ctx context.Context, id peer.ID) (left int, err error)
	// Use is what the consumer's pods that have not finished ask for, their number included, and
	// its claims.
	Use(id peer.ID) corev1.ResourceList
	// Follow has f called, which must not block, after a consumer's pod came, went, or is in another phase.
	Follow(f func(id peer.ID))
}

// Attach gives the host. Nothing is deleted for good before.
func (k *Manager) Attach(h Host) {
	k.host.Store(&h)
	h.Follow(k.touched)
}

// touched is told to the virtual cluster of that identity.
func (k *Manager) touched(id peer.ID) {
	k.mu.Lock()
	all := slices.Collect(maps.Values(k.all))
	k.mu.Unlock()
	for _, c := range all {
		if c.record().ID == id {
			c.touched()
		}
	}
}

// openHost opens the socket of a virtual cluster.
func (c *cluster) openHost() error {
	if c.host != nil {
		return nil
	}
	r := c.record()
	path := filepath.Join(c.rootDir(), tenant.Host)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) { // of a supervisor that was killed
		return diskErr(err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return fmt.Errorf("vcluster: the socket of the host: %w; is the path of the state folder longer than 50 characters?", err)
	}
	if err := errors.Join(os.Chmod(path, 0o600), os.Lchown(path, r.UID, r.UID)); err != nil {
		l.Close()
		return diskErr(err)
	}
	srv := c.hostServer()
	ctx, end := context.WithCancel(context.Background()) // of connections that Close does not end
	srv.BaseContext = func(net.Listener) context.Context { return ctx }
	c.host, c.hostEnd = srv, end
	go func() { _ = srv.Serve(netutil.LimitListener(ofUser{l, uint32(r.UID)}, maxHostConns)) }() // it ends with Close
	return nil
}

// hostServer serves what the host lends to it.
func (c *cluster) hostServer() *http.Server {
	return &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			q = q.WithContext(context.WithValue(q.Context(), consumerKey{}, c))
			if q.Method == http.MethodConnect {
				c.toPod(w, q)
				return
			}
			c.k.routes.ServeHTTP(w, q)
		}),
		ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 32 << 10,
		ErrorLog: slog.NewLogLogger(c.k.cfg.Log.Handler(), slog.LevelDebug),
	}
}

func (c *cluster) closeHost() {
	if c.host != nil {
		_ = c.host.Close()
		c.hostEnd()
		c.host = nil
	}
}

// ofUser accepts the connections of one user.
type ofUser struct {
	net.Listener
	uid uint32
}

func (l ofUser) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if uid, err := userOf(c); err == nil && uid == l.uid {
			return c, nil
		}
		c.Close()
	}
}

// userOf is who opened a connection.
func userOf(c net.Conn) (uid uint32, err error) {
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, err
	}
	if e := raw.Control(func(fd uintptr) {
		var cred *unix.Ucred
		if cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			uid = cred.Uid
		}
	}); e != nil {
		return 0, e
	}
	return uid, err
}

// evict waits until nothing of it is left on the host.
func (c *cluster) evict(ctx context.Context) error {
	host := c.k.host.Load()
	if host == nil {
		return errors.New("the cluster it is on is not there yet; see: rivulet status")
	}
	for began := time.Now(); ; {
		left, err := (*host).Evict(ctx, c.record().ID)
		if err == nil && left == 0 {
			return nil
		}
		if err != nil {
			return err
		}
		if time.Since(began) > evictTold {
			c.set(Deleting, fmt.Sprintf("%d namespaces on the host are still being emptied", left))
		}
		if !changes.Wait(ctx, evictLook) {
			return ctx.Err()
		}
	}
}
