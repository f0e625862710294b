package arch

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	// inTree is a path of this repository, as pages name it.
	inTree = regexp.MustCompile(`(?:^|[\s("'|` + "`" + `])((?:cmd|appliance|offload|fabric|image|systemd|test|bench)/[a-zA-Z0-9_./-]*[a-zA-Z0-9])`)
	// goFile is a file by its name, or by the end of its path.
	goFile = regexp.MustCompile(`[a-z0-9_/-]+\.go\b`)
)

// What a page names of the repository is there: folders, files, and Go files by the end of their path.
func TestPathsThatPagesNameAreThere(t *testing.T) {
	var files []string
	err := fs.WalkDir(os.DirFS(root), ".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && isBuilt(path) {
			return fs.SkipDir
		}
		files = append(files, "/"+path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	all, seen := "\n"+strings.Join(files, "\n")+"\n", 0
	for page, text := range pagesOf(t) {
		if page == "docs/reference/suites.md" {
			continue // written by make test-all from test/suites.yaml, whose paths TestSuitesFile of test/programs/check checks
		}
		var names []string
		for _, m := range inTree.FindAllStringSubmatch(text, -1) {
			names = append(names, m[1])
		}
		for _, name := range append(names, goFile.FindAllString(text, -1)...) {
			seen++
			if !strings.Contains(all, "/"+strings.Trim(name, "/")+"\n") && !built(name) {
				t.Errorf("%s names %s, which is not there", page, name)
			}
		}
	}
	if seen < 200 {
		t.Errorf("only %d paths found", seen)
	}
}

// built reports whether a path is one that a build makes.
func built(path string) bool {
	matched, err := filepath.Match("image/bundle/bundle_*", path)
	return err == nil && matched
}

// Each component of the supervisor is a stage that status shows; the page of the architecture has it.
func TestComponentsAreInTheArchitecture(t *testing.T) {
	code, err := os.ReadFile(filepath.Join(root, "appliance", "system.go"))
	if err != nil {
		t.Fatal(err)
	}
	drawing := pagesOf(t)["docs/design/architecture.md"]
	drawing = strings.Split(drawing, "```")[1]
	names := regexp.MustCompile(`\{Name: "([a-z-]+)"`).FindAllStringSubmatch(string(code), -1)
	for _, m := range names {
		if !regexp.MustCompile(`(?m)(^|[ ─])` + m[1] + `( |$)`).MatchString(drawing) {
			t.Errorf("component %s is not in the drawing of docs/design/architecture.md", m[1])
		}
	}
	if len(names) < 25 {
		t.Errorf("only %d components found", len(names))
	}
}

// The names of files in a device's state folder are in appliance/state/paths alone.
func TestStatePathsAreInOnePackage(t *testing.T) {
	literal := regexp.MustCompile(`"k3s", "(server|agent)"|[sS]tate, "(state\.db|config\.good\.yaml|storage|vclusters|versions|kubeconfig|log)"|"/etc/rivulet"`)
	for _, top := range []string{"appliance", "cmd/rivulet"} {
		err := filepath.WalkDir(filepath.Join(root, top), func(path string, d fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.HasSuffix(filepath.Dir(path), "state/paths") {
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			for n, line := range strings.Split(string(text), "\n") {
				if literal.MatchString(line) {
					t.Errorf("%s:%d: %s: take it from appliance/state/paths", path, n+1, strings.TrimSpace(line))
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
