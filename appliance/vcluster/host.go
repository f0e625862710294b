package vcluster

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"rivulet/appliance/engine/controlplane"
	"rivulet/fabric/changes"
	"rivulet/fabric/httpserver"
	"rivulet/fabric/peer"
	"rivulet/offload/offer"
)

// A virtual cluster is a consumer of its host cluster. It reaches only the provider's routes, through a Unix socket in
// its process's folder. The socket is the identity: there is no secret, and closing the socket ends all rights.

const (
	// evictLook is the interval of checks for the remains of a deleted virtual cluster.
	evictLook = 500 * time.Millisecond
	// evictTold is the time after which the state shows what a deletion waits for.
	evictTold = 2 * time.Second
)

// newID returns a consumer identity: it follows from the host's and the seed, and from no key, so that no peer can
// prove it.
func newID(host peer.ID) (id peer.ID, seed string) {
	seed = rand.Text()
	return peer.Hosted(host, seed), seed
}

// consumerKey is the key of the consumer in a request's context.
type consumerKey struct{}

// Consumers returns the virtual clusters whose pods may run here, by identity: all but those being deleted.
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

// Members returns quotas and guarantees of virtual clusters.
func (k *Manager) Members() map[peer.ID]offer.Member {
	k.mu.Lock()
	defer k.mu.Unlock()
	out := map[peer.ID]offer.Member{}
	for _, c := range k.all {
		r := c.record()
		one := offer.Member{Most: r.Quota, Least: r.Guarantee, Groups: r.Groups}
		one.Ports, _ = offer.ParsePorts(r.Ports) // checked when it was set
		if !r.Paused && !r.Deleting {
			one.Plane = planeMemory
		}
		out[r.ID] = one
	}
	return out
}

// API returns the address of the API server for the pods of a virtual cluster; it is not valid for other consumers.
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

// Changed reports changes of Consumers, Members and API.
func (k *Manager) Changed() (<-chan struct{}, func()) { return k.changed.Changed() }

// Handle serves a route to virtual clusters and replaces its earlier handler.
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

// PeerID returns which virtual cluster sent a request; false for one that is being deleted.
func (k *Manager) PeerID(r *http.Request) (peer.ID, bool) {
	c, ok := r.Context().Value(consumerKey{}).(*cluster)
	if !ok {
		return "", false
	}
	own := c.record()
	return own.ID, !own.Deleting
}

// Host is the cluster on which virtual clusters run.
type Host interface {
	// Evict deletes all objects of a consumer at the host and returns how many namespaces are left.
	Evict(ctx context.Context, id peer.ID) (left int, err error)
	// Use returns the requests of the consumer's unfinished pods, their number, and its claims.
	Use(id peer.ID) corev1.ResourceList
}

// Pods are those of consumers at the host.
type Pods interface {
	// StateOf is the state of the consumer's pods; false while that is unknown.
	StateOf(id peer.ID) (offer.PodsState, bool)
	// Follow registers f, which must not block. It is called after a change of a consumer's state.
	Follow(f func(id peer.ID))
}

// Attach sets the host. Deletions wait for it.
func (k *Manager) Attach(h Host, pods Pods) {
	k.host.Store(&h)
	k.pods.Store(&pods)
	pods.Follow(k.touched)
}

// touched notifies the virtual cluster with that identity.
func (k *Manager) touched(id peer.ID) {
	k.mu.Lock()
	all := slices.Collect(maps.Values(k.all))
	k.mu.Unlock()
	for _, c := range all {
		if c.record().ID != id {
			continue
		}
		c.debt.touch()
		if c.brief().PID == 0 {
			c.nudge()
		}
	}
}

// openHost opens the socket of a virtual cluster.
func (c *cluster) openHost() error {
	if c.host != nil {
		return nil
	}
	r := c.record()
	path := filepath.Join(c.rootDir(), controlplane.Host)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) { // left by a killed supervisor
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
	ctx, end := context.WithCancel(context.Background()) // for connections that Close does not end
	srv.BaseContext = func(net.Listener) context.Context { return ctx }
	c.host, c.hostEnd = srv, end
	go func() { _ = srv.Serve(httpserver.Host.Listen(ofUser{l, uint32(r.UID)})) }() // it ends with Close
	return nil
}

// hostServer serves the host's provider routes to it.
func (c *cluster) hostServer() *http.Server {
	return httpserver.New(httpserver.Host, http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		q = q.WithContext(context.WithValue(q.Context(), consumerKey{}, c))
		if q.Method == http.MethodConnect {
			c.toPod(w, q)
			return
		}
		if q.URL.Path == controlplane.FurtherPath {
			serveFurther(c, w, q)
			return
		}
		if strings.HasPrefix(q.URL.Path, controlplane.AtPath) {
			toTarget(c, w, q)
			return
		}
		c.k.routes.ServeHTTP(w, q)
	}), c.k.cfg.Log)
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

// userOf returns the user that opened a connection.
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

// evict waits until the host has no object of it.
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
