// Command gateway packs the gateway pod's program into images: an archive for each architecture (docker, podman, ctr),
// and an OCI layout for all of them (skopeo, crane). Each has the texts of all licences of the product. It reads the
// programs and the texts that image/licenses/collect packed, and alone writes the folder; the same input gives the same
// bytes.
//
//	go run ./image/gateway -in _build/gateway -licenses image/licenses/licenses.zst -version v1 -tag rivulet.dev/gateway:1 -out bin/gateway amd64 arm64 arm
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/klauspost/compress/zstd"

	"rivulet/image/oci"
	"rivulet/image/sources"
)

func main() {
	in := flag.String("in", "", "folder with the program for each architecture")
	tag := flag.String("tag", "", "image name")
	out := flag.String("out", "", "folder to write, in place of what is there")
	licenses := flag.String("licenses", "", "the texts of the licences, zstd")
	version := flag.String("version", "", "version of the programs")
	flag.Parse()
	if err := run(*in, *licenses, *version, *tag, *out, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "gateway:", err)
		os.Exit(1)
	}
}

// configOf lets a pod run the image without settings of its own: any user but root may run the program.
func configOf(version string) v1.Config {
	return v1.Config{Entrypoint: []string{"/rivulet-gateway"}, User: "65532:65532", Labels: map[string]string{
		"org.opencontainers.image.title":    "rivulet-gateway",
		"org.opencontainers.image.version":  version,
		"org.opencontainers.image.licenses": "Apache-2.0 AND BSD-3-Clause AND MIT",
	}}
}

// Where the image has the texts, and the name of what has its source.
const (
	licensesFile = "usr/share/doc/rivulet/licenses"
	sourcesFile  = "usr/share/doc/rivulet/SOURCES"
)

func run(in, licenses, version, tag, out string, arches []string) error {
	packed, err := os.ReadFile(licenses)
	if err != nil {
		return fmt.Errorf("no image without the licences' texts: %w; make oci", err)
	}
	r, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return err
	}
	defer r.Close()
	texts, err := r.DecodeAll(packed, nil)
	if err != nil {
		return fmt.Errorf("%s: %w", licenses, err)
	}
	config := configOf(version)
	if err := os.RemoveAll(out); err != nil {
		return err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	images := map[string]v1.Image{}
	for _, arch := range arches {
		program, err := os.ReadFile(filepath.Join(in, arch))
		if err != nil {
			return err
		}
		files := []oci.File{{Name: "rivulet-gateway", Content: program}, {Name: licensesFile, Content: texts}, {Name: sourcesFile, Content: sources.OfGo(version, "rivulet-gateway")}}
		if images[arch], err = oci.Image(arch, config, files); err != nil {
			return err
		}
		archive, err := oci.Archive(tag, arch, config, files)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(out, "gateway-"+arch+".tar"), archive, 0o644); err != nil {
			return err
		}
	}
	return oci.Layout(filepath.Join(out, "oci"), tag, images)
}
