package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"rivulet/image/bundle"
)

// helpers makes a folder as the Makefile leaves it, with other content.
func helpers(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	names := append([]string{"pause", "hello", "xtables", "libm.so.6", "netfilter/lib/ld.so", "netfilter/lib/libxt_NAT.so", "netfilter/packages"}, programs...)
	if err := os.MkdirAll(filepath.Join(dir, "netfilter/lib"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("libxt_NAT.so", filepath.Join(dir, "netfilter/lib/libxt_DNAT.so")); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("program "+name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestPackIsDeterministic(t *testing.T) {
	var packed [][]byte
	for range 2 {
		entries, err := collect("arm64", helpers(t), nil) // another folder, another time
		if err != nil {
			t.Fatal(err)
		}
		p, err := pack(entries)
		if err != nil {
			t.Fatal(err)
		}
		packed = append(packed, p)
	}
	if !bytes.Equal(packed[0], packed[1]) {
		t.Fatal("the same helpers made two different bundles")
	}
}

func TestCollect(t *testing.T) {
	dir := helpers(t)
	gateway := filepath.Join(t.TempDir(), "amd64")
	if err := os.WriteFile(gateway, []byte("program of the gateway"), 0o755); err != nil {
		t.Fatal(err)
	}
	entries, err := collect("arm64", dir, []string{gateway})
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]entry{}
	for _, e := range entries {
		have[e.Name] = e
	}
	for _, name := range append([]string{"runc"}, plugins...) {
		e, ok := have["bin/"+name]
		if !ok || name != "runc" && e.Link != "cni" || name == "runc" && (e.Mode != 0o755 || e.SHA256 != sum([]byte("program runc"))) {
			t.Errorf("%s: %+v", name, e.File)
		}
	}
	for name, want := range map[string]string{"nft/iptables-save": "run", "legacy/ip6tables": "run", "lib/libxt_DNAT.so": "libxt_NAT.so", "lib/libm.so.6": "", "nft/run": "", "lib/ld.so": ""} {
		e, ok := have["netfilter/"+name]
		if !ok || e.Link != want || want == "" && e.Mode != 0o755 {
			t.Errorf("netfilter/%s: %+v, want a link to %q", name, e.File, want)
		}
	}
	if e, ok := have["gateway/amd64.zst"]; !ok || e.Size == 0 {
		t.Errorf("no gateway: %+v", e.File)
	}
	if last := entries[len(entries)-1].Name; last != "manifest.json" {
		t.Errorf("the last file is %s, want the manifest", last)
	}
	if err := os.Remove(filepath.Join(dir, "rivulet-tunnel")); err != nil {
		t.Fatal(err)
	}
	if _, err := collect("arm64", dir, nil); err == nil || !strings.Contains(err.Error(), "rivulet-tunnel") {
		t.Errorf("without the tunnel: %v", err)
	}
}

func TestImages(t *testing.T) {
	archive, err := imageOf(bundle.PauseImage, "pause", "arm64", []byte("program"))
	if err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag(bundle.PauseImage)
	if err != nil {
		t.Fatal(err)
	}
	image, err := tarball.Image(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive)), nil }, &tag)
	if err != nil {
		t.Fatal(err)
	}
	config, err := image.ConfigFile()
	if err != nil || config.Architecture != "arm64" || config.OS != "linux" || len(config.Config.Entrypoint) != 1 || config.Config.Entrypoint[0] != "/pause" {
		t.Fatalf("config %+v, %v", config, err)
	}
	layers, err := image.Layers()
	if err != nil || len(layers) != 1 || len(config.RootFS.DiffIDs) != 1 {
		t.Fatalf("layers %v, %v", layers, err)
	}
}

func TestModuleVersion(t *testing.T) {
	info := &debug.BuildInfo{
		Main: debug.Module{Path: "rivulet", Version: "(devel)"},
		Deps: []*debug.Module{
			{Path: "github.com/opencontainers/runc", Version: "v1.4.0"},
			{Path: "github.com/containerd/containerd/v2", Version: "v2.2.0", Replace: &debug.Module{Path: "fork", Version: "v2.1.5-k3s1"}},
		},
	}
	for module, want := range map[string]string{"github.com/opencontainers/runc": "v1.4.0", "github.com/containerd/containerd/v2": "v2.1.5-k3s1", "nowhere": ""} {
		if got, err := moduleVersion(info, module); got != want || (err != nil) != (want == "") {
			t.Errorf("%s: %q, %v", module, got, err)
		}
	}
}
