package arch

import (
	"go/parser"
	"go/token"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// What Kubernetes' main programs link for its effect alone, the engine links, too.
func TestTheEngineLinksWhatUpstreamLinks(t *testing.T) {
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes").Output()
	if err != nil {
		t.Fatal(err)
	}
	blank := func(pattern string) map[string]bool {
		files, _ := filepath.Glob(pattern)
		found := map[string]bool{}
		for _, name := range files {
			f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
			if err != nil {
				t.Fatal(err)
			}
			for _, i := range f.Imports {
				if i.Name != nil && i.Name.Name == "_" {
					found[strings.Trim(i.Path.Value, `"`)] = true
				}
			}
		}
		if len(found) == 0 {
			t.Fatalf("%s: no blank import", pattern)
		}
		return found
	}
	ours := blank("../../appliance/engine/k3s/*.go")
	for _, program := range []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy"} {
		for path := range blank(filepath.Join(strings.TrimSpace(string(dir)), "cmd", program, "*.go")) {
			if !ours[path] {
				t.Errorf("%s links %s, the engine does not", program, path)
			}
		}
	}
}
