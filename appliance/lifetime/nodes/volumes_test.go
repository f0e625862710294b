package nodes

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"

	"rivulet/appliance/addons/volumes"
	"rivulet/fabric/httpserver"
	"rivulet/fabric/rpc"
	"rivulet/offload/nodeagent/filetree"
	"rivulet/offload/nodeagent/transfer"
	"rivulet/test/harness/await"
)

func identity(t *testing.T, seed byte) rpc.Identity {
	t.Helper()
	id, err := rpc.NewIdentity(ed25519.NewKeyFromSeed(bytes.Repeat([]byte{seed}, ed25519.SeedSize)), "test")
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// made is a volume of a node, with a file in its folder.
func made(t *testing.T, on *volumes.Local, name, content string) *corev1.PersistentVolume {
	t.Helper()
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{
		Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("64Mi")}}}}
	dir, err := on.Fresh("lab", "data", name)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "x"), []byte(content), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return on.Volume(claim, nil, name)
}

// The server reads and writes volumes of its worker, which serves nobody else, and no volume of another node.
func TestVolumesOfAWorker(t *testing.T) {
	ctx := t.Context()
	a, b, c := volumes.NewLocal(t.TempDir(), "a"), volumes.NewLocal(t.TempDir(), "b"), volumes.NewLocal(t.TempDir(), "c")
	onA, onB, onC := made(t, a, "v-a", "on a"), made(t, b, "v-b", "on b"), made(t, c, "v-c", "on c")
	// It has the folder's name, and the node of another folder.
	stray := onB.DeepCopy()
	stray.Name = "v-stray"
	api := fake.NewClientset(onA, onB, onC, stray)
	server, worker, stranger := identity(t, 1), identity(t, 2), identity(t, 3)
	mux := http.NewServeMux()
	servedVolumes{&Device{Role: Role{Joined: &Joined{Info: Info{Server: server.ID}}}, Folders: b}, func() (kubernetes.Interface, error) { return api, nil }}.serve(mux.Handle)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := rpc.NewServer(httpserver.Peers, worker, mux, slog.New(slog.DiscardHandler))
	go func() { _ = s.ServeTLS(l, "", "") }() // until Close
	t.Cleanup(func() { s.Close() })
	as := func(id rpc.Identity) *http.Client {
		return &http.Client{Transport: &http.Transport{TLSClientConfig: rpc.ClientTLS(id, worker.ID), ForceAttemptHTTP2: true}}
	}
	base := &url.URL{Scheme: "https", Host: l.Addr().String()}
	remote := func(id rpc.Identity, volume string) transfer.Remote {
		return transfer.Remote{HTTP: as(id), URL: base.String() + volumesPath + volume, Where: "node b"}
	}
	cluster := Volumes{a, func(node string) (*http.Client, *url.URL, error) {
		if node != "b" {
			return nil, nil, filetree.ErrUnreachable
		}
		return as(server), base, nil
	}}
	var files filetree.Tree // of onB
	for _, v := range []*corev1.PersistentVolume{onA, onB} {
		if files, err = cluster.Files(v); err != nil {
			t.Fatal(err)
		}
		first, err1 := files.Measure(ctx)
		_, held, release, err := cluster.Hold(ctx, v)
		if err != nil {
			t.Fatal(err)
		}
		second, err2 := held.Measure(ctx)
		if err := errors.Join(err1, err2); err != nil || first != second || first.Files != 1 {
			t.Errorf("%s: %+v, held %+v: %v", v.Name, first, second, err)
		}
		release()
	}
	foreign := onB.DeepCopy()
	foreign.Annotations = nil
	for _, v := range []*corev1.PersistentVolume{onC, foreign} { // of no worker, of another provisioner
		_, err1 := cluster.Files(v)
		if _, _, _, err2 := cluster.Hold(ctx, v); err1 == nil || err2 == nil || errors.Is(err1, filetree.ErrUnreachable) != (v == onC) {
			t.Errorf("%s: %v, %v", v.Name, err1, err2)
		}
	}

	for what, x := range map[string]struct {
		as           rpc.Identity
		volume, code string
	}{
		"another node of the cluster, or a peer": {stranger, "v-b", "no-server"},
		"the worker itself":                      {worker, "v-b", "no-server"},
		"a volume of the server":                 {server, "v-a", "no-volume"},
		"a volume of another worker":             {server, "v-c", "no-volume"},
		"one that does not exist":                {server, "v-none", "no-volume"},
		"one with another's folder":              {server, "v-stray", "no-volume"},
	} {
		r := remote(x.as, x.volume)
		_, measured := r.Measure(ctx)
		_, replaced := r.Replace(ctx, 1, strings.NewReader("x"))
		for _, err := range []error{measured, replaced, r.Pack(ctx, io.Discard)} {
			if known := (*rpc.Error)(nil); !errors.As(err, &known) || known.Code != x.code {
				t.Errorf("%s: %v, want %s", what, err, x.code)
			}
		}
	}
	if text, err := os.ReadFile(filepath.Join(onB.Spec.Local.Path, "x")); err != nil || string(text) != "on b" {
		t.Errorf("refused requests have changed it: %q %v", text, err)
	}
	heldByItsConnection(t, files, onB.Spec.Local.Path)
}

// heldByItsConnection: no pod gets the volume while it is read, and one does as soon as its reader is gone.
func heldByItsConnection(t *testing.T, files filetree.Tree, dir string) {
	if err := os.WriteFile(filepath.Join(dir, "big"), bytes.Repeat([]byte("x"), 32<<20), 0o600); err != nil { // more than buffers of connections
		t.Fatal(err)
	}
	ctx, hangUp := context.WithCancel(t.Context())
	from, to := io.Pipe()
	done := make(chan error, 1)
	go func() { done <- files.Pack(ctx, to) }()
	if _, err := io.ReadFull(from, make([]byte, 4096)); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a pod would find the folder while it is read: %v", err)
	}
	hangUp()
	from.Close()
	if err := <-done; err == nil {
		t.Error("a part is taken for the whole")
	}
	await.NoError(t, t.Context(), 10*time.Second, "the folder is back", func() error {
		_, err := os.Stat(filepath.Join(dir, "big"))
		return err
	})
}
