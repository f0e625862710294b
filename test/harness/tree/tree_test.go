package tree

import (
	"os"
	"path/filepath"
	"testing"
)

func TestPathIsTheSameWhereverItIsAsked(t *testing.T) {
	before := Path("go.mod")
	if _, err := os.Stat(before); err != nil || !filepath.IsAbs(before) {
		t.Fatalf("%s: %v", before, err)
	}
	t.Chdir(t.TempDir())
	if after := Path("go.mod"); after != before {
		t.Errorf("%s from one folder, %s from another", before, after)
	}
}
