package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
	"unicode"

	"rivulet/test/harness/tree"
)

// plainWords are first words of names that stand for a term of the field, which is to be used instead.
var plainWords = map[string]string{
	"judge": "evaluate, verify", "tell": "report, send, notify", "told": "reported, sent", "ask": "query, request", "asked": "queried, requested",
	"look": "check, poll", "looks": "checks", "hear": "receive, listen", "heard": "received", "said": "reported, sent", "knock": "request", "knocked": "requested",
	"mend": "repair", "crowd": "group", "keeper": "controller, or what it keeps", "carry": "relay, transfer, forward", "carried": "relayed, transferred",
	"wish": "request", "misfit": "mismatch", "retirement": "garbage collection", "footprint": "usage", "lens": "rewriting transport",
}

// plain are the folders whose names are held to that. Parameters and variables of functions are not, nor is what the
// wire and stored files have.
var plain = []string{"appliance", "cmd", "fabric", "image", "offload", "systemd"}

// Functions, types, fields and constants are called what the field calls them.
func TestNamesAreTermsOfTheField(t *testing.T) {
	seen := 0
	for _, root := range plain {
		err := filepath.WalkDir(filepath.Join(tree.Path(), root), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			fset := token.NewFileSet()
			file, err := parser.ParseFile(fset, path, nil, 0)
			if err != nil {
				return err
			}
			check := func(id *ast.Ident, tag *ast.BasicLit) {
				seen++
				if instead := plainWords[firstWord(id.Name)]; instead != "" && tag == nil {
					t.Errorf("%s: %s: say %s", fset.Position(id.Pos()), id.Name, instead)
				}
			}
			for _, decl := range file.Decls {
				switch decl := decl.(type) {
				case *ast.FuncDecl:
					check(decl.Name, nil)
				case *ast.GenDecl:
					ast.Inspect(decl, func(n ast.Node) bool {
						switch n := n.(type) {
						case *ast.TypeSpec:
							check(n.Name, nil)
						case *ast.ValueSpec:
							for _, id := range n.Names {
								check(id, nil)
							}
						case *ast.StructType:
							for _, f := range n.Fields.List {
								for _, id := range f.Names {
									check(id, f.Tag)
								}
							}
						case *ast.FuncLit, *ast.FuncType:
							return false
						}
						return true
					})
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if seen < 1000 {
		t.Errorf("%d names were read: this test reads nothing", seen)
	}
}

// firstWord is the first word of a name in camel case, in lower case.
func firstWord(name string) string {
	end := strings.IndexFunc(name[1:], unicode.IsUpper)
	if end < 0 {
		return strings.ToLower(name)
	}
	return strings.ToLower(name[:end+1])
}
