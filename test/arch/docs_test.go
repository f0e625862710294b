package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const root = "../.."

var (
	link   = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	fenced = regexp.MustCompile("(?s)```.*?```|`[^`\n]*`")
	named  = regexp.MustCompile(`\bdocs/[a-z0-9/-]+\.md`)
)

// What is built and what git keeps is no source.
func isBuilt(path string) bool {
	return slices.Contains([]string{".git", "_build", "bin"}, path)
}

// pagesOf returns all pages of the repository, by their path from its root.
func pagesOf(t *testing.T) map[string]string {
	t.Helper()
	pages := map[string]string{}
	err := fs.WalkDir(os.DirFS(root), ".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && isBuilt(path):
			return fs.SkipDir
		case d.IsDir() || filepath.Ext(path) != ".md":
			return nil
		}
		text, err := os.ReadFile(filepath.Join(root, path))
		pages[path] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return pages
}

// linksOf returns what a page links to within the repository: the path from its root,
// and the heading.
func linksOf(t *testing.T, page, text string) (out [][2]string) {
	t.Helper()
	for _, m := range link.FindAllStringSubmatch(fenced.ReplaceAllString(text, "code"), -1) {
		to, err := url.Parse(m[1])
		if err != nil {
			t.Errorf("%s: %s: %v", page, m[1], err)
			continue
		}
		if to.IsAbs() {
			continue
		}
		path := page
		if to.Path != "" {
			path = filepath.Join(filepath.Dir(page), to.Path)
		}
		out = append(out, [2]string{path, to.Fragment})
	}
	return out
}

// What any page links to is there, headings too.
func TestLinksOfPagesLeadSomewhere(t *testing.T) {
	pages, seen := pagesOf(t), 0
	for page, text := range pages {
		for _, to := range linksOf(t, page, text) {
			seen++
			if _, err := os.Stat(filepath.Join(root, to[0])); err != nil {
				t.Errorf("%s: %s is not there", page, to[0])
			} else if to[1] != "" && !slices.Contains(headings(pages[to[0]]), to[1]) {
				t.Errorf("%s: %s has no heading #%s", page, to[0], to[1])
			}
		}
	}
	if seen < 100 {
		t.Errorf("only %d links found", seen)
	}
}

// Who begins at docs/README.md comes to every page of docs/.
func TestEveryPageIsReachedFromTheIndex(t *testing.T) {
	pages := pagesOf(t)
	const index = "docs/README.md"
	reached, next := map[string]bool{index: true}, []string{index}
	for len(next) > 0 {
		page := next[0]
		next = next[1:]
		for _, to := range linksOf(t, page, pages[page]) {
			if _, ok := pages[to[0]]; ok && !reached[to[0]] {
				reached[to[0]] = true
				next = append(next, to[0])
			}
		}
	}
	seen := 0
	for page := range pages {
		if strings.HasPrefix(page, "docs/") {
			seen++
			if !reached[page] {
				t.Errorf("no way of links leads from %s to %s", index, page)
			}
		}
	}
	if seen < 40 {
		t.Errorf("only %d pages found", seen)
	}
}

// A page that code, a script or a message names is there.
func TestPagesThatCodeNamesAreThere(t *testing.T) {
	seen := 0
	err := fs.WalkDir(os.DirFS(root), ".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && isBuilt(path):
			return fs.SkipDir
		case !d.Type().IsRegular():
			return nil
		}
		if info, err := d.Info(); err != nil || info.Size() > 1<<20 {
			return err
		}
		text, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			return err
		}
		for _, page := range named.FindAllString(string(text), -1) {
			seen++
			if _, err := os.Stat(filepath.Join(root, page)); err != nil {
				t.Errorf("%s names %s, which is not there", path, page)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if seen < 50 {
		t.Errorf("only %d pages are named", seen)
	}
}

// headings are a page's anchors, as they are usually made.
func headings(text string) (out []string) {
	drop := regexp.MustCompile(`[^\p{L}\p{N} _-]`)
	for line := range strings.Lines(text) {
		if title := strings.TrimLeft(line, "#"); title != line {
			title = strings.ToLower(strings.TrimSpace(title))
			out = append(out, strings.ReplaceAll(drop.ReplaceAllString(title, ""), " ", "-"))
		}
	}
	return out
}

// The list at the top of the how-tos has every chapter: a reader takes what is not in it for what there is not.
func TestTheListOfHowTosIsComplete(t *testing.T) {
	const page = "docs/guide/how-to.md"
	text := pagesOf(t)[page]
	list, _, _ := strings.Cut(text, "\n## ")
	chapters := regexp.MustCompile(`(?m)^## (.+)$`).FindAllStringSubmatch(text, -1)
	for _, c := range chapters {
		if anchor := headings("# " + c[1])[0]; !strings.Contains(list, "(#"+anchor+")") {
			t.Errorf("%s: the list lacks #%s", page, anchor)
		}
	}
	if len(chapters) < 20 {
		t.Errorf("only %d chapters found", len(chapters))
	}
}

// A file of a release that a page or a help names is one that a release has, by docs/design/release.md.
func TestFilesOfAReleaseHaveTheirNames(t *testing.T) {
	const list = "docs/design/release.md"
	named := regexp.MustCompile(`rivulet[-_](v[0-9]+\.[0-9]+\.[0-9]+|VERSION)[-_][A-Za-z0-9._-]*[A-Za-z0-9]`)
	version, arch := regexp.MustCompile(`v[0-9]+\.[0-9]+\.[0-9]+`), strings.NewReplacer("amd64", "ARCH", "arm64", "ARCH")
	plain := func(name string) string { return arch.Replace(version.ReplaceAllString(name, "VERSION")) }
	pages, seen := pagesOf(t), 0
	var has []string
	for _, name := range named.FindAllString(pages[list], -1) {
		has = append(has, plain(name))
	}
	for page, text := range pages {
		for _, name := range named.FindAllString(text, -1) {
			seen++
			if !slices.Contains(has, strings.TrimSuffix(plain(name), ".sig")) && !slices.Contains(has, strings.Replace(plain(name), ".sig", ".zst", 1)) {
				t.Errorf("%s: no release has %s; %s has the list", page, name, list)
			}
		}
	}
	if seen < 5 || len(has) < 4 {
		t.Errorf("only %d names found, %d of them in the list", seen, len(has))
	}
}

// Where releases are published, and where to report what must not be public, are variables of the Makefile. While one is
// empty, the pages that need it write its name in its place and that nothing is published; then they have the address.
func TestPagesSayWhereReleasesAre(t *testing.T) {
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	const none = "No release is published yet"
	for _, tc := range []struct {
		variable, before, after string
		pages                   []string
	}{
		{"RELEASES", "curl -fsSL ", "/install.sh | sudo sh", []string{"README.md", "docs/guide/quick-start.md"}},
		{"CONTACT", " to `", "`", []string{"SECURITY.md", "CODE_OF_CONDUCT.md"}},
	} {
		line := regexp.MustCompile(`(?m)^` + tc.variable + ` \?=(.*)$`).FindSubmatch(makefile)
		if line == nil {
			t.Fatalf("the Makefile has no line %s ?=", tc.variable)
		}
		at := strings.TrimSpace(string(line[1]))
		published := at != ""
		if !published {
			at = tc.variable
		}
		command := tc.before + at + tc.after
		for _, page := range tc.pages {
			text, err := os.ReadFile(filepath.Join(root, page))
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(string(text), command) {
				t.Errorf("%s does not say: %s", page, command)
			}
			if strings.Contains(string(text), none) == published {
				t.Errorf("%s: %s of the Makefile is %q; does the page say %q?", page, tc.variable, at, none)
			}
		}
	}
}

// A message names a page by the command that shows it: an installed device has no folder docs.
func TestMessagesNameNoFilesOfDocs(t *testing.T) {
	seen := 0
	for _, dir := range []string{"appliance", "cmd/rivulet", "fabric", "image/flash", "image/signed", "image/device", "offload", "systemd"} {
		err := fs.WalkDir(os.DirFS(root), dir, func(path string, d fs.DirEntry, err error) error {
			if path == "image/signed/sign" {
				return fs.SkipDir // it is for who has the tree, and writes links into a page
			}
			if err != nil || d.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
				return err
			}
			set := token.NewFileSet()
			file, err := parser.ParseFile(set, filepath.Join(root, path), nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				if text, ok := n.(*ast.BasicLit); ok && text.Kind == token.STRING {
					seen++
					if named.MatchString(text.Value) {
						t.Errorf("%s: a message names a file of docs; write: rivulet docs PAGE", set.Position(text.Pos()))
					}
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if seen < 1000 {
		t.Errorf("only %d strings found", seen)
	}
}
