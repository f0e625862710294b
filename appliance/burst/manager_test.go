package burst

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"rivulet/appliance/config"
	"rivulet/appliance/health"
	"rivulet/offload/target"
	"rivulet/offload/target/external"
	"rivulet/offload/target/external/rewrite"
	"rivulet/test/harness/apiserver"
	"rivulet/test/harness/await"
)

const cluster = "abcdefgh"

type memory struct {
	mu   sync.Mutex
	blob []byte
}

func (m *memory) Note(string) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.blob, nil
}

func (m *memory) PutNote(_ string, blob []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.blob = bytes.Clone(blob)
	return nil
}

// told is what offloading was told last.
type told struct {
	mu       sync.Mutex
	specs    []target.Spec
	complete bool
}

func (o *told) set(_ target.Kind, all []target.Spec, complete bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.specs, o.complete = all, complete
}

func (o *told) is() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	var names []string
	for _, s := range o.specs {
		names = append(names, s.Name)
	}
	return fmt.Sprintf("%s %v", strings.Join(names, ","), o.complete)
}

func newKey(t *testing.T) ed25519.PrivateKey {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	must(t, err)
	return key
}

func manager(t *testing.T, store Store, key ed25519.PrivateKey) (*Manager, *told, *health.Tracker) {
	t.Helper()
	tracker, off := &health.Tracker{}, &told{}
	m, err := New(Config{Store: store, Key: key, Cluster: cluster, Health: tracker, Settle: time.Second, Log: slog.New(slog.DiscardHandler)})
	must(t, err)
	m.Attach(off.set)
	return m, off, tracker
}

// run runs the manager until the returned function is called.
func run(m *Manager) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = m.Run(ctx) }()
	return sync.OnceFunc(func() { cancel(); <-done })
}

// TestSeal: a credential is not readable in the store, nor with another identity or
// under another name.
func TestSeal(t *testing.T) {
	key := newKey(t)
	s, err := newSeal(key)
	must(t, err)
	sealed := s.close("campus", []byte("the-token"))
	if bytes.Contains(sealed, []byte("the-token")) {
		t.Error("it is readable")
	}
	if plain, err := s.open("campus", sealed); err != nil || string(plain) != "the-token" {
		t.Errorf("%q %v", plain, err)
	}
	other, err := newSeal(newKey(t))
	must(t, err)
	for what, open := range map[string]func() ([]byte, error){
		"another identity": func() ([]byte, error) { return other.open("campus", sealed) },
		"another name":     func() ([]byte, error) { return s.open("cloud", sealed) },
		"damaged":          func() ([]byte, error) { return s.open("campus", append([]byte{1}, sealed...)) },
		"empty":            func() ([]byte, error) { return s.open("campus", nil) },
	} {
		if plain, err := open(); !errors.Is(err, errSealed) {
			t.Errorf("%s: %q %v", what, plain, err)
		}
	}
}

// line is the way to a server, which can be cut.
type line struct {
	listener net.Listener
	to       string
	mu       sync.Mutex
	cut      bool
	open     []net.Conn
}

func newLine(t *testing.T, to string) *line {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	out := &line{listener: l, to: to}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go out.pass(c)
		}
	}()
	return out
}

func (l *line) pass(c net.Conn) {
	defer c.Close()
	l.mu.Lock()
	cut := l.cut
	l.open = append(l.open, c)
	l.mu.Unlock()
	if cut {
		return
	}
	far, err := net.Dial("tcp", l.to)
	if err != nil {
		return
	}
	defer far.Close()
	go func() { _, _ = io.Copy(far, c); far.Close() }()
	_, _ = io.Copy(c, far)
}

func (l *line) set(cut bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = cut
	for _, c := range l.open {
		c.Close()
	}
	l.open = nil
}

// TestTargetsComeAndGo is the life of the list, with a real API server.
func TestTargetsComeAndGo(t *testing.T) {
	server := apiserver.Start(t)
	u, err := url.Parse(server.Config.Host)
	must(t, err)
	way := newLine(t, u.Host)
	raw := kubeconfigFile(t, "https://"+way.listener.Addr().String(), server.Config.CAData,
		&clientcmdapi.AuthInfo{ClientCertificateData: server.Config.CertData, ClientKeyData: server.Config.KeyData})
	credential, err := external.ReadCredential(raw, "", "", false)
	must(t, err)
	ctx := t.Context()
	request := Request{Credential: credential, Settings: external.Settings{Name: "campus", Namespace: "default",
		Limits: corev1.ResourceList{"cpu": resource.MustParse("1"), "memory": resource.MustParse("1Gi")}}}

	store, key := &memory{}, newKey(t)
	m, off, tracker := manager(t, store, key)
	report, err := m.Add(ctx, request)
	must(t, err)
	if off.is() != "burst-campus true" || report.Room.Pods().Value() != 110 {
		t.Errorf("%s %+v", off.is(), report)
	}
	if bytes.Contains(store.blob, []byte("client-key-data")) {
		t.Error("the credential is readable in the store")
	}
	for what, q := range map[string]Request{
		"there is a target campus already": request,
		"is target campus already":         {Credential: credential, Settings: external.Settings{Name: "again", Namespace: "default", Limits: request.Settings.Limits}},
		"no namespace none":                {Credential: credential, Settings: external.Settings{Name: "none", Namespace: "none", Limits: request.Settings.Limits}},
		"give --limits":                    {Credential: credential, Settings: external.Settings{Name: "free", Namespace: "kube-public"}},
		"no gateway":                       {Credential: credential, Settings: external.Settings{Name: "net", Namespace: "kube-public", Network: external.NetworkAuto}},
	} {
		if _, err := m.Add(ctx, q); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("want %q, got %v", what, err)
		}
	}
	request.Replace = true
	_, err = m.Add(ctx, request)
	must(t, err)

	// A restart knows it again; another identity does not.
	m, off, _ = manager(t, store, key)
	if off.is() != "burst-campus true" {
		t.Errorf("after a restart: %s", off.is())
	}
	stranger, away, strange := manager(t, store, newKey(t))
	stranger.evaluate()
	if away.is() != " false" || len(strange.Problems()) != 1 || strange.Problems()[0].Code != "burst-unusable" {
		t.Errorf("with another identity: %s %v", away.is(), strange.Problems())
	}

	// What it has there goes when it is removed, though only later: the way is cut.
	names := rewrite.Names{Cluster: cluster}
	_, err = server.Client.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: names.Away("lab", "settings"),
		Labels:      map[string]string{rewrite.HomeLabel: cluster, rewrite.SpaceLabel: names.Space("lab")},
		Annotations: map[string]string{rewrite.NamespaceAnnotation: "lab", rewrite.NameAnnotation: "settings"}}}, metav1.CreateOptions{})
	must(t, err)
	way.set(true)
	gone, err := m.Remove(ctx, "campus", false)
	must(t, err)
	if gone.Waiting == "" || off.is() != " true" {
		t.Errorf("%+v %s", gone, off.is())
	}
	m, _, tracker = manager(t, store, key) // a restart
	stop := run(m)
	defer func() { stop() }()
	await.Empty(t, 60*time.Second, "it is told that something is left", func(context.Context) string {
		if p := tracker.Problems(); len(p) != 1 || p[0].Code != "burst-left" {
			return fmt.Sprint(p)
		}
		return ""
	})
	way.set(false)
	m.wake()
	await.Empty(t, 60*time.Second, "and in the end nothing is left there and here", func(context.Context) string {
		list, err := server.Client.CoreV1().ConfigMaps("default").List(ctx, metav1.ListOptions{LabelSelector: rewrite.HomeLabel})
		m.wake()
		if err != nil || len(list.Items) != 0 || len(m.List()) != 0 || string(store.blob) != "[]" {
			return fmt.Sprint(len(list.Items), err, m.List())
		}
		return ""
	})
	stop()

	// The configuration's: a file that breaks takes nothing away, an entry that goes does.
	path := filepath.Join(t.TempDir(), "kubeconfig")
	must(t, os.WriteFile(path, raw, 0o600))
	set := []config.Burst{{Name: "file", Kubeconfig: path, Limits: config.BurstLimits{CPU: "2", Memory: "1Gi"}}}
	m, off, tracker = manager(t, store, key)
	m.Configure(set)
	if off.is() != "burst-file true" {
		t.Errorf("%s %+v", off.is(), m.List())
	}
	must(t, os.WriteFile(path, []byte("broken: ["), 0o600))
	m.Configure(set)
	if p := tracker.Problems(); off.is() != "burst-file true" || len(p) != 1 || p[0].Code != "burst-credential" {
		t.Errorf("%s %v", off.is(), p)
	}
	if _, err := m.Remove(ctx, "file", false); err == nil || !strings.Contains(err.Error(), "configuration file") {
		t.Errorf("%v", err)
	}
	m.Configure(nil)
	if off.is() != " true" || len(m.List()) != 1 || !m.List()[0].Removed {
		t.Errorf("%s %+v", off.is(), m.List())
	}

	t.Run("a credential is refused", func(t *testing.T) { refusedAndHealed(t, server) })
}

// TestAListThatCannotBeReadIsKept starts with a damaged list, and with a store that fails once: neither is an empty and
// complete list, and nothing is saved over it.
func TestAListThatCannotBeReadIsKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	must(t, os.WriteFile(path, kubeconfigFile(t, "https://127.0.0.1:1", nil, &clientcmdapi.AuthInfo{Token: "t"}), 0o600))
	campus := []config.Burst{{Name: "campus", Kubeconfig: path, Namespace: "lab", Limits: config.BurstLimits{CPU: "2", Memory: "1Gi"}}}
	for what, store := range map[string]*failing{
		"damaged":      {memory: memory{blob: []byte(`[{"settings":{"name":"cloud"},"sealed":7}]`)}},
		"a disk error": {memory: memory{blob: []byte(`[]`)}, err: errors.New("input/output error")},
	} {
		was := bytes.Clone(store.blob)
		m, off, tracker := manager(t, store, newKey(t))
		if off.is() != " false" {
			t.Errorf("%s: offloading is told %q", what, off.is())
		}
		m.Configure(campus)
		if off.is() != "burst-campus false" {
			t.Errorf("%s: with a target of the configuration offloading is told %q, %+v", what, off.is(), m.List())
		}
		m.Configure(nil)
		if off.is() != " false" {
			t.Errorf("%s: without it again offloading is told %q", what, off.is())
		}
		if _, err := m.Add(t.Context(), Request{Settings: external.Settings{Name: "new"}}); err == nil || !strings.Contains(err.Error(), "the list of targets") {
			t.Errorf("%s: add: %v", what, err)
		}
		if _, err := m.Remove(t.Context(), "cloud", true); err == nil || !strings.Contains(err.Error(), "the list of targets") {
			t.Errorf("%s: remove: %v", what, err)
		}
		if p := tracker.Problems(); len(p) == 0 || !strings.Contains(fmt.Sprint(p), "burst-unusable") || !strings.Contains(fmt.Sprint(p), "the stored list") {
			t.Errorf("%s: the problems are %v", what, p)
		}
		if !bytes.Equal(store.blob, was) {
			t.Errorf("%s: the list was saved over: %s", what, store.blob)
		}
	}
}

// failing is a store that cannot be read.
type failing struct {
	memory
	err error
}

func (f *failing) Note(name string) ([]byte, error) {
	if f.err != nil {
		return nil, f.err
	}
	return f.memory.Note(name)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
