package pods

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"rivulet/test/harness/tree"
)

func TestWords(t *testing.T) {
	for text, want := range map[string]string{
		"offload: this pod cannot run on another cluster because of spec.hostNetwork (the host's network is home's); remove the field, or keep the pod at home with the label rivulet.dev/offload=off in its template": "offload: this pod cannot run in a virtual cluster because of spec.hostNetwork (the host's network is the host's); remove the field",
		"the data of claim root are elsewhere (volume root); move them: rivulet move volume lab/root PEER":                                                                                                             "the data of claim root are elsewhere (volume root); the owner of this virtual cluster's device can help",
		"host: no room for 2Gi; ask for less, or move the data: rivulet move volume lab/data home":                                                                                                                     "host: no room for 2Gi; ask for less",
		`pods "x" is forbidden: exceeded quota: rivulet, requested: requests.cpu=2,pods=1, used: pods=3`:                                                                                                               "the course is full: it requests 2 cpu, 1 pods, and the virtual clusters of this device have that much no more; delete what is not needed, or wait until others do",
		`persistentvolumeclaims "big" is forbidden: exceeded quota: rivulet, requested: requests.storage=64Mi, used: requests.storage=0, limited: requests.storage=32Mi`:                                               "exceeded quota: it requests 64Mi of storage, and the quota of this virtual cluster has that much no more; delete claims that are not needed, or have its owner raise the quota",
		"pulling the image": "pulling the image",
	} {
		got := words(text)
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
		if again := words(got); again != got {
			t.Errorf("its own result %q becomes %q", got, again)
		}
	}
}

// No cure of the packages that speak to users inside names what only the owner of the host can do.
func TestNoCureIsTheOwners(t *testing.T) {
	checked := 0
	for _, dir := range []string{"pod", "volume", "reflect", "stream"} {
		files, err := filepath.Glob(tree.Path("offload", "consumer", dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			p, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(p, func(n ast.Node) bool {
				if _, ok := n.(*ast.ImportSpec); ok {
					return false
				}
				l, ok := n.(*ast.BasicLit)
				if !ok || l.Kind != token.STRING {
					return true
				}
				text, err := strconv.Unquote(l.Value)
				_, cure, has := strings.Cut(text, "; ")
				if err != nil || !has || !elsewhere.MatchString(cure) {
					return true
				}
				checked++
				if _, after, _ := strings.Cut(words(text), "; "); elsewhere.MatchString(after) {
					t.Errorf("%q becomes %q", text, words(text))
				}
				return true
			})
		}
	}
	if checked < 10 {
		t.Errorf("%d cures were looked at", checked)
	}
}
