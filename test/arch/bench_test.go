package arch

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
)

var benchHead = regexp.MustCompile(`(?m)^20\d\d-\d\d-\d\d .* · commit (\S+) · `)

// All files of bench/ are of one run of one commit, which is in the history.
func TestFiguresAreOfOneCommit(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(root, "bench", "*.md"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	of := map[string][]string{}
	for _, f := range files {
		text, err := os.ReadFile(f)
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
	git := func(args ...string) (string, error) {
		out, err := exec.Command("git", append([]string{"-C", root}, args...)...).Output()
		return string(out), err
	}
	if shallow, err := git("rev-parse", "--is-shallow-repository"); err != nil || shallow != "false\n" {
		t.Log("no history to look the commit up in")
		return
	}
	for commit := range of {
		if _, err := git("merge-base", "--is-ancestor", commit, "HEAD"); err != nil {
			t.Errorf("commit %s of the figures is not in the history: %v; run make bench on a tree that is committed", commit, err)
		}
	}
}
