package oci

import (
	"fmt"
	"maps"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Layout writes an OCI image layout with one image for several architectures into dir. The index names it tag; images
// are by GOARCH.
func Layout(dir, tag string, images map[string]v1.Image) error {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, arch := range slices.Sorted(maps.Keys(images)) {
		platform := &v1.Platform{OS: "linux", Architecture: arch}
		if arch == "arm" {
			platform.Variant = "v7"
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add: mutate.MediaType(images[arch], types.OCIManifestSchema1), Descriptor: v1.Descriptor{Platform: platform}})
	}
	path, err := layout.Write(dir, empty.Index)
	if err == nil {
		err = path.AppendIndex(index, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": tag}))
	}
	if err != nil {
		return fmt.Errorf("oci: %s: %w", dir, err)
	}
	return nil
}
