package main

import (
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"rivulet/image/oci"
)

// imageOf makes a docker-archive of an image with one program, for a user without rights.
func imageOf(tag, name, arch string, program []byte) ([]byte, error) {
	return oci.Archive(tag, arch, v1.Config{Entrypoint: []string{"/" + name}, Env: []string{"PATH=/"}, User: "65535:65535"},
		[]oci.File{{Name: name, Content: program}})
}
