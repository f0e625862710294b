// Command gateway packs the gateway pod's program into images: an archive for each architecture (docker, podman, ctr),
// and an OCI layout for all of them (skopeo, crane). It reads the programs and alone writes the folder; the same
// programs give the same bytes.
//
//	go run ./image/gateway -in _build/gateway -tag rivulet.dev/gateway:1 -out bin/gateway amd64 arm64 arm
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"rivulet/image/oci"
)

func main() {
	in := flag.String("in", "", "folder with the program for each architecture")
	tag := flag.String("tag", "", "image name")
	out := flag.String("out", "", "folder to write, in place of what is there")
	flag.Parse()
	if err := run(*in, *tag, *out, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "gateway:", err)
		os.Exit(1)
	}
}

// config lets a pod run the image without settings of its own: any user but root may run the program.
var config = v1.Config{Entrypoint: []string{"/rivulet-gateway"}, User: "65532:65532"}

func run(in, tag, out string, arches []string) error {
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
		files := []oci.File{{Name: "rivulet-gateway", Content: program}}
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
