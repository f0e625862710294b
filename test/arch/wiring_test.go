package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// mostWired is how many fields of function type may be set in one place of the product, or in none. It only comes
// down: who calls whom is plain where a field has the callee's type, or a small interface that the callee owns.
const mostWired = 266

// A field of function type that one place sets hides a neighbour: its reader sees a call, and searches for the one
// function behind the call. Clocks are not counted, as tests set them.
func TestFunctionsAreNotWiredInOnePlace(t *testing.T) {
	once := readFunctionFields(t).once()
	switch {
	case len(once) > mostWired:
		t.Errorf("%d fields of function type are set in one place, more than %d: give the new ones the type of what they call, or an interface:\n%s",
			len(once), mostWired, strings.Join(once, "\n"))
	case len(once) < mostWired:
		t.Errorf("%d fields of function type are set in one place: lower mostWired from %d, so that it stays so", len(once), mostWired)
	}
}

// functionFields are the fields of function type of all structs, and how many places set each.
type functionFields struct {
	files *token.FileSet
	names map[*types.Var]string // folder, type and field
	set   map[*types.Var]int
}

func newFunctionFields() *functionFields {
	return &functionFields{files: token.NewFileSet(), names: map[*types.Var]string{}, set: map[*types.Var]int{}}
}

// once returns the names of the fields that one place sets, or none.
func (f *functionFields) once() (names []string) {
	for field, name := range f.names {
		if f.set[field] <= 1 {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// What counts as a place: a literal with names or without, of a pointer or a generic type too, and an assignment.
func TestPlacesThatSetAFunctionAreCounted(t *testing.T) {
	f := newFunctionFields()
	file, err := parser.ParseFile(f.files, "a.go", `package a
		import ("elsewhere"; "time")
		type F func()
		type S struct { Once func(); Named F; Never, Twice, Literals func(); Now func() time.Time; Text string }
		type P struct { First, Second func() }
		type G[T any] struct { Do func(T) }
		func g() {
			s := S{Once: g, Named: g, Twice: g, Text: elsewhere.Text}
			s.Twice = g
			_ = []*S{{Literals: g}, {Literals: g}}
			_, _ = P{g, g}, P{Second: g}
			_, _ = G[int]{Do: nil}, G[string]{Do: nil}
		}`, 0)
	if err != nil {
		t.Fatal(err)
	}
	foreign := func(path string) (*types.Package, error) {
		p := types.NewPackage(path, path)
		p.MarkComplete()
		return p, nil
	}
	f.check("rivulet/a", []*ast.File{file}, foreign)
	if got := strings.Join(f.once(), " "); got != "a.P.First a.S.Named a.S.Never a.S.Once" {
		t.Errorf("set in one place: %s", got)
	}
}

// readFunctionFields type-checks the packages of this module alone, from their sources. What other modules declare
// is unknown then, which leaves the types of this module whole.
func readFunctionFields(t *testing.T) *functionFields {
	t.Helper()
	f := newFunctionFields()
	ours, checked := map[string]pkg{}, map[string]*types.Package{}
	for _, p := range list(t) {
		ours[p.ImportPath] = p
	}
	var check func(string) (*types.Package, error)
	check = func(path string) (*types.Package, error) {
		if p := checked[path]; p != nil {
			return p, nil
		}
		p, isOurs := ours[path]
		if !isOurs {
			foreign := types.NewPackage(path, path[strings.LastIndexByte(path, '/')+1:])
			foreign.MarkComplete()
			checked[path] = foreign
			return foreign, nil
		}
		var files []*ast.File
		for _, name := range p.GoFiles {
			file, err := parser.ParseFile(f.files, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
			if err != nil {
				return nil, err
			}
			files = append(files, file)
		}
		checked[path] = f.check(path, files, check)
		return checked[path], nil
	}
	for path := range ours {
		if _, err := check(path); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

// check type-checks a package and notes what its files declare and set.
func (f *functionFields) check(path string, files []*ast.File, imports importerFunc) *types.Package {
	info := &types.Info{
		Defs: map[*ast.Ident]types.Object{}, Uses: map[*ast.Ident]types.Object{},
		Types: map[ast.Expr]types.TypeAndValue{}, Selections: map[*ast.SelectorExpr]*types.Selection{},
	}
	config := types.Config{Importer: imports, Error: func(error) {}, FakeImportC: true}
	checked, _ := config.Check(path, f.files, files, info)
	for _, file := range files {
		ast.Inspect(file, func(n ast.Node) bool {
			f.read(n, path, info)
			return true
		})
	}
	return checked
}

type importerFunc func(path string) (*types.Package, error)

func (f importerFunc) Import(path string) (*types.Package, error) { return f(path) }

// read notes what one node declares or sets.
func (f *functionFields) read(n ast.Node, path string, info *types.Info) {
	switch n := n.(type) {
	case *ast.TypeSpec:
		if s, isStruct := n.Type.(*ast.StructType); isStruct {
			f.declare(strings.TrimPrefix(path, "rivulet/")+"."+n.Name.Name, s, info)
		}
	case *ast.CompositeLit:
		s := structOf(info.Types[n].Type)
		for i, e := range n.Elts {
			if kv, isKeyed := e.(*ast.KeyValueExpr); isKeyed {
				if key, isName := kv.Key.(*ast.Ident); isName && s != nil {
					f.sets(info.Uses[key])
				}
			} else if s != nil && i < s.NumFields() {
				f.sets(s.Field(i))
			}
		}
	case *ast.AssignStmt:
		for _, left := range n.Lhs {
			if field, isField := left.(*ast.SelectorExpr); isField && info.Selections[field] != nil {
				f.sets(info.Selections[field].Obj())
			}
		}
	}
}

func (f *functionFields) declare(name string, s *ast.StructType, info *types.Info) {
	for _, list := range s.Fields.List {
		for _, id := range list.Names {
			field, isVar := info.Defs[id].(*types.Var)
			if !isVar {
				continue
			}
			if _, isFunc := field.Type().Underlying().(*types.Signature); isFunc && !isClock(list.Type) {
				f.names[field] = name + "." + id.Name
			}
		}
	}
}

func (f *functionFields) sets(o types.Object) {
	if field, isVar := o.(*types.Var); isVar {
		f.set[field.Origin()]++
	}
}

func structOf(t types.Type) *types.Struct {
	if t == nil {
		return nil
	}
	if p, isPointer := t.Underlying().(*types.Pointer); isPointer {
		t = p.Elem()
	}
	s, _ := t.Underlying().(*types.Struct)
	return s
}

// isClock reports whether a function returns a time or a duration.
func isClock(e ast.Expr) bool {
	f, isFunc := e.(*ast.FuncType)
	if !isFunc || f.Results == nil || len(f.Results.List) != 1 {
		return false
	}
	result, isSelector := f.Results.List[0].Type.(*ast.SelectorExpr)
	if !isSelector {
		return false
	}
	of, isName := result.X.(*ast.Ident)
	return isName && of.Name == "time"
}
