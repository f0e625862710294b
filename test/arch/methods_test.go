package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"rivulet/test/harness/tree"
)

// mostMethods is the bound for the methods of one type: a type with more holds several things.
const mostMethods = 44

// manyMethods are types with more, and how many they may have. A type whose number has come down leaves the list.
var manyMethods = map[string]int{
	"appliance.System":                 53,
	"appliance/vcluster.cluster":       55,
	"fabric/peering.Machine":           56, // events, and one method for each fact that is read
	"offload/consumer/explain.Facts":   65,
	"offload/consumer/pod.Controller":  58,
	"offload/provider/tenancy.Tenancy": 85,
}

func TestTypesHaveFewMethods(t *testing.T) {
	of := map[string]int{} // folder and type
	for _, top := range []string{"appliance", "fabric", "offload", "image", "cmd"} {
		err := filepath.WalkDir(tree.Path(top), func(path string, _ os.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			folder, err := filepath.Rel(tree.Path("."), filepath.Dir(path))
			for _, name := range receivers(f) {
				of[filepath.ToSlash(folder)+"."+name]++
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if of["fabric.Fabric"] < 10 || of["fabric.setting"] < 2 {
		t.Fatalf("%d methods of Fabric, %d of a generic type: the count is wrong", of["fabric.Fabric"], of["fabric.setting"])
	}
	for name, n := range of {
		if may, listed := manyMethods[name]; n > max(mostMethods, may) {
			t.Errorf("%s has %d methods, more than %d: make types of its parts", name, n, max(mostMethods, may))
		} else if listed && n <= mostMethods {
			t.Errorf("%s has %d methods: remove it from the list", name, n)
		}
	}
	for name := range manyMethods {
		if of[name] == 0 {
			t.Errorf("there is no %s", name)
		}
	}
}

// receivers are the names of the types of the methods in f, once for each method.
func receivers(f *ast.File) (out []string) {
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Recv == nil {
			continue
		}
		t := fn.Recv.List[0].Type
		if star, ok := t.(*ast.StarExpr); ok {
			t = star.X
		}
		switch g := t.(type) {
		case *ast.IndexExpr:
			t = g.X
		case *ast.IndexListExpr:
			t = g.X
		}
		if name, ok := t.(*ast.Ident); ok {
			out = append(out, name.Name)
		}
	}
	return out
}
