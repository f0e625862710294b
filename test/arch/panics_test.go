package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"rivulet/test/harness/tree"
)

// A goroutine that works for one target ends only that target's part when it panics: it catches the panic itself, by one
// of these, the last three of which do it for the functions that they are given.
var catches = []string{"panics.To", "panics.Call", ".Keep", "together", "watch.Work"}

// close of a twin waits for goroutines, and does nothing else.
var harmless = []string{"t.close"}

func TestGoroutinesOfTargetsCatchPanics(t *testing.T) {
	found := 0
	for _, dir := range []string{"offload/consumer", "offload/target"} {
		err := filepath.WalkDir(filepath.Join(tree.Path(), dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			files := token.NewFileSet()
			file, err := parser.ParseFile(files, path, nil, 0)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				var started ast.Expr
				switch n := n.(type) {
				case *ast.GoStmt:
					started = n.Call.Fun
				case *ast.CallExpr:
					if s, ok := n.Fun.(*ast.SelectorExpr); ok && s.Sel.Name == "Go" && len(n.Args) == 1 {
						started = n.Args[0]
					}
				}
				if started == nil {
					return true
				}
				found++
				if !caught(started) && !slices.Contains(harmless, name(started)) {
					t.Errorf("%s: a panic of this goroutine ends the process: begin it with defer panics.To(…)", files.Position(started.Pos()))
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if found < 30 {
		t.Errorf("only %d goroutines were found", found)
	}
}

// caught reports whether the function that is started begins with, or only calls, what catches panics.
func caught(started ast.Expr) bool {
	f, ok := started.(*ast.FuncLit)
	if !ok {
		return false
	}
	for _, s := range f.Body.List {
		yes := false
		ast.Inspect(s, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				of := name(call.Fun)
				yes = yes || slices.ContainsFunc(catches, func(c string) bool { return of == c || strings.HasPrefix(c, ".") && strings.HasSuffix(of, c) })
			}
			return !yes
		})
		if yes {
			return true
		}
		if _, deferred := s.(*ast.DeferStmt); !deferred { // what comes before may panic
			return false
		}
	}
	return false
}

// name is that of a function, as it is written.
func name(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return name(e.X) + "." + e.Sel.Name
	}
	return ""
}
