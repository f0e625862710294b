package arch

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// applianceGroups are the folders of appliance, from the bottom: a package imports what is
// in its own group and in those below it. Packages in one string share a level and do not
// import each other's.
var applianceGroups = []string{
	"version health lifecycle state",
	"machine",
	"config",
	"engine burst",
	"addons",
	"api",
	"diagnose network vcluster",
	"operate",
	"lifetime ui",
}

// group is the folder below a root, empty for the root itself and for other trees.
func group(path, root string) string {
	rest, ok := strings.CutPrefix(path, root+"/")
	if !ok {
		return ""
	}
	name, _, _ := strings.Cut(rest, "/")
	return name
}

// Groups of appliance import downwards only, so that none of them needs the wiring.
func TestApplianceGroups(t *testing.T) {
	level := func(name string) int {
		return slices.IndexFunc(applianceGroups, func(l string) bool { return slices.Contains(strings.Fields(l), name) })
	}
	seen := map[string]bool{}
	for _, p := range list(t) {
		from := group(p.ImportPath, "rivulet/appliance")
		if from == "" {
			continue
		}
		seen[from] = true
		if level(from) < 0 {
			t.Errorf("%s is in no group of appliance", p.ImportPath)
		}
		for _, i := range p.Imports {
			if to := group(i, "rivulet/appliance"); to != "" && to != from && level(to) >= level(from) {
				t.Errorf("%s imports %s: %s is not below %s", p.ImportPath, i, to, from)
			}
		}
	}
	for _, name := range strings.Fields(strings.Join(applianceGroups, " ")) {
		if !seen[name] {
			t.Errorf("there is no group %s", name)
		}
	}
}

// The roles of offload are apart: home's side and the lender's side do not know each other,
// and what runs on every node knows neither.
func TestOffloadRoles(t *testing.T) {
	may := map[string]string{"consumer": "nodeagent", "provider": "nodeagent", "nodeagent": ""}
	seen := map[string]bool{}
	for _, p := range list(t) {
		from := group(p.ImportPath, "rivulet/offload")
		allowed, role := may[from]
		seen[from] = true
		for _, i := range p.Imports {
			to := group(i, "rivulet/offload")
			if _, other := may[to]; role && other && to != from && to != allowed {
				t.Errorf("%s imports %s: %s does not know %s", p.ImportPath, i, from, to)
			}
		}
	}
	for role := range may {
		if !seen[role] {
			t.Errorf("there is no role %s", role)
		}
	}
}

// wiring bounds the lines of product code in package appliance. What behaves is a type in
// one of the groups.
const wiring = 1000

func TestApplianceIsWiring(t *testing.T) {
	lines := 0
	for _, p := range list(t) {
		if p.ImportPath != "rivulet/appliance" {
			continue
		}
		for _, f := range p.GoFiles {
			text, err := os.ReadFile(filepath.Join("../../appliance", f))
			if err != nil {
				t.Fatal(err)
			}
			lines += bytes.Count(text, []byte("\n"))
		}
	}
	if lines == 0 || lines > wiring {
		t.Errorf("package appliance has %d lines, want 1 to %d: put what behaves into one of its groups", lines, wiring)
	}
}
