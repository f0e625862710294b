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

// Every HTTP server of the product has the bounds of a listener: package httpserver makes it.
func TestServersAreBounded(t *testing.T) {
	made := 0
	for _, top := range []string{"appliance", "fabric", "offload", "cmd", "image", "systemd"} {
		err := filepath.WalkDir(tree.Path(top), func(path string, _ os.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.HasSuffix(path, "fabric/httpserver/httpserver.go") {
				return err
			}
			files := token.NewFileSet()
			file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				s, ok := n.(*ast.SelectorExpr)
				if !ok {
					return true
				}
				x, _ := s.X.(*ast.Ident)
				switch {
				case x == nil:
				case x.Name == "httpserver" && s.Sel.Name == "New":
					made++
				case x.Name == "http" && (s.Sel.Name == "ListenAndServe" || s.Sel.Name == "ListenAndServeTLS" || s.Sel.Name == "Serve" || s.Sel.Name == "ServeTLS"):
					t.Errorf("%s: a server without bounds; make it with httpserver.New", files.Position(n.Pos()))
				}
				return true
			})
			ast.Inspect(file, func(n ast.Node) bool {
				if l, ok := n.(*ast.CompositeLit); ok && isServer(l.Type) {
					t.Errorf("%s: a server without bounds; make it with httpserver.New", files.Position(n.Pos()))
				}
				if c, ok := n.(*ast.CallExpr); ok && len(c.Args) == 1 && isServer(c.Args[0]) {
					t.Errorf("%s: a server without bounds; make it with httpserver.New", files.Position(n.Pos()))
				}
				v, _ := n.(*ast.ValueSpec)
				f, _ := n.(*ast.Field)
				if v != nil && isServer(v.Type) || f != nil && isServer(f.Type) {
					t.Errorf("%s: a server without bounds; make it with httpserver.New", files.Position(n.Pos()))
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if made < 14 {
		t.Errorf("%d servers are made with httpserver.New", made)
	}
}

// isServer reports whether an expression is the type http.Server.
func isServer(e ast.Expr) bool {
	s, ok := e.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	x, ok := s.X.(*ast.Ident)
	return ok && x.Name == "http" && s.Sel.Name == "Server"
}
