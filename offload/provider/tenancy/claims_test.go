package tenancy

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
	"rivulet/offload/nodeagent/filetree"
	"rivulet/offload/nodeagent/transfer"
	"rivulet/test/harness/await"
)

// folders stand in for the device's: each volume's path is taken at its word.
type folders struct{}

func (folders) Node() string { return "n" }

func (folders) Capacity() (int64, error) { return 1 << 30, nil }

func (folders) Hold(ctx context.Context, v *corev1.PersistentVolume) (context.Context, filetree.Tree, func(), error) {
	if v.Spec.Local == nil {
		return nil, nil, nil, errors.New("not a folder")
	}
	if node := elsewhere.Load(); node != nil {
		return ctx, *node, func() {}, nil
	}
	held.Add(1)
	files, err := filetree.OpenFolder(v.Spec.Local.Path, v.Spec.Capacity.Storage().Value())
	return ctx, files, func() { held.Add(-1) }, err
}

// elsewhere is another node that has all volumes; nil is none.
var elsewhere atomic.Pointer[transfer.Remote]

// anotherNode serves the folder as a node of this cluster does, until the test ends.
func anotherNode(t *testing.T, dir string) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		held.Add(1)
		defer held.Add(-1)
		files, err := filetree.OpenFolder(dir, 1<<20)
		if err != nil {
			t.Error(err)
		}
		answer, err := transfer.Serve(r.Context(), w, r, files, transfer.Routes[[2]string{r.Method, r.URL.Path[len("/made"):]}])
		transfer.Answer(w, answer, err)
	}))
	s.EnableHTTP2 = true
	s.StartTLS()
	elsewhere.Store(&transfer.Remote{HTTP: s.Client(), URL: s.URL + "/made", Where: "node b"})
	t.Cleanup(func() { elsewhere.Store(nil); s.Close() })
}

// held counts the volumes that are kept from pods.
var held atomic.Int32

// Claims of a consumer are new volumes and nothing of this cluster's; their files are
// carried to and from that consumer alone, and hold the twin.
func testClaimsOfTenants(t *testing.T, p *provider) {
	ctx := t.Context()
	twin := p.twinOf(t, alice, "claims")
	p.twinOf(t, bob, "claims")
	c, _ := p.consumer(t, alice, nil)
	claim := func(name string, change func(*corev1.PersistentVolumeClaimSpec)) *corev1.PersistentVolumeClaim {
		out := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: ptr.To(ownClass),
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")}}}}
		change(&out.Spec)
		return out
	}
	dry := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	for what, change := range map[string]func(*corev1.PersistentVolumeClaimSpec){
		"somebody's volume": func(s *corev1.PersistentVolumeClaimSpec) { s.VolumeName = "theirs" },
		"by labels":         func(s *corev1.PersistentVolumeClaimSpec) { s.Selector = &metav1.LabelSelector{} },
		"too large": func(s *corev1.PersistentVolumeClaimSpec) {
			s.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("513Mi")
		},
		"no class": func(s *corev1.PersistentVolumeClaimSpec) { s.StorageClassName = ptr.To("") },
		"a copy": func(s *corev1.PersistentVolumeClaimSpec) {
			s.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "x"}
		},
	} {
		if _, err := c.CoreV1().PersistentVolumeClaims(twin).Create(ctx, claim("x", change), dry); !apierrors.IsInvalid(err) && !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v, want it refused", what, err)
		}
	}

	// One that this cluster binds: the test plays its provisioner.
	data, err := c.CoreV1().PersistentVolumeClaims(twin).Create(ctx, claim("data", func(*corev1.PersistentVolumeClaimSpec) {}), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	name := "pvc-" + string(data.UID)
	dir := filepath.Join(t.TempDir(), twin+"_data_"+name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := c.CoreV1().PersistentVolumeClaims(twin).Patch(ctx, "data", "application/merge-patch+json", []byte(`{"spec":{"volumeName":"theirs"}}`), metav1.PatchOptions{}); !apierrors.IsInvalid(err) && !apierrors.IsForbidden(err) {
		t.Errorf("a volume chosen later: %v", err)
	}
	v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"pv.kubernetes.io/provisioned-by": "rivulet.dev/local-path"}}, Spec: corev1.PersistentVolumeSpec{
		Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")}, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		StorageClassName: ownClass, ClaimRef: &corev1.ObjectReference{Namespace: twin, Name: "data", UID: data.UID},
		PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: dir}},
		NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{"n"}}}}}}}}}
	if _, err := p.admin.CoreV1().PersistentVolumes().Create(ctx, v, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	await.True(t, time.Minute, "the claim is bound", func() bool {
		got, err := c.CoreV1().PersistentVolumeClaims(twin).Get(ctx, "data", metav1.GetOptions{})
		return err == nil && got.Status.Phase == corev1.ClaimBound
	})

	const path = "/v1/volumes/claims/data"
	t.Run("on this device", func(t *testing.T) { testFilesOfAClaim(t, p, dir, path) })
	t.Run("on another node", func(t *testing.T) {
		anotherNode(t, dir)
		testFilesOfAClaim(t, p, dir, path)
	})

	// Nor while a pod has it.
	user := set("user", 1, "", func(s *corev1.PodSpec) {
		s.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
	})
	if _, err := c.AppsV1().ReplicaSets(twin).Create(ctx, user, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	await.True(t, time.Minute, "in use", func() bool {
		code, body := p.carry(t, alice, "GET", path, "", nil)
		return code == 409 && strings.Contains(string(body), "in-use")
	})
	if err := c.AppsV1().ReplicaSets(twin).Delete(ctx, "user", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := c.CoreV1().PersistentVolumeClaims(twin).Delete(ctx, "data", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	await.True(t, time.Minute, "then the twin goes", func() bool {
		// There is no kubelet that would end the pod.
		_ = p.admin.CoreV1().Pods(twin).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}, metav1.ListOptions{})
		code, _ := p.carry(t, alice, "DELETE", "/v1/namespaces/claims", "", nil)
		return code == http.StatusNotFound
	})
	p.carry(t, bob, "DELETE", "/v1/namespaces/claims", "", nil)
}

// testFilesOfAClaim reads and writes the files of a claim of 1 MiB, wherever its folder is.
func testFilesOfAClaim(t *testing.T, p *provider, dir, path string) {
	ctx := t.Context()
	if err := os.WriteFile(filepath.Join(dir, "x"), []byte("one"), 0o600); err != nil {
		t.Fatal(err)
	}
	code, body := p.carry(t, alice, "GET", path, "", nil)
	copied := t.TempDir()
	if code != 200 {
		t.Fatalf("%d %q", code, body)
	}
	if err := filetree.Unpack(ctx, copied, filetree.Bounds{Entries: 9, Logical: 1 << 20, Data: 1 << 20}, bytes.NewReader(body)); err != nil {
		t.Fatalf("%d bytes, %v; they begin with %.40q", len(body), err, body)
	}
	if raw, err := os.ReadFile(filepath.Join(copied, "x")); err != nil || string(raw) != "one" {
		t.Errorf("%q %v", raw, err)
	}
	testTransfersEnd(t, p, dir, path)
	if code, body := p.carry(t, alice, "PUT", path, "2000000", bytes.NewReader(nil)); code != 413 || !bytes.Contains(body, []byte("raise requests.storage")) {
		t.Errorf("more than the claim asks for: %d %s", code, body)
	}
	var stream bytes.Buffer
	w := tar.NewWriter(&stream)
	if err := errors.Join(w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "../evil", Mode: 0o600}), w.Close()); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		as           peer.ID
		method, path string
		size         string
		status       int
		code         string
	}{
		{bob, "GET", path, "", 404, "no-claim"},
		{alice, "GET", "/v1/volumes/other/data", "", 404, "no-twin"},
		{alice, "GET", "/v1/volumes/claims/none", "", 404, "no-claim"},
		{alice, "GET", "/v1/volumes/claims/..%2Fdata", "", 400, "bad-claim"},
		{alice, "GET", "/v1/volumes/..%2Fclaims/data", "", 400, "bad-namespace"},
		{alice, "PUT", path, "", 400, "bad-size"},
		{alice, "PUT", path, "-1", 400, "bad-size"},
		{alice, "PUT", path, "1000000000000000000", 507, "no-room"},
		{alice, "PUT", path, "10", 503, "provider-unavailable"}, // with the hostile stream
		{alice, "DELETE", "/v1/namespaces/claims", "", 409, "holds-data"},
	} {
		code, body := p.carry(t, x.as, x.method, x.path, x.size, bytes.NewReader(stream.Bytes()))
		var said rpc.Error
		if err := json.Unmarshal(body, &said); err != nil || code != x.status || said.Code != x.code || said.Cure == "" {
			t.Errorf("%s %s: %d %s, want %d %s with a cure", x.method, x.path, code, body, x.status, x.code)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "..", "evil")); err == nil {
		t.Error("a stream got out of its folder")
	}
	// What was read is written, and the consumer is told the sum of what is there then.
	want, err := filetree.SumUp(ctx, copied, filetree.Bounds{Entries: 9, Logical: 1 << 20, Data: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	var got filetree.Sum
	if code, answer := p.carry(t, alice, "PUT", path, "3", bytes.NewReader(body)); json.Unmarshal(answer, &got) != nil || code != 200 || got != want {
		t.Errorf("%d %s, want %+v", code, answer, want)
	}
}

// A transfer holds its volume, and ends within a second of the consumer's hanging up or
// being no peer any more, whether it waits for the consumer or reads the disk.
func testTransfersEnd(t *testing.T, p *provider, dir, path string) {
	big, err := os.Create(filepath.Join(dir, "big"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range int64(1000) { // more than lies in buffers of connections
		if _, err := big.WriteAt(bytes.Repeat([]byte("x"), 64<<10), i<<20); err != nil {
			t.Fatal(err)
		}
	}
	big.Close()
	defer os.Remove(big.Name())
	all := map[peer.ID]bool{alice: true, bob: true}
	released := func(what string, from time.Time) {
		t.Helper()
		await.True(t, time.Minute, what+": the volume is given back", func() bool { return held.Load() == 0 })
		if took := time.Since(from); took > 2*time.Second {
			t.Errorf("%s: it took %s", what, took)
		}
	}
	begin := func(method string, body io.Reader) (*http.Response, context.CancelFunc) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		r, err := http.NewRequestWithContext(ctx, method, p.url+path, body)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set(who, string(alice))
		r.Header.Set(transfer.SizeHeader, "500000")
		resp, err := http.DefaultClient.Do(r)
		if err != nil && method == "GET" {
			t.Error(err)
		}
		return resp, cancel
	}
	ends := map[string]func(cancel context.CancelFunc){
		"hanging up": func(cancel context.CancelFunc) { cancel() },
		"unpeering":  func(context.CancelFunc) { p.Only(map[peer.ID]bool{bob: true}) },
	}
	for what, end := range ends {
		resp, cancel := begin("GET", nil)
		if _, err := io.ReadFull(resp.Body, make([]byte, 1000)); err != nil || held.Load() != 1 {
			t.Fatalf("%v, %d volumes are held", err, held.Load())
		}
		begun := time.Now()
		end(cancel)
		released(what+" while it is read", begun)
		if _, err := io.Copy(io.Discard, resp.Body); err == nil {
			t.Error(what + ": the part that came is taken for the whole")
		}
		resp.Body.Close()
		cancel()
		p.Only(all)
	}
	// The consumer sends the beginning of a file, and no more.
	from, to := io.Pipe()
	go func() {
		w := tar.NewWriter(to)
		_ = w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "f", Mode: 0o600, Size: 500_000})
		_, _ = w.Write(make([]byte, 1000))
	}()
	done := make(chan struct{})
	go func() {
		defer close(done)
		resp, cancel := begin("PUT", from)
		if resp != nil {
			if resp.StatusCode == http.StatusOK {
				t.Error("a part is taken for the whole")
			}
			resp.Body.Close()
		}
		cancel()
	}()
	await.True(t, time.Minute, "it is written", func() bool {
		fi, err := os.Stat(filepath.Join(dir, "f"))
		return err == nil && fi.Size() > 0 && held.Load() == 1
	})
	begun := time.Now()
	p.Only(map[peer.ID]bool{bob: true})
	released("unpeering while it is written", begun)
	to.CloseWithError(io.ErrUnexpectedEOF)
	<-done
	p.Only(all)
}

func (p *provider) carry(t *testing.T, as peer.ID, method, path, size string, body io.Reader) (int, []byte) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, p.url+path, body)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set(who, string(as))
	if size != "" {
		r.Header.Set(transfer.SizeHeader, size)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, text
}
