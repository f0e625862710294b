package arch

import (
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var link = regexp.MustCompile(`\]\(([^)\s]+)\)`)

// The README's table names every page of docs/ once.
func TestEveryPageIsInTheReadme(t *testing.T) {
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, ok := strings.Cut(string(text), "## Where things are")
	if !ok {
		t.Fatal("README.md has no table of pages")
	}
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(pages) < 30 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	for _, p := range pages {
		if name := "docs/" + filepath.Base(p); strings.Count(table, "]("+name+")") != 1 {
			t.Errorf("README.md names %s %d times below \"Where things are\", want once", name, strings.Count(table, "]("+name+")"))
		}
	}
}

// What a page links to is there, headings too.
func TestLinksOfPagesLeadSomewhere(t *testing.T) {
	pages := []string{"../../README.md"}
	for _, dir := range []string{"docs", "bench"} {
		some, err := filepath.Glob("../../" + dir + "/*.md")
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, some...)
	}
	seen := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			to, err := url.Parse(m[1])
			if err != nil || to.IsAbs() {
				continue
			}
			seen++
			file := page
			if to.Path != "" {
				file = filepath.Join(filepath.Dir(page), to.Path)
			}
			there, err := os.ReadFile(file)
			if fi, statErr := os.Stat(file); statErr == nil && fi.IsDir() {
				continue
			} else if err != nil {
				t.Errorf("%s: %s is not there", page, m[1])
				continue
			}
			if to.Fragment != "" && !slices.Contains(headings(string(there)), to.Fragment) {
				t.Errorf("%s: %s has no heading #%s", page, filepath.Base(file), to.Fragment)
			}
		}
	}
	if seen < 100 {
		t.Errorf("only %d links found", seen)
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
