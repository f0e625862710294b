// Package images preserves container images when containerd's database is damaged (docs/design/power.md): the blobs are
// on the disk under their hashes, and only that database has their names. It reads containerd's list and content
// folder, and alone writes <state>/images.json and, in a recovery, an archive that the engine imports.
package images

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"rivulet/appliance/state/durable"
	"rivulet/offload/policy"
)

// Image is a name and its digest.
type Image struct {
	Name   string        `json:"name"`
	Type   string        `json:"type"`
	Digest digest.Digest `json:"digest"`
	// Shared: pods of other clusters may use it.
	Shared bool `json:"shared,omitempty"`
	// Kept: an operator imported it, so the kubelet does not remove it to free space.
	Kept bool `json:"kept,omitempty"`
	// Provided is what Provide has done of that; empty if nothing.
	Provided string `json:"provided,omitempty"`
}

// The label that marks an image as kept for the kubelet and crictl, and k3s's mark of images that it labelled itself,
// whose label it removes at its next start.
const (
	keptLabel = "io.cri-containerd.pinned=pinned"
	k3sLabel  = "io.cattle.k3s.pinned"
)

// Parse reads the output of `ctr images ls`. Digest names are left out: they are created with their images.
func Parse(list []byte) []Image {
	var out []Image
	for line := range strings.Lines(string(list)) {
		f := strings.Fields(line)
		if len(f) < 3 || f[0] == "REF" || strings.HasPrefix(f[0], "sha256:") {
			continue
		}
		if d, err := digest.Parse(f[2]); err == nil {
			labels := labelsOf(f)
			has := func(label string) bool {
				key, value, _ := strings.Cut(label, "=")
				got, ok := labels[key]
				return ok && got == value
			}
			out = append(out, Image{f[0], f[1], d, has(policy.ShareLabel + "=true"), kept(has), labels[policy.ProvidedLabel]})
		}
	}
	slices.SortFunc(out, func(a, b Image) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// labelsOf are the labels in the fields of a line of `ctr images ls`.
func labelsOf(fields []string) map[string]string {
	out := map[string]string{}
	for _, label := range strings.Split(fields[len(fields)-1], ",") {
		if key, value, ok := strings.Cut(label, "="); ok {
			out[key] = value
		}
	}
	return out
}

// kept reports whether an image with such labels, each as key=value, is kept by an operator.
func kept(has func(label string) bool) bool {
	return has(keptLabel) && !has(k3sLabel+"=pinned")
}

// Save writes the list to a file unless it is unchanged.
func Save(path string, list []Image) error {
	raw, err := json.Marshal(list)
	if err != nil {
		return fmt.Errorf("images: %w", err)
	}
	if err := durable.Write(path, raw, 0o600); err != nil {
		return fmt.Errorf("images: %w", err)
	}
	return nil
}

// Load reads the file of Save; no file is an empty list.
func Load(path string) ([]Image, error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	var list []Image
	if err == nil {
		err = json.Unmarshal(raw, &list)
	}
	if err != nil {
		return nil, fmt.Errorf("images: %w", err)
	}
	return list, nil
}

// nameAnnotation has an image's name for containerd's import.
const nameAnnotation = "io.containerd.image.name"

// Archive writes the listed images that are complete in containerd's content folder as an OCI layout, and returns their
// names. A partial archive never has the given name.
func Archive(content string, list []Image, to string) (names []string, err error) {
	blobs := map[digest.Digest]int64{}
	index := ocispec.Index{MediaType: ocispec.MediaTypeImageIndex}
	index.SchemaVersion = 2
	for _, i := range list {
		need := map[digest.Digest]int64{}
		if !collect(content, i.Digest, need) {
			continue
		}
		for d, size := range need {
			blobs[d] = size
		}
		index.Manifests = append(index.Manifests, ocispec.Descriptor{
			MediaType: i.Type, Digest: i.Digest, Size: blobs[i.Digest],
			Annotations: map[string]string{nameAnnotation: i.Name},
		})
		names = append(names, i.Name)
	}
	if len(names) == 0 {
		return nil, nil
	}
	part := filepath.Join(filepath.Dir(filepath.Dir(to)), ".recovered.part") // not in the engine's import folder
	if err := write(part, content, index, blobs); err != nil {
		os.Remove(part)
		return nil, fmt.Errorf("images: %w; look at the disk (space)", err)
	}
	if err := durable.Rename(part, to); err != nil {
		return nil, fmt.Errorf("images: %w", err)
	}
	return names, nil
}

// same reports whether an image is the other one, and not another of its name.
func (i Image) same(o Image) bool { return i.Name == o.Name && i.Digest == o.Digest }

// Archived returns the images in an archive of Archive: their names, types and digests.
func Archived(path string) (list []Image, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("images: %w", err)
	}
	defer f.Close()
	for t := tar.NewReader(f); ; {
		h, err := t.Next()
		if err != nil {
			return nil, fmt.Errorf("images: %s has no index: %w", path, err)
		}
		if h.Name != ocispec.ImageIndexFile {
			continue
		}
		var index ocispec.Index
		if err := json.NewDecoder(io.LimitReader(t, maxManifest)).Decode(&index); err != nil {
			return nil, fmt.Errorf("images: %s: %w", path, err)
		}
		for _, m := range index.Manifests {
			list = append(list, Image{Name: m.Annotations[nameAnnotation], Type: m.MediaType, Digest: m.Digest})
		}
		return list, nil
	}
}

func blobPath(content string, d digest.Digest) string {
	return filepath.Join(content, "blobs", d.Algorithm().String(), d.Encoded())
}

// maxManifest is far above the size of a manifest or an index, bytes.
const maxManifest = 8 << 20

// collect adds a blob and its references. It reports whether an image is complete: of an index, the platforms that are
// present.
func collect(content string, d digest.Digest, need map[digest.Digest]int64) bool {
	at, err := os.Stat(blobPath(content, d))
	if err != nil {
		return false
	}
	if _, ok := need[d]; ok {
		return true
	}
	if at.Size() > maxManifest {
		need[d] = at.Size()
		return true
	}
	raw, err := os.ReadFile(blobPath(content, d))
	if err != nil || digest.FromBytes(raw) != d {
		return false
	}
	need[d] = at.Size()
	var m struct {
		Manifests []ocispec.Descriptor `json:"manifests"`
		Config    *ocispec.Descriptor  `json:"config"`
		Layers    []ocispec.Descriptor `json:"layers"`
	}
	if json.Unmarshal(raw, &m) != nil {
		return true // a layer or a configuration
	}
	any := len(m.Manifests) == 0
	for _, child := range m.Manifests {
		of := map[digest.Digest]int64{}
		if collect(content, child.Digest, of) {
			any = true
			for d, size := range of {
				need[d] = size
			}
		}
	}
	for _, child := range m.Layers {
		if !collect(content, child.Digest, need) {
			return false
		}
	}
	if m.Config != nil && m.Config.Digest != "" && !collect(content, m.Config.Digest, need) {
		return false
	}
	return any
}

func write(path, content string, index ocispec.Index, blobs map[digest.Digest]int64) error {
	out, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	t := tar.NewWriter(out)
	put := func(name string, size int64, from io.Reader) error {
		if err := t.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: size, Typeflag: tar.TypeReg}); err != nil {
			return err
		}
		_, err := io.Copy(t, from)
		return err
	}
	layout, _ := json.Marshal(ocispec.ImageLayout{Version: ocispec.ImageLayoutVersion})
	raw, err := json.Marshal(index)
	if err == nil {
		err = errors.Join(put(ocispec.ImageLayoutFile, int64(len(layout)), bytes.NewReader(layout)),
			put(ocispec.ImageIndexFile, int64(len(raw)), bytes.NewReader(raw)))
	}
	for d, size := range blobs {
		if err != nil {
			break
		}
		var in *os.File
		if in, err = os.Open(blobPath(content, d)); err == nil {
			err = put("blobs/"+d.Algorithm().String()+"/"+d.Encoded(), size, in)
			in.Close()
		}
	}
	return errors.Join(err, t.Close(), out.Sync(), out.Close())
}
