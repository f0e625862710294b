package vcluster

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"runtime/pprof"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"rivulet/appliance/api"
	"rivulet/appliance/network/users"
	"rivulet/test/harness/apiserver"
	"rivulet/test/harness/await"
)

// memory is a store of notes.
type memory struct {
	mu    sync.Mutex
	notes map[string][]byte
}

func (m *memory) Note(name string) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.notes[name], nil
}

func (m *memory) PutNote(name string, blob []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.notes[name] = blob
	return nil
}
func (*memory) CopyError() error { return nil }

// port is the control port of a device: users' connections, and `rivulet kubeconfig`.
type port struct {
	t       *testing.T
	address string
	mux     *http.ServeMux
}

// home is the device's own cluster.
type home struct{ url string }

func (home) Plausible() (time.Time, bool)  { return time.Now(), true }
func (home) Name() string                  { return "lab-1" }
func (h home) REST() (*rest.Config, error) { return &rest.Config{Host: h.url}, nil }
func (home) Addresses() []netip.Addr       { return []netip.Addr{netip.MustParseAddr("192.0.2.7")} }

// newPort has the device's users come in.
func newPort(t *testing.T, d *device) *port {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	must(t, err)
	host := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(host.Close)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	a := users.New(users.Config{
		Store: &memory{notes: map[string][]byte{}}, Key: key, VClusters: d.k, Log: d.cfg.Log, Port: 7442,
		Clock: home{}, Name: home{}, Engine: home{host.URL}, LAN: home{},
	})
	p := &port{t: t, address: l.Addr().String(), mux: http.NewServeMux()}
	a.Routes(p.mux)
	ctx, cancel := context.WithCancel(context.Background())
	var take func(net.Conn)
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- a.Run(ctx, func(h func(net.Conn), names ...string) {
			if h != nil && names[0] == users.ServerName {
				take = h
			}
		}, func() { close(ready) })
	}()
	<-ready
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go take(c)
		}
	}()
	t.Cleanup(func() {
		l.Close()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return p
}

// give is `rivulet vcluster kubeconfig`, and kubectl of whoever has the file.
func (p *port) give(vcluster, user, role string) *kubernetes.Clientset {
	p.t.Helper()
	key, err := users.NewKey()
	must(p.t, err)
	q := api.KubeconfigRequest{User: user, Role: role, For: time.Hour, VCluster: vcluster}
	q.Certificate, err = users.Certificate(key, user, time.Now().Add(q.For))
	must(p.t, err)
	var made api.NewKubeconfig
	must(p.t, ask(p.mux, http.MethodPost, "/v1/kubeconfigs", q, &made))
	made.Servers = []string{"https://" + p.address}
	raw, err := users.File(made, key)
	must(p.t, err)
	cfg, err := clientcmd.RESTConfigFromKubeConfig(raw)
	must(p.t, err)
	cfg.Timeout = patience
	c, err := kubernetes.NewForConfig(cfg)
	must(p.t, err)
	return c
}

// TestUsers: users of a virtual cluster come in by the control port, with the rights of their roles, wake
// it, and are out when they are revoked, or it is deleted, also when there is another of its name.
func TestUsers(t *testing.T) {
	t.Parallel()
	d := newDevice(t, apiserver.Binary(t))
	ctx := t.Context()
	d.create(Spec{Name: "uma", Sleep: shortSleep})
	p := newPort(t, d)
	view, edit, admin := p.give("uma", "vera", "view"), p.give("uma", "ed", "edit"), p.give("uma", "ann", "admin")
	// On a busy machine, about once in some hundred runs of all tests, an answer has its head and no end: what every
	// goroutine did then is logged, and the request is repeated once.
	list := func(c kubernetes.Interface) (err error) {
		for range 2 {
			ctx, cancel := context.WithTimeout(ctx, patience/3)
			_, err = c.CoreV1().ConfigMaps("default").List(ctx, metav1.ListOptions{})
			over := ctx.Err() != nil
			cancel()
			if !over {
				return err
			}
			var stacks strings.Builder
			_ = pprof.Lookup("goroutine").WriteTo(&stacks, 2)
			t.Logf("an answer without an end: %v\n%s", err, stacks.String())
		}
		return err
	}
	add := func(c kubernetes.Interface, name string) error {
		_, err := c.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		return err
	}
	bind := func(c kubernetes.Interface) error {
		_, err := c.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "more"}}, metav1.CreateOptions{})
		return err
	}
	may := func(err error, yes bool) {
		t.Helper()
		if yes && err != nil || !yes && !apierrors.IsForbidden(err) {
			t.Errorf("%v, want that it may: %t", err, yes)
		}
	}
	may(list(view), true)
	may(add(view, "a"), false)
	_, err := view.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	may(err, true)
	may(add(edit, "b"), true)
	may(bind(edit), false)
	may(add(admin, "c"), true)
	may(bind(admin), true)
	who, err := admin.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	must(t, err)
	if who.Status.UserInfo.Username != "rivulet:user:ann" {
		t.Errorf("admin is %+v", who.Status.UserInfo)
	}

	d.is("uma", Asleep)
	began := time.Now()
	may(list(view), true)
	t.Logf("woken through the control port in %s", time.Since(began).Round(time.Millisecond))
	// What an administrator does to the bindings holds until the next start.
	must(t, admin.RbacV1().ClusterRoleBindings().Delete(ctx, "rivulet:view", metav1.DeleteOptions{}))
	await.True(t, patience, "the authorizer has seen it", func() bool { return apierrors.IsForbidden(list(view)) })
	d.is("uma", Asleep)
	may(list(view), true)

	must(t, d.k.Pause("uma"))
	if err := list(view); !apierrors.IsServiceUnavailable(err) || !strings.Contains(err.Error(), "paused") {
		t.Errorf("paused: %v", err)
	}
	d.is("uma", Paused)
	must(t, d.k.Resume("uma"))
	may(list(view), true)

	w, err := view.CoreV1().ConfigMaps("default").Watch(ctx, metav1.ListOptions{})
	must(t, err)
	must(t, ask(p.mux, http.MethodDelete, "/v1/kubeconfigs/vera?vcluster=uma", nil, nil))
	for range w.ResultChan() { // it ends, or the test's time does
	}
	if err := list(view); !apierrors.IsUnauthorized(err) {
		t.Errorf("revoked: %v", err)
	}
	may(list(edit), true)

	must(t, d.k.Delete(ctx, "uma"))
	d.create(Spec{Name: "uma", Sleep: DefaultSleep})
	await.NoError(t, ctx, patience, "access ends with the virtual cluster", func() error {
		var all api.Kubeconfigs
		err := ask(p.mux, http.MethodGet, "/v1/kubeconfigs", nil, &all)
		for _, k := range all.Kubeconfigs {
			if k.State == "active" {
				return errActive
			}
		}
		return err
	})
	if err := list(edit); !apierrors.IsUnauthorized(err) {
		t.Errorf("a user of the one before: %v", err)
	}
	may(list(p.give("uma", "ed", "edit")), true)
}

var errActive = errors.New("one is active")

// ask is a request of the owner.
func ask(h http.Handler, method, path string, in, out any) error {
	raw, err := json.Marshal(in)
	if err != nil {
		return err
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, path, bytes.NewReader(raw)))
	if w.Code != http.StatusOK {
		return fmt.Errorf("%d %s", w.Code, w.Body)
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(w.Body.Bytes(), out)
}
