// Package homeimages serves images of home to the providers that run home's pods, so that a pod away needs no registry
// (docs/design/images.md). A provider gets the content of images of pods that are bound to it; every other request gets
// 404, whether home has the image or not. The requester is identified by the pinned certificate, and its containerd
// checks every digest. It reads home's pods, and containerd's names and content, and writes nothing. Failure: the
// provider uses the image's registry.
package homeimages

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	corev1 "k8s.io/api/core/v1"

	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
)

// Pattern is the route on the control port; HEAD is allowed as well.
const Pattern = "GET /v1/images/{what...}"

const (
	// perPeer bounds concurrent answers to one provider; further requests wait.
	perPeer = 8
	// maxManifest, in bytes, is far above the size of any manifest or index, maxParts above the number of an image's
	// blobs.
	maxManifest = 4 << 20
	maxParts    = 4096
	maxDepth    = 3
)

// Use is an image as a pod names it, and the platform of the pod's node.
type Use struct{ Image, OS, Arch string }

// Of are the images of a pod's containers on a node of that platform.
func Of(p *corev1.Pod, os, arch string) (out []Use) {
	for _, of := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for _, one := range of {
			out = append(out, Use{one.Image, os, arch})
		}
	}
	for _, one := range p.Spec.EphemeralContainers {
		out = append(out, Use{one.Image, os, arch})
	}
	return out
}

// Store is home's images.
type Store interface {
	// Find returns the digest of a name. Imported: the image is not from a registry.
	Find(ctx context.Context, name string) (d digest.Digest, imported bool, err error)
	// Open opens a blob; os.ErrNotExist if it is not there.
	Open(d digest.Digest) (*os.File, error)
}

// Server serves providers.
type Server struct {
	Store Store
	// Used are the images of pods of home that are bound to the provider.
	Used func(provider peer.ID) []Use
	// On reports whether serving is enabled.
	On func() bool

	mu    sync.Mutex
	busy  map[peer.ID]*queue               // of providers with requests under way
	parts map[image]map[digest.Digest]bool // of images
}

var wanted = regexp.MustCompile(`^([a-z0-9.-]+(?::[0-9]{1,5})?/[a-z0-9._/-]+)/(manifests|blobs)/([A-Za-z0-9_.:-]+)$`)

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if id, ok := rpc.PeerID(r); ok {
		s.serve(w, r, id)
		return
	}
	http.NotFound(w, r)
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request, id peer.ID) {
	what := wanted.FindStringSubmatch(r.PathValue("what"))
	if what == nil || !s.On() {
		http.NotFound(w, r)
		return
	}
	leave, ok := s.enter(r.Context(), id)
	if !ok {
		return
	}
	defer leave()
	d := s.find(r.Context(), id, what[1], what[3], r.URL.Query().Has("imported"))
	if d == "" {
		http.NotFound(w, r)
		return
	}
	f, err := s.Store.Open(d)
	if err != nil {
		http.NotFound(w, r)
		return
	}
	defer f.Close()
	kind := "application/octet-stream"
	if what[2] == "manifests" {
		if kind = mediaType(f); kind == "" {
			http.NotFound(w, r)
			return
		}
	}
	w.Header().Set("Content-Type", kind)
	w.Header().Set("Docker-Content-Digest", d.String())
	w.Header().Set("ETag", `"`+d.String()+`"`)
	http.ServeContent(w, r, "", time.Time{}, f)
}

// queue are the requests of one provider; a request that is being served holds a slot.
type queue struct {
	slots    chan struct{}
	requests int // served and waiting
}

// enter waits for a slot of the provider, which leave releases; false if ctx ended before.
func (s *Server) enter(ctx context.Context, id peer.ID) (leave func(), ok bool) {
	q := s.count(id, 1)
	select {
	case q.slots <- struct{}{}:
		return func() { <-q.slots; s.count(id, -1) }, true
	case <-ctx.Done():
		s.count(id, -1)
		return nil, false
	}
}

// count adds more requests to the provider's queue, which is removed with its last request.
func (s *Server) count(id peer.ID, more int) *queue {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.busy[id]
	if q == nil {
		q = &queue{slots: make(chan struct{}, perPeer)}
		if s.busy == nil {
			s.busy = map[peer.ID]*queue{}
		}
		s.busy[id] = q
	}
	if q.requests += more; q.requests == 0 {
		delete(s.busy, id)
	}
	return q
}

// find returns the digest that a provider may read under a tag or digest, empty if none.
func (s *Server) find(ctx context.Context, id peer.ID, repository, ref string, imported bool) digest.Digest {
	asked, err := digest.Parse(ref)
	byDigest := err == nil
	for _, use := range s.Used(id) {
		named, err := reference.ParseDockerRef(use.Image)
		if err != nil || named.Name() != repository || !byDigest && named.String() != repository+":"+ref {
			continue
		}
		root, own, err := s.root(ctx, named)
		switch {
		case err != nil || imported && !own:
		case !byDigest:
			return root
		case s.consists(image{root, use.OS, use.Arch}, asked):
			return asked
		}
	}
	return ""
}

// root is the digest of an image, and whether it was imported. A name with a digest is valid only if home has an image
// of that name; otherwise a pod could name any content of home.
func (s *Server) root(ctx context.Context, named reference.Named) (digest.Digest, bool, error) {
	d, imported, err := s.Store.Find(ctx, named.String())
	if c, ok := named.(reference.Canonical); ok && err == nil && c.Digest() != d {
		return "", false, fmt.Errorf("%s is another image here", named)
	}
	return d, imported, err
}

// image is an image for a platform.
type image struct {
	root     digest.Digest
	os, arch string
}

// consists reports whether a blob is part of an image.
func (s *Server) consists(i image, blob digest.Digest) bool {
	s.mu.Lock()
	parts := s.parts[i]
	s.mu.Unlock()
	if parts == nil {
		parts = map[digest.Digest]bool{i.root: true}
		if !s.collect(i.root, i, parts, maxDepth) {
			return i.root == blob // the image is incomplete here: checked again with the next request
		}
		s.mu.Lock()
		if s.parts == nil || len(s.parts) >= 64 {
			s.parts = map[image]map[digest.Digest]bool{}
		}
		s.parts[i] = parts
		s.mu.Unlock()
	}
	return parts[blob]
}

// collect adds the blobs of a manifest, or of the one manifest of an index that a node of the platform runs: the index
// may name any other image of home. It returns false if home does not have that one.
func (s *Server) collect(d digest.Digest, of image, parts map[digest.Digest]bool, depth int) bool {
	m, ok := s.read(d)
	if !ok {
		return false
	}
	if len(m.Manifests) == 0 {
		for _, l := range append(m.Layers, m.Config) {
			if l.Digest.Validate() == nil && len(parts) < maxParts {
				parts[l.Digest] = true
			}
		}
		return true
	}
	child := s.child(m, of)
	if child == "" || depth == 0 {
		return false
	}
	parts[child] = true
	return s.collect(child, of, parts, depth-1)
}

// variants are those of an architecture that Rivulet's nodes run, the best first, as containerd chooses.
var variants = map[string][]string{"amd64": {"", "v1"}, "arm64": {"", "v8"}, "arm": {"v7", "", "v6", "v5"}}

// child returns the manifest of an index that containerd chooses for the platform; empty if there is none.
func (s *Server) child(index manifest, of image) (out digest.Digest) {
	best := len(variants["arm"])
	for _, d := range index.Manifests {
		if d.Digest.Validate() != nil {
			continue
		}
		p := d.Platform
		if p == nil {
			p = s.platform(d.Digest, of)
		}
		if rank := slices.Index(variants[of.arch], p.Variant); p.OS == of.os && p.Architecture == of.arch && rank >= 0 && rank < best {
			out, best = d.Digest, rank
		}
	}
	return out
}

// platform is what a manifest's configuration says of its platform; an index without one is for all platforms.
func (s *Server) platform(d digest.Digest, of image) *ocispec.Platform {
	m, ok := s.read(d)
	if ok && len(m.Manifests) > 0 {
		return &ocispec.Platform{OS: of.os, Architecture: of.arch}
	}
	var out ocispec.Platform
	if f, err := s.Store.Open(m.Config.Digest); ok && err == nil {
		defer f.Close()
		_ = json.NewDecoder(io.NewSectionReader(f, 0, maxManifest)).Decode(&out) // without a platform it fits none
	}
	return &out
}

// read reads a manifest or an index.
func (s *Server) read(d digest.Digest) (m manifest, ok bool) {
	f, err := s.Store.Open(d)
	if err != nil {
		return m, false
	}
	defer f.Close()
	return parse(f)
}

type manifest struct {
	MediaType string               `json:"mediaType"`
	Manifests []ocispec.Descriptor `json:"manifests"`
	Config    ocispec.Descriptor   `json:"config"`
	Layers    []ocispec.Descriptor `json:"layers"`
}

func parse(f *os.File) (m manifest, ok bool) {
	raw, err := io.ReadAll(io.NewSectionReader(f, 0, maxManifest+1))
	return m, err == nil && len(raw) <= maxManifest && json.Unmarshal(raw, &m) == nil
}

// mediaType is that of a manifest or index; empty if it is neither.
func mediaType(f *os.File) string {
	m, ok := parse(f)
	switch {
	case !ok:
		return ""
	case m.MediaType != "" && len(m.MediaType) < 128 && !strings.ContainsAny(m.MediaType, "\r\n"):
		return m.MediaType
	case len(m.Manifests) > 0:
		return ocispec.MediaTypeImageIndex
	case m.Config.Digest != "":
		return ocispec.MediaTypeImageManifest
	}
	return ""
}
