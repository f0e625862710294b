// Command rivulet-cni has all CNI plugins of a device in one static binary: the upstream ones and Rivulet's flannel.
// argv[0] selects the plugin, so the bundle has one link for each.
//
// The upstream plugins are programs, not libraries. `make cni-packages` converts them to packages before the bundle is
// built; without the build tag cni_upstream, as in a new clone, only flannel is included.
//
// It reads its configuration on standard input and writes no files of its own; errors are returned as in the CNI
// specification and appear as an event of the pod.
package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"rivulet/image/bundle/cni/flannel"
)

// plugins are the programs by name; upstream.go adds to it.
var plugins = map[string]func(){"flannel": flannel.Main}

func main() {
	name := filepath.Base(os.Args[0])
	run, ok := plugins[name]
	if !ok {
		known := strings.Join(slices.Sorted(maps.Keys(plugins)), ", ")
		fmt.Fprintf(os.Stderr, "rivulet-cni: no plugin is called %q: link this file to one of these names: %s\n", name, known)
		os.Exit(1)
	}
	run()
}
