package main

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"k8s.io/kubernetes/test/utils/image"
)

// programs are those of this Debian that tests call in upstream's images, with the
// libraries that they are linked to. make deps installs them.
var programs = []string{"/bin/dash", "/usr/bin/bash", "/usr/bin/curl", "/usr/bin/dig", "/usr/bin/nslookup", "/usr/bin/nc", "/usr/bin/getent", "/usr/sbin/ip"}

const path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// file is one file of a layer; a folder if its mode says so, a link if link is set.
type file struct {
	name    string // without a leading slash
	mode    int64
	content []byte
	link    string
}

func folder(name string, mode int64) file {
	return file{name: name + "/", mode: mode}
}

func program(name, from string, mode int64) (file, error) {
	content, err := os.ReadFile(from)
	return file{name: name, mode: mode, content: content}, err
}

// makeImages writes an archive of the images that conformance tests run, under the names
// that upstream's suite has for them. bin has the programs built of upstream's sources.
func makeImages(bin, out string) error {
	base, err := baseLayer()
	if err != nil {
		return err
	}
	tools, err := toolsLayer()
	if err != nil {
		return err
	}
	own := func(mode int64, from, to string, more ...file) (v1.Layer, error) {
		f, err := program(to, filepath.Join(bin, from), mode)
		if err != nil {
			return nil, err
		}
		return layer(append(more, f))
	}
	var beside []file // what upstream's image has beside the program
	for _, f := range []string{"localhost.crt", "localhost.key"} {
		cert, err := program(f, filepath.Join(bin, f), 0o644)
		if err != nil {
			return err
		}
		beside = append(beside, cert)
	}
	agnhost, err := own(0o755, "agnhost", "agnhost", append(beside, file{name: "agnhost-2", link: "agnhost"})...)
	if err != nil {
		return err
	}
	nnp, err := own(0o4755, "nonewprivs", "usr/local/bin/nnp")
	if err != nil {
		return err
	}
	apiserver, err := own(0o755, "sample-apiserver", "sample-apiserver")
	if err != nil {
		return err
	}
	etcd, err := own(0o755, "etcd", "usr/local/bin/etcd")
	if err != nil {
		return err
	}
	// What upstream's test of kubectl reads.
	data, err := layer([]file{{name: "data.json", mode: 0o644, content: []byte("{\n\"image\": \"nautilus.jpg\"\n}\n")}})
	if err != nil {
		return err
	}
	host := []v1.Layer{base, tools, agnhost}
	entry := []string{"/agnhost"}
	images := map[name.Reference]v1.Image{}
	for _, i := range []struct {
		id     image.ImageID
		layers []v1.Layer
		config v1.Config
	}{
		{image.Agnhost, host, v1.Config{Entrypoint: entry, Cmd: []string{"pause"}}},
		{image.AgnhostPrev, host, v1.Config{Entrypoint: entry, Cmd: []string{"pause"}}},
		{image.APIServer, []v1.Layer{base, apiserver}, v1.Config{Entrypoint: []string{"/sample-apiserver"}}},
		{image.BusyBox, []v1.Layer{base}, v1.Config{Cmd: []string{"sh"}}},
		{image.Etcd, []v1.Layer{base, etcd}, v1.Config{}},
		{image.JessieDnsutils, []v1.Layer{base, tools}, v1.Config{Cmd: []string{"sh"}}},
		{image.Nautilus, append(slices.Clone(host), data), v1.Config{Entrypoint: entry, Cmd: []string{"test-webserver"}}},
		// No test asks nginx for more than to answer on port 80.
		{image.Nginx, host, v1.Config{Cmd: []string{"/agnhost", "test-webserver"}}},
		{image.NginxNew, host, v1.Config{Cmd: []string{"/agnhost", "test-webserver"}}},
		{image.Nonewprivs, []v1.Layer{base, nnp}, v1.Config{Cmd: []string{"nnp"}}},
		{image.NonRoot, []v1.Layer{base}, v1.Config{Cmd: []string{"sh"}, User: "1234"}},
		{image.Pause, []v1.Layer{agnhost}, v1.Config{Entrypoint: append(slices.Clone(entry), "pause"), User: "65535:65535"}},
	} {
		ref, err := name.ParseReference(image.GetE2EImage(i.id))
		if err != nil {
			return err
		}
		i.config.Env = []string{path}
		if images[ref], err = imageOf(i.config, i.layers); err != nil {
			return fmt.Errorf("%s: %w", ref, err)
		}
	}
	return tarball.MultiRefWriteToFile(out, images)
}

func imageOf(config v1.Config, layers []v1.Layer) (v1.Image, error) {
	img, err := mutate.AppendLayers(empty.Image, layers...)
	if err != nil {
		return nil, err
	}
	c, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	c = c.DeepCopy()
	c.Architecture, c.OS, c.Config = runtime.GOARCH, "linux", config
	return mutate.ConfigFile(img, c)
}

// baseLayer is busybox, under the names of all its applets, with the users and folders that tests expect.
func baseLayer() (v1.Layer, error) {
	const busybox = "/bin/busybox"
	binary, err := program("bin/busybox", busybox, 0o755)
	if err != nil {
		return nil, fmt.Errorf("%w; make deps installs busybox-static", err)
	}
	applets, err := exec.Command(busybox, "--list-full").Output()
	if err != nil {
		return nil, fmt.Errorf("%s --list-full: %w", busybox, err)
	}
	files := []file{folder("tmp", 0o1777), folder("root", 0o700), folder("var", 0o755), folder("var/run", 0o755), folder("uploads", 0o777), binary,
		{name: "etc/passwd", mode: 0o644, content: []byte("root:x:0:0:root:/root:/bin/sh\nuser-defined-in-image:x:1000:1000::/home:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n")},
		{name: "etc/group", mode: 0o644, content: []byte("root:x:0:\nuser-defined-in-image:x:1000:\ngroup-defined-in-image:x:50000:user-defined-in-image\nnogroup:x:65534:\n")},
		{name: "etc/nsswitch.conf", mode: 0o644, content: []byte("passwd: files\ngroup: files\nhosts: files dns\n")},
	}
	for _, a := range strings.Fields(string(applets)) {
		if "/"+a != busybox {
			files = append(files, file{name: a, link: busybox})
		}
	}
	return layer(files)
}

// toolsLayer has the programs and what each is linked to, at the same places.
func toolsLayer() (v1.Layer, error) {
	needed := map[string]bool{}
	for _, p := range programs {
		needed[p] = true
		linked, err := exec.Command("ldd", p).CombinedOutput()
		if err != nil {
			return nil, fmt.Errorf("ldd %s: %w: %s; make deps installs it", p, err, linked)
		}
		for word := range strings.FieldsSeq(string(linked)) {
			if strings.HasPrefix(word, "/") {
				needed[word] = true
			}
		}
	}
	var files []file
	for p := range needed {
		f, err := program(strings.TrimPrefix(p, "/"), p, 0o755)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	// Busybox's shell takes its own applets before what PATH has.
	files = append(files, file{name: "bin/sh", link: "/bin/dash"})
	slices.SortFunc(files, func(a, b file) int { return strings.Compare(a.name, b.name) })
	return layer(files)
}

func layer(files []file) (v1.Layer, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, f := range files {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: f.name, Mode: f.mode, Size: int64(len(f.content))}
		switch {
		case f.link != "":
			h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, f.link, 0o777
		case strings.HasSuffix(f.name, "/"):
			h.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.content); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buf.Bytes())), nil })
}
