package images

import (
	"encoding/json"
	"os"
	"slices"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Architectures returns, for the images of a list that are indexes, the Linux architectures in them, whether their
// content is on this disk or not. Images with a single manifest and indexes with unnamed platforms are left out: they
// do not show which platforms their name has elsewhere.
func Architectures(content string, list []Image) map[string][]string {
	out := map[string][]string{}
	for _, i := range list {
		path := blobPath(content, i.Digest)
		if at, err := os.Stat(path); !strings.Contains(i.Type, "index") && !strings.Contains(i.Type, "manifest.list") || err != nil || at.Size() > maxManifest {
			continue
		}
		raw, err := os.ReadFile(path)
		var index ocispec.Index
		if err != nil || json.Unmarshal(raw, &index) != nil {
			continue
		}
		var found []string
		known := true
		for _, m := range index.Manifests {
			switch {
			case m.Platform == nil || m.Platform.Architecture == "" || m.Platform.OS == "":
				known = false
			case m.Platform.OS == "linux" && !slices.Contains(found, m.Platform.Architecture):
				found = append(found, m.Platform.Architecture)
			}
		}
		if known && len(found) > 0 {
			slices.Sort(found)
			out[i.Name] = found
		}
	}
	return out
}
