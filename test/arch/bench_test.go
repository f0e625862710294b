package arch

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var benchHead = regexp.MustCompile(`(?m)^20\d\d-\d\d-\d\d .* · commit (\S+) · `)

// All files of bench/ that git knows are of one run of one commit, which is in the history.
func TestFiguresAreOfOneCommit(t *testing.T) {
	git := func(args ...string) (string, error) {
		out, err := exec.Command("git", append([]string{"-C", root}, args...)...).Output()
		return string(out), err
	}
	files, err := git("ls-files", "bench/*.md")
	if err != nil || files == "" {
		t.Fatalf("files %q, %v", files, err)
	}
	of := map[string][]string{}
	for _, f := range strings.Fields(files) {
		text, err := os.ReadFile(filepath.Join(root, f))
		if err != nil {
			t.Fatal(err)
		}
		commit := ""
		if m := benchHead.FindSubmatch(text); m != nil {
			commit = string(m[1])
		}
		of[commit] = append(of[commit], filepath.Base(f))
	}
	if len(of) != 1 {
		t.Fatalf("figures of several commits, by commit: %v; run make bench", of)
	}
	if of[""] != nil {
		t.Skip("no file names its commit: they are of before make bench wrote it")
	}
	if shallow, err := git("rev-parse", "--is-shallow-repository"); err != nil || shallow != "false\n" {
		t.Skip("no history to look the commit up in: a shallow clone")
	}
	for commit := range of {
		if _, err := git("merge-base", "--is-ancestor", commit, "HEAD"); err != nil {
			t.Errorf("commit %s of the figures is not in the history: %v; run make bench on a tree that is committed", commit, err)
		}
	}
}
