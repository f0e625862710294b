package images

import (
	"maps"
	"slices"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

func TestArchitecturesAreThoseOfAnIndex(t *testing.T) {
	c := blobs{t, t.TempDir()}
	of := func(os, arch, variant string) ocispec.Descriptor { // none of them is on the disk
		return ocispec.Descriptor{Digest: digest.FromString(os + arch + variant), Size: 3, Platform: &ocispec.Platform{OS: os, Architecture: arch, Variant: variant}}
	}
	two := c.add(ocispec.Index{Manifests: []ocispec.Descriptor{of("linux", "arm64", "v8"), of("linux", "amd64", ""), of("unknown", "unknown", ""), of("windows", "riscv64", "")}})
	arms := c.add(ocispec.Index{Manifests: []ocispec.Descriptor{of("linux", "arm", "v6"), of("linux", "arm", "v7")}})
	silent := c.add(ocispec.Index{Manifests: []ocispec.Descriptor{of("linux", "amd64", ""), {Digest: digest.FromString("x")}}})
	broken := c.add([]byte("{"))
	const docker = "application/vnd.docker.distribution.manifest.list.v2+json"
	got := Architectures(c.dir, []Image{
		{Name: "two:1", Type: ocispec.MediaTypeImageIndex, Digest: two.Digest},
		{Name: "arms:1", Type: docker, Digest: arms.Digest},
		{Name: "silent:1", Type: ocispec.MediaTypeImageIndex, Digest: silent.Digest},
		{Name: "broken:1", Type: ocispec.MediaTypeImageIndex, Digest: broken.Digest},
		{Name: "gone:1", Type: ocispec.MediaTypeImageIndex, Digest: digest.FromString("gone")},
		{Name: "one:1", Type: ocispec.MediaTypeImageManifest, Digest: c.image("layer").Digest},
	})
	want := map[string][]string{"two:1": {"amd64", "arm64"}, "arms:1": {"arm"}}
	if !maps.EqualFunc(got, want, slices.Equal) {
		t.Errorf("%v, want %v", got, want)
	}
}
