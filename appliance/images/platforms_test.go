package images

import (
	"maps"
	"slices"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

func TestArchitecturesAreThoseOfAnIndex(t *testing.T) {
	c := content{t, t.TempDir()}
	of := func(os, arch, variant string) ocispec.Descriptor { // none of them is on the disk
		return ocispec.Descriptor{Digest: digest.FromString(os + arch + variant), Size: 3, Platform: &ocispec.Platform{OS: os, Architecture: arch, Variant: variant}}
	}
	two := c.add(ocispec.Index{Manifests: []ocispec.Descriptor{of("linux", "arm64", "v8"), of("linux", "amd64", ""), of("unknown", "unknown", ""), of("windows", "riscv64", "")}})
	arms := c.add(ocispec.Index{Manifests: []ocispec.Descriptor{of("linux", "arm", "v6"), of("linux", "arm", "v7")}})
	silent := c.add(ocispec.Index{Manifests: []ocispec.Descriptor{of("linux", "amd64", ""), {Digest: digest.FromString("x")}}})
	broken := c.add([]byte("{"))
	const docker = "application/vnd.docker.distribution.manifest.list.v2+json"
	got := Architectures(c.dir, []Image{
		{"two:1", ocispec.MediaTypeImageIndex, two.Digest},
		{"arms:1", docker, arms.Digest},
		{"silent:1", ocispec.MediaTypeImageIndex, silent.Digest},
		{"broken:1", ocispec.MediaTypeImageIndex, broken.Digest},
		{"gone:1", ocispec.MediaTypeImageIndex, digest.FromString("gone")},
		{"one:1", ocispec.MediaTypeImageManifest, c.image("layer").Digest},
	})
	want := map[string][]string{"two:1": {"amd64", "arm64"}, "arms:1": {"arm"}}
	if !maps.EqualFunc(got, want, slices.Equal) {
		t.Errorf("%v, want %v", got, want)
	}
}
