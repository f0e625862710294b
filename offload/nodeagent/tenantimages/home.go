package tenantimages

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"net/url"
	"strings"
)

// Tag identifies a consumer in the names of its images. It has 128 bits: a consumer chooses its identity, and would find
// one with another's tag among fewer.
func Tag(consumer string) string {
	id := sha256.Sum256([]byte(consumer))
	return hex.EncodeToString(id[:16])
}

// errNoHome: home does not serve the image.
var errNoHome = errors.New("its home does not give it")

// object is a part of an image in a request of containerd.
type object struct {
	consumer, host, repository string
	kind, ref                  string // manifests or blobs, a tag or a digest
}

func (o object) image() string { return o.consumer + "/" + o.host + "/" + o.repository }
func (o object) tag() bool     { return o.kind == "manifests" && !strings.Contains(o.ref, ":") }

// requestHome requests an object from the consumer's home. With imported it gets only an image without a registry at
// home: an image of the same name in a registry is a different one.
func (r *Relay) requestHome(in *http.Request, o object, imported bool) (*http.Response, error) {
	if r.cfg.Home == nil {
		return nil, errNoHome
	}
	client, base, ok := r.cfg.Home(o.consumer)
	if !ok {
		return nil, errNoHome
	}
	return r.request(in, client, base+"/v1/images/", o, imported)
}

// requestServer requests an object of an image of this cluster's own from its server.
func (r *Relay) requestServer(in *http.Request, o object) (*http.Response, error) {
	if r.cfg.Server == nil {
		return nil, errNoHome
	}
	client, at, ok := r.cfg.Server()
	if !ok {
		return nil, errNoHome
	}
	return r.request(in, client, at, o, o.tag())
}

// request requests an object from another device, below at.
func (r *Relay) request(in *http.Request, client *http.Client, at string, o object, imported bool) (*http.Response, error) {
	at += (&url.URL{Path: o.host + "/" + o.repository + "/" + o.kind + "/" + o.ref}).EscapedPath()
	if imported {
		at += "?imported"
	}
	out, err := http.NewRequestWithContext(in.Context(), in.Method, at, nil)
	if err != nil {
		return nil, err
	}
	for _, h := range []string{"Range", "If-Range"} {
		out.Header[h] = in.Header[h]
	}
	resp, err := client.Do(out)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusPartialContent {
		resp.Body.Close()
		return nil, errNoHome
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gave == nil || len(r.gave) >= 1024 {
		r.gave = map[string]bool{}
	}
	r.gave[o.image()] = true
	return resp, nil
}

// first tries home before any registry: for images that it has begun to serve, and by tag for images that were imported
// there.
func (r *Relay) first(in *http.Request, o object) (*http.Response, error) {
	r.mu.Lock()
	gave := r.gave[o.image()]
	r.mu.Unlock()
	if !o.tag() && !gave {
		return nil, errNoHome
	}
	return r.requestHome(in, o, o.tag())
}
