package main

import (
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"rivulet/image/bundle"
	"rivulet/image/oci"
)

// pauseImage makes a docker-archive of an image with one file.
func pauseImage(arch string, program []byte) ([]byte, error) {
	return oci.Archive(bundle.PauseImage, arch, v1.Config{Entrypoint: []string{"/pause"}, User: "65535:65535"},
		[]oci.File{{Name: "pause", Content: program}})
}
