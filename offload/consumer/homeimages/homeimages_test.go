package homeimages

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"rivulet/fabric/peer"
)

// folder is a Store of blobs.
type folder struct {
	dir   string
	names map[string]digest.Digest
	own   map[string]bool
}

func (f folder) Find(_ context.Context, name string) (digest.Digest, bool, error) {
	if d, ok := f.names[name]; ok {
		return d, f.own[name], nil
	}
	return "", false, errors.New("none")
}

func (f folder) Open(d digest.Digest) (*os.File, error) {
	return os.Open(filepath.Join(f.dir, d.Encoded()))
}

func (f folder) put(t *testing.T, text []byte) digest.Digest {
	t.Helper()
	d := digest.FromBytes(text)
	if err := os.WriteFile(filepath.Join(f.dir, d.Encoded()), text, 0o600); err != nil {
		t.Fatal(err)
	}
	return d
}

var amd64 = ocispec.Platform{OS: "linux", Architecture: "amd64"}

// on are images on nodes of a platform.
func on(p ocispec.Platform, images ...string) (out []Use) {
	for _, i := range images {
		out = append(out, Use{i, p.OS, p.Architecture})
	}
	return out
}

// image puts an index with one manifest of one layer.
func (f folder) image(t *testing.T, layer string) (index, manifest, blob digest.Digest) {
	t.Helper()
	text := func(v any) []byte {
		raw, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	blob = f.put(t, []byte(layer))
	manifest = f.put(t, text(ocispec.Manifest{Config: ocispec.Descriptor{Digest: f.put(t, []byte("{}"))}, Layers: []ocispec.Descriptor{{Digest: blob}}}))
	missing := digest.FromString("another platform")
	return f.put(t, text(ocispec.Index{MediaType: ocispec.MediaTypeImageIndex, Manifests: []ocispec.Descriptor{
		{Digest: missing, Platform: &ocispec.Platform{OS: "linux", Architecture: "arm64"}}, {Digest: manifest, Platform: &amd64}}})), manifest, blob
}

// A provider gets what the images of home's pods there consist of, in pieces if it likes, and
// nothing of any other image, whether home has it or not.
func TestOnlyWhatRunsThere(t *testing.T) {
	f := folder{dir: t.TempDir(), names: map[string]digest.Digest{}, own: map[string]bool{"example.org/a/web:1": true}}
	index, manifest, layer := f.image(t, "the layer")
	secret, secretManifest, secretLayer := f.image(t, "a secret")
	f.names["example.org/a/web:1"], f.names["example.org/a/db:1"], f.names["docker.io/library/pulled:2"] = index, secret, index
	enabled := true
	used := map[peer.ID][]Use{"b": on(amd64, "example.org/a/web:1", "not a name", "pulled:2")}
	s := &Server{Store: f, Used: func(id peer.ID) []Use { return used[id] }, On: func() bool { return enabled }}
	ask := func(id peer.ID, what, span string) (int, string, http.Header) {
		t.Helper()
		r := httptest.NewRequest(http.MethodGet, "/v1/images/"+what, nil)
		r.SetPathValue("what", r.URL.Path[len("/v1/images/"):])
		if span != "" {
			r.Header.Set("Range", span)
		}
		w := httptest.NewRecorder()
		s.serve(w, r, id)
		body, _ := io.ReadAll(w.Body)
		return w.Code, string(body), w.Header()
	}
	code, _, h := ask("b", "example.org/a/web/manifests/1?imported", "")
	if code != 200 || h.Get("Docker-Content-Digest") != index.String() || h.Get("Content-Type") != ocispec.MediaTypeImageIndex {
		t.Errorf("by its tag: %d %v", code, h)
	}
	if code, _, h := ask("b", "example.org/a/web/manifests/"+manifest.String(), ""); code != 200 || h.Get("Content-Type") != ocispec.MediaTypeImageManifest {
		t.Errorf("its manifest: %d %v", code, h)
	}
	if code, body, _ := ask("b", "example.org/a/web/blobs/"+layer.String(), "bytes=4-"); code != http.StatusPartialContent || body != "layer" {
		t.Errorf("the rest of its layer: %d %q", code, body)
	}
	if code, _, _ := ask("b", "docker.io/library/pulled/manifests/2", ""); code != 200 {
		t.Errorf("one that a registry gave home: %d", code)
	}
	for _, no := range []struct {
		id   peer.ID
		what string
	}{
		{"c", "example.org/a/web/manifests/1"}, {"c", "example.org/a/web/blobs/" + layer.String()},
		{"b", "example.org/a/web/manifests/2"}, {"b", "example.org/a/db/manifests/1"},
		{"b", "example.org/a/db/blobs/" + secretLayer.String()}, {"b", "example.org/a/web/blobs/" + secretLayer.String()},
		{"b", "example.org/a/web/manifests/" + secretManifest.String()}, {"b", "example.org/a/web/blobs/sha256:../../x"},
		{"b", "docker.io/library/pulled/manifests/2?imported"}, {"b", "example.org/a/web/tags/1"},
		{"b", "example.org/a/web/manifests/" + digest.FromString("another platform").String()},
	} {
		if code, body, _ := ask(no.id, no.what, ""); code != http.StatusNotFound {
			t.Errorf("%s gets %s: %d %q", no.id, no.what, code, body)
		}
	}
	used["b"] = append(used["b"], on(amd64, "example.org/a/web@"+secret.String())...)
	if code, _, _ := ask("b", "example.org/a/web/blobs/"+secretLayer.String(), ""); code != http.StatusNotFound {
		t.Errorf("a pod that names the digest of another image: %d", code)
	}
	f.names["example.org/a/web@"+index.String()] = index
	used["b"] = on(amd64, "example.org/a/web@"+index.String())
	if code, _, _ := ask("b", "example.org/a/web/blobs/"+layer.String(), ""); code != 200 {
		t.Errorf("a pod that names its image by digest: %d", code)
	}
	used["b"] = nil // its last pod there has ended
	if code, _, _ := ask("b", "example.org/a/web/blobs/"+layer.String(), ""); code != http.StatusNotFound {
		t.Errorf("after the last pod: %d", code)
	}
	used["b"], enabled = on(amd64, "example.org/a/web:1"), false
	if code, _, _ := ask("b", "example.org/a/web/manifests/1", ""); code != http.StatusNotFound {
		t.Errorf("switched off: %d", code)
	}
}

// A provider is served so many at a time, another waits or goes, and nothing is kept of a
// provider that asks no more: peers come and go.
func TestQueuesGoWithTheLastRequest(t *testing.T) {
	var s Server
	var leave []func()
	for range perPeer {
		l, ok := s.enter(t.Context(), "b")
		if !ok {
			t.Fatal("not served")
		}
		leave = append(leave, l)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, ok := s.enter(ended, "b"); ok {
		t.Error("more are served than may be")
	}
	waits := make(chan func())
	go func() {
		l, _ := s.enter(t.Context(), "b")
		waits <- l
	}()
	other, ok := s.enter(t.Context(), "c")
	if !ok {
		t.Fatal("one provider holds up another")
	}
	other()
	select {
	case <-waits:
		t.Fatal("served beside as many as may be")
	default:
	}
	leave[0]()
	leave[0] = <-waits
	for _, l := range leave {
		l()
	}
	if len(s.busy) != 0 {
		t.Errorf("left: %v", s.busy)
	}
}

// Of an index the manifest counts that a node of the pod's platform runs, and no other that it names: a private image of
// home, or a second one of that platform.
func TestOnlyThePlatformsManifestCounts(t *testing.T) {
	f := folder{dir: t.TempDir(), names: map[string]digest.Digest{}, own: map[string]bool{}}
	put := func(v any) digest.Digest {
		t.Helper()
		raw, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return f.put(t, raw)
	}
	// one puts a manifest of one layer, whose configuration has the platform.
	one := func(layer string, p ocispec.Platform) (manifest, blob digest.Digest) {
		blob = f.put(t, []byte(layer))
		return put(ocispec.Manifest{Config: ocispec.Descriptor{Digest: put(ocispec.Image{Platform: p})}, Layers: []ocispec.Descriptor{{Digest: blob}}}), blob
	}
	arm := ocispec.Platform{OS: "linux", Architecture: "arm", Variant: "v7"}
	web, webLayer := one("web", amd64)
	board, boardLayer := one("web of a board", arm)
	old, oldLayer := one("web of an older board", ocispec.Platform{OS: "linux", Architecture: "arm", Variant: "v6"})
	private, privateLayer := one("private", amd64)
	for name, index := range map[string][]ocispec.Descriptor{
		"named":   {{Digest: old, Platform: &ocispec.Platform{OS: "linux", Architecture: "arm", Variant: "v6"}}, {Digest: web, Platform: &amd64}, {Digest: board, Platform: &arm}, {Digest: private, Platform: &amd64}},
		"unnamed": {{Digest: old}, {Digest: web}, {Digest: board}, {Digest: private}},
		"other": {{Digest: private, Platform: &ocispec.Platform{OS: "unknown", Architecture: "unknown"}}, {Digest: private, Platform: &ocispec.Platform{OS: "linux", Architecture: "amd64", Variant: "v3"}},
			{Digest: old, Platform: &ocispec.Platform{OS: "linux", Architecture: "arm", Variant: "v6"}}, {Digest: web, Platform: &amd64}, {Digest: board, Platform: &arm}},
	} {
		full := "example.org/a/" + name + ":1"
		f.names[full] = put(ocispec.Index{MediaType: ocispec.MediaTypeImageIndex, Manifests: index})
		for platform, want := range map[*ocispec.Platform][2]digest.Digest{&amd64: {web, webLayer}, &arm: {board, boardLayer}, {OS: "linux", Architecture: "arm64"}: {}} {
			s := &Server{Store: f, Used: func(peer.ID) []Use { return on(*platform, full) }}
			for _, d := range []digest.Digest{web, webLayer, board, boardLayer, old, oldLayer, private, privateLayer} {
				if got := s.find(t.Context(), "b", "example.org/a/"+name, d.String(), false); (got == d) != (d == want[0] || d == want[1]) {
					t.Errorf("%s for %s: %s is given: %t", name, platform.Architecture, d, got == d)
				}
			}
		}
	}
}
