package arch

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// constants are those of one package, read from its source.
type constants struct {
	folder string
	values map[string]ast.Expr
	// said is the comment of each, of one line.
	said map[string]string
}

// constantsOf reads a package's constants; tests are left out.
func constantsOf(t *testing.T, folder string) constants {
	t.Helper()
	c := constants{folder: folder, values: map[string]ast.Expr{}, said: map[string]string{}}
	files, err := filepath.Glob(filepath.Join(root, folder, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			gen, ok := d.(*ast.GenDecl)
			if !ok || gen.Tok != token.CONST {
				continue
			}
			said := ""
			for _, s := range gen.Specs {
				spec := s.(*ast.ValueSpec)
				switch {
				case spec.Doc != nil:
					said = spec.Doc.Text()
				case spec.Comment != nil:
					said = spec.Comment.Text()
				case !gen.Lparen.IsValid() && gen.Doc != nil:
					said = gen.Doc.Text()
				}
				for i, name := range spec.Names {
					if i < len(spec.Values) {
						c.values[name.Name], c.said[name.Name] = spec.Values[i], strings.Join(strings.Fields(said), " ")
					}
				}
			}
		}
	}
	return c
}

// value computes a constant; ok is false where it is none, or of another package.
func (c constants) value(e ast.Expr) (v constant.Value, isDuration, ok bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		v = constant.MakeFromLiteral(e.Value, e.Kind, 0)
		return v, false, v.Kind() != constant.Unknown
	case *ast.ParenExpr:
		return c.value(e.X)
	case *ast.Ident:
		if next, ok := c.values[e.Name]; ok && next != ast.Expr(e) {
			return c.value(next)
		}
	case *ast.CallExpr: // a conversion
		if len(e.Args) == 1 {
			return c.value(e.Args[0])
		}
	case *ast.SelectorExpr:
		unit, ok := map[string]time.Duration{"Millisecond": time.Millisecond, "Second": time.Second, "Minute": time.Minute, "Hour": time.Hour}[e.Sel.Name]
		return constant.MakeInt64(int64(unit)), true, ok
	case *ast.BinaryExpr:
		x, dx, okx := c.value(e.X)
		y, dy, oky := c.value(e.Y)
		if !okx || !oky {
			return nil, false, false
		}
		if e.Op == token.SHL {
			n, _ := constant.Uint64Val(y)
			return constant.Shift(x, token.SHL, uint(n)), dx, true
		}
		return constant.BinaryOp(x, e.Op, y), dx || dy, true
	}
	return nil, false, false
}

// text is a constant for people: 64 KiB, 10m0s, 32.
func (c constants) text(t *testing.T, name string, bytes bool) string {
	t.Helper()
	e, there := c.values[name]
	if !there {
		t.Errorf("%s has no constant %s any more: follow it in test/arch/reference_test.go", c.folder, name)
		return ""
	}
	v, isDuration, ok := c.value(e)
	if !ok {
		t.Errorf("%s.%s: its value cannot be computed from this package alone", c.folder, name)
		return ""
	}
	if v.Kind() == constant.String {
		return constant.StringVal(v)
	}
	n, _ := constant.Int64Val(constant.ToInt(v))
	switch {
	case isDuration:
		return strings.Replace(strings.Replace(time.Duration(n).String(), "m0s", "m", 1), "h0m", "h", 1)
	case bytes:
		for _, unit := range []struct {
			shift int
			name  string
		}{{30, "GiB"}, {20, "MiB"}, {10, "KiB"}} {
			if n >= 1<<unit.shift && n%(1<<unit.shift) == 0 {
				return fmt.Sprintf("%d %s", n>>unit.shift, unit.name)
			}
		}
		return fmt.Sprintf("%d bytes", n)
	}
	return fmt.Sprint(n)
}

// packagesOf are the folders below some that have Go files.
func packagesOf(t *testing.T, below ...string) (out []string) {
	t.Helper()
	for _, top := range below {
		err := filepath.WalkDir(filepath.Join(root, top), func(path string, d os.DirEntry, err error) error {
			if err != nil || !d.IsDir() {
				return err
			}
			if d.Name() == "testdata" {
				return filepath.SkipDir
			}
			if files, _ := filepath.Glob(filepath.Join(path, "*.go")); len(files) > 0 {
				rel, err := filepath.Rel(root, path)
				out = append(out, rel)
				return err
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return out
}
