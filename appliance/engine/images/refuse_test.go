package images

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/plugins"
	_ "github.com/containerd/containerd/v2/plugins/content/local/plugin"
	"github.com/containerd/errdefs"
	"github.com/containerd/plugin"
	"github.com/containerd/plugin/registry"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Images give no orders: the plugin that obeys them is left out, and a checkpoint cannot be read.
func TestImagesGiveNoOrders(t *testing.T) {
	t.Cleanup(registry.Reset)
	registry.Register(&plugin.Registration{Type: plugins.ContainerMonitorPlugin, ID: "restart", InitFn: func(*plugin.InitContext) (any, error) { return "obeys", nil }})
	registry.Register(&plugin.Registration{Type: plugins.GCPlugin, ID: "scheduler", InitFn: func(*plugin.InitContext) (any, error) { return "stays", nil }})
	RefuseOrders()
	made := map[string]any{}
	for _, r := range registry.Graph(func(*plugin.Registration) bool { return false }) {
		ic := plugin.NewContext(t.Context(), plugin.NewPluginSet(), map[string]string{plugins.PropertyRootDir: t.TempDir()})
		v, err := r.InitFn(ic)
		if err != nil {
			v = err
		}
		made[r.URI()] = v
	}
	if err, _ := made["io.containerd.monitor.container.v1.restart"].(error); !errors.Is(err, plugin.ErrSkipPlugin) {
		t.Errorf("the restart monitor: %v", made["io.containerd.monitor.container.v1.restart"])
	}
	if made["io.containerd.gc.v1.scheduler"] != "stays" {
		t.Errorf("another plugin: %v", made)
	}
	store := made["io.containerd.content.v1.content"].(content.Store)
	for text, wrong := range map[string]bool{
		`{"schemaVersion":2,"manifests":[],"annotations":{"a":"b"}}`:                                            false,
		`{"schemaVersion":2,"annotations":{"org.criu.checkpoint.container.name":"x"}}`:                          true,
		"\n\t {\"Annotations\":{\"org.criu.checkpoint.container.\\u006eame\":\"\"}}":                            true, // as Go decodes it
		`{"config":{"Labels":{"org.criu.checkpoint.container.name":"x"}}}`:                                      false,
		strings.Repeat(" ", 64) + `{"annotations":{"org.criu.checkpoint.container.name":"x"}}`:                  true,
		strings.Repeat(" ", 70) + `{"annotations":{"org.criu.checkpoint.container.name":"x"}}`:                  true,
		`{` + strings.Repeat(" ", mostOfManifest) + `"annotations":{"org.criu.checkpoint.container.name":"x"}}`: true,
		"\x1f\x8b layer":                     false,
		"{.txt of a tar without compression": false,
	} {
		desc := ocispec.Descriptor{MediaType: "any", Digest: digest.FromString(text), Size: int64(len(text))}
		if err := content.WriteBlob(t.Context(), store, text[:min(9, len(text))], bytes.NewReader([]byte(text)), desc); err != nil {
			t.Fatal(err)
		}
		got, err := content.ReadBlob(t.Context(), store, desc)
		if wrong != errdefs.IsInvalidArgument(err) || !wrong && (err != nil || string(got) != text) {
			t.Errorf("%.60q: %v", text, err)
		}
	}
}
