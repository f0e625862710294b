// Command pack builds the bundle that is embedded into rivulet. It reads the folder of helpers that the Makefile built
// and the named programs of the gateway pod, and writes the packed bundle and its description; the same input gives the
// same bytes.
//
//	go run ./image/bundle/pack -arch arm64 -in _build/bundle/linux_arm64 -out image/bundle/bundle_linux_arm64 _build/gateway/amd64
package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/klauspost/compress/zstd"

	"rivulet/image/bundle"
)

// programs are the binaries of a bundle; plugins are links to the binary cni.
var (
	programs = []string{"cni", "containerd-shim-runc-v2", "rivulet-tunnel", "runc"}
	plugins  = []string{"bandwidth", "bridge", "flannel", "host-local", "loopback", "portmap"}
	// images are those of one program, which has the name of the archive.
	images = []struct{ name, tag string }{{"hello", bundle.HelloImage}, {"pause", bundle.PauseImage}}
)

func main() {
	arch := flag.String("arch", "", "GOARCH of the helpers")
	in := flag.String("in", "", "folder with the helpers")
	out := flag.String("out", "", "output path without extension")
	flag.Parse()
	if err := run(*arch, *in, *out, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "pack:", err)
		os.Exit(1)
	}
}

func run(arch, in, out string, gateways []string) error {
	entries, err := collect(arch, in, gateways)
	if err != nil {
		return err
	}
	packed, err := pack(entries)
	if err != nil {
		return err
	}
	info := bundle.Info{SHA256: sum(packed)}
	if info.Versions, err = versions(in); err != nil {
		return err
	}
	text, err := json.MarshalIndent(info, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(out+".json", append(text, '\n'), 0o644); err != nil {
		return err
	}
	if err := os.WriteFile(out+".tar.zst", packed, 0o644); err != nil {
		return err
	}
	plain := 0
	for _, e := range entries {
		plain += len(e.content)
	}
	fmt.Printf("bundle %s: %.1f MB packed, %.1f MB unpacked\n", info.SHA256[:12], float64(len(packed))/1e6, float64(plain)/1e6)
	return nil
}

type entry struct {
	bundle.File
	content []byte
}

func collect(arch, in string, gateways []string) ([]entry, error) {
	var all []entry
	for _, name := range programs {
		content, err := read(filepath.Join(in, name))
		if err != nil {
			return nil, err
		}
		all = append(all, file("bin/"+name, 0o755, content))
	}
	for _, name := range plugins {
		all = append(all, link("bin/"+name, "cni"))
	}
	filter, err := netfilter(in)
	if err != nil {
		return nil, err
	}
	all = append(all, filter...)
	for _, i := range images {
		program, err := read(filepath.Join(in, i.name))
		if err != nil {
			return nil, err
		}
		image, err := imageOf(i.tag, i.name, arch, program)
		if err != nil {
			return nil, err
		}
		all = append(all, file("images/"+i.name+".tar", 0o644, image))
	}
	programs, err := gatewayPrograms(gateways)
	if err != nil {
		return nil, err
	}
	all = append(all, programs...)

	var m bundle.Manifest
	for _, e := range all {
		m.Files = append(m.Files, e.File)
	}
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return nil, err
	}
	return append(all, file("manifest.json", 0o644, text)), nil
}

func file(name string, mode os.FileMode, content []byte) entry {
	return entry{bundle.File{Name: name, Mode: mode, Size: int64(len(content)), SHA256: sum(content)}, content}
}

func sum(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

// window, bytes, is the distance at which repetitions are found: Go programs share much of their code. Unpacking takes as
// much memory, once.
const window = 32 << 20

// pack makes the archive, without attributes of this machine or the time.
func pack(entries []entry) ([]byte, error) {
	var out bytes.Buffer
	compressed, err := zstd.NewWriter(&out, zstd.WithEncoderLevel(zstd.SpeedBestCompression), zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(window))
	if err != nil {
		return nil, err
	}
	archive := tar.NewWriter(compressed)
	for _, e := range entries {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: e.Name, Mode: int64(e.Mode.Perm()), Size: e.Size}
		if e.Link != "" {
			h.Typeflag, h.Linkname = tar.TypeSymlink, e.Link
		}
		if err := archive.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := archive.Write(e.content); err != nil {
			return nil, err
		}
	}
	if err := archive.Close(); err != nil {
		return nil, err
	}
	if err := compressed.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}
