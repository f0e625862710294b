package images

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/pkg/archive/compression"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"rivulet/offload/nodeagent/tenantimages"
	"rivulet/offload/policy"
)

// File is an image in a file or a folder, as `docker save` and tools for OCI layouts make it.
type File struct {
	path   string
	folder bool
	// Names are the file's names for its images; empty if none is valid for a pod.
	Names []string
	refs  []string // names in OCI layouts that are only tags
}

// Inspect checks whether a path is an image; otherwise its error describes what it is, with a cure.
func Inspect(at string) (File, error) {
	f := File{path: at}
	fi, err := os.Stat(at)
	if err != nil {
		return f, fmt.Errorf("%w; give the file of docker save -o FILE NAME:TAG, or the folder of an OCI layout", err)
	}
	files := map[string][]byte{}
	if f.folder = fi.IsDir(); f.folder {
		for _, name := range []string{"index.json", "oci-layout"} {
			if files[name], err = os.ReadFile(filepath.Join(at, name)); err != nil {
				return f, fmt.Errorf("folder %s is no OCI layout, it has no %s; make one with: skopeo copy docker://NAME:TAG oci:FOLDER:TAG", at, name)
			}
		}
	} else if files, err = inTar(at); err != nil {
		return f, err
	}
	raw, docker := files["manifest.json"]
	index, oci := files["index.json"]
	if docker {
		err = f.fromDocker(raw)
	}
	if also := (File{path: at}); oci && err == nil { // containerd takes the names from here, if both are there
		if err = also.fromOCI(index); err == nil {
			err = reserved(also.Names...)
		}
		if !docker {
			also.folder = f.folder
			f = also
		}
	}
	if err == nil {
		err = reserved(f.Names...)
	}
	return f, err
}

// reserved refuses the names of the bundled images, which all tenants may use, and of those that tenants have had fetched.
func reserved(names ...string) error {
	for _, name := range names {
		repository, _, _ := strings.Cut(name, ":")
		bundled := slices.ContainsFunc(tenantimages.Bundled, func(b string) bool { return strings.HasPrefix(b, repository+":") })
		if host, _, _ := strings.Cut(name, "/"); bundled || strings.HasSuffix(host, ".rivulet.invalid") {
			return fmt.Errorf("%s is a name of Rivulet's own; give the image another one: docker tag %s NAME:TAG", name, name)
		}
	}
	return nil
}

// inTar returns the files of an archive that identify it.
func inTar(at string) (map[string][]byte, error) {
	raw, err := os.Open(at)
	if err != nil {
		return nil, fmt.Errorf("%w; use sudo", err)
	}
	defer raw.Close()
	plain, err := compression.DecompressStream(raw)
	if err != nil {
		return nil, fmt.Errorf("%s is no image: %w; make one with: docker save -o FILE NAME:TAG", at, err)
	}
	defer plain.Close()
	files := map[string][]byte{}
	entries := 0
	for r := tar.NewReader(plain); ; entries++ {
		h, err := r.Next()
		switch {
		case errors.Is(err, io.EOF) && entries > 0:
			if files["manifest.json"] == nil && files["index.json"] == nil {
				return nil, fmt.Errorf("%s is an archive without an image in it; docker export writes a file system, docker save -o FILE NAME:TAG an image", at)
			}
			return files, nil
		case err != nil && entries > 0:
			return nil, fmt.Errorf("%s ends in the middle or is damaged: %w; copy it again", at, err)
		case err != nil:
			return nil, fmt.Errorf("%s is no image and no archive; make one with: docker save -o FILE NAME:TAG", at)
		}
		if name := path.Clean(h.Name); name == "manifest.json" || name == "index.json" {
			if files[name], err = io.ReadAll(io.LimitReader(r, maxManifest)); err != nil {
				return nil, fmt.Errorf("%s ends in the middle or is damaged: %w; copy it again", at, err)
			}
		}
	}
}

func (f *File) fromDocker(raw []byte) error {
	var list []struct{ RepoTags []string }
	if err := json.Unmarshal(raw, &list); err != nil || len(list) == 0 {
		return fmt.Errorf("%s has no list of images in its manifest.json; make it anew with: docker save -o FILE NAME:TAG", f.path)
	}
	for _, image := range list {
		f.Names = append(f.Names, image.RepoTags...)
	}
	return f.whole()
}

func (f *File) fromOCI(raw []byte) error {
	var index ocispec.Index
	if err := json.Unmarshal(raw, &index); err != nil || len(index.Manifests) == 0 {
		return fmt.Errorf("%s has no images in its index.json; make it anew with: skopeo copy docker://NAME:TAG oci:FOLDER:TAG", f.path)
	}
	for _, m := range index.Manifests {
		name := m.Annotations[nameAnnotation]
		if name == "" {
			name = m.Annotations[ocispec.AnnotationRefName]
		}
		switch {
		case name == "":
		case strings.ContainsAny(name, "/:@"):
			f.Names = append(f.Names, name)
		default:
			f.refs = append(f.refs, name)
		}
	}
	return f.whole()
}

// whole completes names in the manner of the kubelet.
func (f *File) whole() error {
	for i, name := range f.Names {
		full, err := Full(name)
		if err != nil {
			return fmt.Errorf("%s: %w", f.path, err)
		}
		f.Names[i] = full
	}
	return nil
}

// Full returns an image's name with registry and tag, as the kubelet requests it.
func Full(name string) (string, error) {
	named, err := reference.ParseDockerRef(name)
	if err != nil {
		return "", fmt.Errorf("%q is no name of an image: %w; write NAME:TAG", name, err)
	}
	return named.String(), nil
}

// imported is the temporary name of an OCI layout's tags.
const imported = "import.rivulet.invalid/oci"

// Import imports a file's images into containerd, under name if that is not empty, and returns their names. They stay
// until an operator removes them, because no registry has them. With share, pods of other clusters may use them.
func (c *Containerd) Import(ctx context.Context, f File, name string, share bool) ([]string, error) {
	args := []string{"images", "import", "--base-name", imported}
	names := f.Names
	if name != "" {
		args, names = append(args, "--index-name", name), []string{name}
	} else {
		args = []string{"images", "import"}
	}
	if err := reserved(names...); err != nil {
		return nil, err
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("%s has no name for its image; give one with --name NAME:TAG", f.path)
	}
	args = append(args, "--label", keptLabel)
	if share {
		args = append(args, "--label", policy.ShareLabel+"=true")
	}
	from := io.Reader(nil)
	if f.folder {
		r, w := io.Pipe()
		defer r.Close()
		go func() { w.CloseWithError(pack(w, os.DirFS(f.path))) }()
		from = r
		args = append(args, "-")
	} else {
		args = append(args, f.path)
	}
	if _, err := c.ctr(ctx, from, args...); err != nil {
		return nil, err
	}
	if name != "" {
		for _, ref := range f.refs {
			_ = c.Remove(ctx, imported+":"+ref) // the image has its name
		}
	}
	return names, nil
}

// pack writes a folder as an archive.
func pack(to io.Writer, folder fs.FS) error {
	w := tar.NewWriter(to)
	if err := w.AddFS(folder); err != nil {
		return err
	}
	return w.Close()
}

// ctr runs containerd's client with an input.
func (c *Containerd) ctr(ctx context.Context, in io.Reader, args ...string) ([]byte, error) {
	return c.tool(ctx, in, "ctr", append([]string{"--address", Socket, "--namespace", "k8s.io"}, args...)...)
}

// tool runs a client of containerd that is part of this program. The last line of its output is the error.
func (c *Containerd) tool(ctx context.Context, in io.Reader, name string, args ...string) ([]byte, error) {
	switch conn, err := net.Dial("unix", Socket); {
	case errors.Is(err, fs.ErrPermission):
		return nil, errors.New("containerd takes connections of root only; use sudo")
	case err != nil:
		return nil, errors.New("containerd does not run here; see: rivulet status")
	default:
		conn.Close()
	}
	cmd := exec.CommandContext(ctx, c.Executable, args...)
	cmd.Args[0], cmd.Stdin = name, in
	out, err := cmd.Output()
	var ended *exec.ExitError
	if errors.As(err, &ended) {
		said := strings.Split(strings.TrimSpace(string(ended.Stderr)), "\n")
		return nil, fmt.Errorf("containerd: %s; see: rivulet status", said[len(said)-1])
	}
	if err != nil {
		return nil, fmt.Errorf("containerd: %w; see: rivulet status", err)
	}
	return out, nil
}

// Held is an image in containerd.
type Held struct {
	Image
	Bytes     int64    `json:"bytes"` // of its content, compressed
	Platforms []string `json:"platforms"`
	// Containers of this device use it.
	Containers int `json:"containers"`
}

// Held returns all images of this device, by name.
func (c *Containerd) Held(ctx context.Context) ([]Held, error) {
	listed, err := c.ctr(ctx, nil, "images", "list")
	if err != nil {
		return nil, err
	}
	running, err := c.ctr(ctx, nil, "containers", "list")
	if err != nil {
		return nil, err
	}
	used := map[string]int{}
	for line := range strings.Lines(string(running)) {
		if f := strings.Fields(line); len(f) > 1 {
			used[f[1]]++
		}
	}
	platforms := map[string][]string{}
	for line := range strings.Lines(string(listed)) {
		if f := strings.Fields(line); len(f) > 2 && f[len(f)-2] != "-" {
			platforms[f[0]] = strings.Split(f[len(f)-2], ",")
		}
	}
	out := []Held{}
	for _, i := range Parse(listed) {
		h := Held{Image: i, Platforms: platforms[i.Name], Containers: used[i.Name]}
		parts := map[digest.Digest]int64{}
		collect(filepath.Join(c.agentDir(), "containerd", contentDir), i.Digest, parts)
		for _, n := range parts {
			h.Bytes += n
		}
		out = append(out, h)
	}
	return out, nil
}

// Remove removes an image's name, and with its last name also the kubelet's names for it. Unused content is deleted
// from the disk before it returns.
func (c *Containerd) Remove(ctx context.Context, name string) error {
	listed, err := c.ctr(ctx, nil, "images", "list")
	if err != nil {
		return err
	}
	_, err = c.ctr(ctx, nil, append([]string{"images", "rm", "--sync"}, goWith(listed, name)...)...)
	return err
}

// RemoveUnused removes all images except those in use by a container of this device and those that are kept, and
// returns their names.
func (c *Containerd) RemoveUnused(ctx context.Context) (names []string, err error) {
	// A slow card needs longer for one image than crictl's default of 2 s.
	out, err := c.tool(ctx, nil, "crictl", "--runtime-endpoint", "unix://"+Socket, "--timeout", "10m", "rmi", "--prune")
	for line := range strings.Lines(string(out)) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "Deleted: "); ok {
			names = append(names, name)
		}
	}
	return names, err
}

// goWith returns a name and, if the image has no other name, its digest names in the output of `ctr images ls`.
func goWith(listed []byte, name string) []string {
	of := map[string][]string{} // names by digest
	target := ""
	for line := range strings.Lines(string(listed)) {
		if f := strings.Fields(line); len(f) > 2 {
			of[f[2]] = append(of[f[2]], f[0])
			if f[0] == name {
				target = f[2]
			}
		}
	}
	out := []string{name}
	for _, other := range of[target] {
		switch {
		case other == name:
		case !strings.Contains(other, "sha256:"):
			return []string{name}
		default:
			out = append(out, other)
		}
	}
	return out
}
