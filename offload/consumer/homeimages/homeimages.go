// Package homeimages serves images of home to the providers that run home's pods, so that a pod away needs no registry
// (docs/design/images.md). A provider gets what an image of a pod that is bound to it consists of, and nothing else:
// all other requests get 404, whether home has the image or not. The requester is known from the pinned certificate,
// and its containerd checks every digest. It reads pods of home, containerd's names and content, and writes nothing.
// Failure: the provider uses the image's registry.
package homeimages

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
)

// Pattern is the route on the control port. HEAD is answered, too.
const Pattern = "GET /v1/images/{what...}"

const (
	// perPeer bounds how much one provider is sent at once; more waits.
	perPeer = 8
	// maxManifest is far above what a manifest or an index measures, maxParts above what an
	// image consists of.
	maxManifest = 4 << 20
	maxParts    = 4096
	maxDepth    = 3
)

// Store is home's images.
type Store interface {
	// Find returns what a name stands for. Imported says that no registry has given it.
	Find(ctx context.Context, name string) (d digest.Digest, imported bool, err error)
	// Open opens a blob; os.ErrNotExist if it is not there.
	Open(d digest.Digest) (*os.File, error)
}

// Server answers providers.
type Server struct {
	Store Store
	// Used are the images of home's pods that are bound to the provider, as pods name them.
	Used func(provider peer.ID) []string
	// On reports whether anything is served at all.
	On func() bool

	mu    sync.Mutex
	busy  map[peer.ID]*queue                       // of providers that ask at the moment
	parts map[digest.Digest]map[digest.Digest]bool // of images, by their digest
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

// queue are the requests of one provider: those that are served hold a slot.
type queue struct {
	slots    chan struct{}
	requests int // served and waiting
}

// enter waits for a slot of the provider, which leave gives back; false if ctx ended before.
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

// count returns the provider's queue, with more requests than before. It goes with the last.
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

// find returns the digest that a provider may have by a tag or a digest, empty if none.
func (s *Server) find(ctx context.Context, id peer.ID, repository, ref string, imported bool) digest.Digest {
	asked, err := digest.Parse(ref)
	byDigest := err == nil
	for _, image := range s.Used(id) {
		named, err := reference.ParseDockerRef(image)
		if err != nil || named.Name() != repository || !byDigest && named.String() != repository+":"+ref {
			continue
		}
		root, own, err := s.root(ctx, named)
		switch {
		case err != nil || imported && !own:
		case !byDigest:
			return root
		case s.consists(root, asked):
			return asked
		}
	}
	return ""
}

// root is the digest of an image, and whether it was imported. A name with a digest counts
// only if home has an image of that name: else a pod could name any content of home.
func (s *Server) root(ctx context.Context, named reference.Named) (digest.Digest, bool, error) {
	d, imported, err := s.Store.Find(ctx, named.String())
	if c, ok := named.(reference.Canonical); ok && err == nil && c.Digest() != d {
		return "", false, fmt.Errorf("%s is another image here", named)
	}
	return d, imported, err
}

// consists reports whether a blob belongs to an image.
func (s *Server) consists(root, blob digest.Digest) bool {
	s.mu.Lock()
	parts := s.parts[root]
	s.mu.Unlock()
	if parts == nil {
		parts = map[digest.Digest]bool{root: true}
		if !s.collect(root, parts, maxDepth) {
			return root == blob // it is not here whole yet: asked again, it is looked at again
		}
		s.mu.Lock()
		if s.parts == nil || len(s.parts) >= 64 {
			s.parts = map[digest.Digest]map[digest.Digest]bool{}
		}
		s.parts[root] = parts
		s.mu.Unlock()
	}
	return parts[blob]
}

// collect adds what a manifest or an index names. False if that one cannot be read.
func (s *Server) collect(d digest.Digest, parts map[digest.Digest]bool, depth int) bool {
	f, err := s.Store.Open(d)
	if err != nil {
		return false
	}
	defer f.Close()
	m, ok := parse(f)
	if !ok {
		return false
	}
	add := func(d digest.Digest) bool {
		if d.Validate() != nil || len(parts) >= maxParts || parts[d] {
			return false
		}
		parts[d] = true
		return true
	}
	for _, l := range append(m.Layers, m.Config) {
		add(l.Digest)
	}
	for _, child := range m.Manifests {
		if add(child.Digest) && depth > 0 {
			s.collect(child.Digest, parts, depth-1) // platforms that are not here are none of ours
		}
	}
	return true
}

// manifest is one, or an index.
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

// mediaType is what a manifest is; empty if it is none.
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
