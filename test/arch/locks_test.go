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

// asksAnInformer are the methods of client-go that take the lock of an informer's queue. The
// informer holds it while it calls handlers, and a handler that waits for a lock of ours then
// waits for who asks.
var asksAnInformer = map[string]bool{"HasSynced": true, "WaitForCacheSync": true, "AddEventHandler": true, "AddEventHandlerWithOptions": true,
	"AddEventHandlerWithResyncPeriod": true, "RemoveEventHandler": true, "AddIndexers": true, "LastSyncResourceVersion": true}

// No lock of ours is held across a call that takes an informer's lock, by whatever functions of the
// package it goes.
func TestNoLockIsHeldWhileAnInformerIsAsked(t *testing.T) {
	packages := map[string][]*ast.FuncDecl{}
	fset := token.NewFileSet()
	for _, top := range []string{"appliance", "fabric", "offload", "cmd"} {
		err := filepath.WalkDir(tree.Path(top), func(path string, _ os.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			f, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			packages[filepath.Dir(path)] = append(packages[filepath.Dir(path)], functions(f)...)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(packages) < 50 {
		t.Fatalf("%d packages", len(packages))
	}
	for _, all := range packages {
		for _, c := range underLock(all) {
			t.Errorf("%s: %s is called with a lock held, and takes that of an informer: ask before, or after", fset.Position(c.Pos()), called(c))
		}
	}
}

// Each way to hold a lock is found, and none that does not.
func TestUnderLock(t *testing.T) {
	const head = "package x\nfunc (x *t) ready() bool { return x.informer.HasSynced() }\nfunc (x *t) all() bool { return x.ready() }\nfunc (x *t) quiet() {}\n"
	for body, want := range map[string]int{
		"x.mu.Lock(); defer x.mu.Unlock(); x.informer.HasSynced()":                              1,
		"x.mu.RLock(); ok := x.all(); x.mu.RUnlock(); _ = ok":                                   1,
		"x.mu.Lock(); if x.ready() { x.mu.Unlock(); return }; x.mu.Unlock()":                    1,
		"x.mu.Lock(); if x.done { x.mu.Unlock(); return }; x.all(); x.mu.Unlock()":              1,
		"x.mu.Lock(); for { switch { case x.ready(): } }":                                       1,
		"x.mu.Lock(); func() { x.ready() }(); x.mu.Unlock()":                                    1,
		"if x.ready() { x.mu.Lock(); defer x.mu.Unlock(); x.quiet() }":                          0,
		"x.mu.Lock(); x.quiet(); x.mu.Unlock(); x.ready()":                                      0,
		"x.mu.Lock(); defer x.mu.Unlock(); go func() { x.ready() }(); x.f = func() { x.all() }": 0,
	} {
		f, err := parser.ParseFile(token.NewFileSet(), "x.go", head+"func (x *t) f() { "+body+" }", parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		if got := underLock(functions(f)); len(got) != want {
			t.Errorf("%s: %d calls under a lock, want %d", body, len(got), want)
		}
	}
}

func functions(f *ast.File) (out []*ast.FuncDecl) {
	for _, d := range f.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Body != nil {
			out = append(out, fn)
		}
	}
	return out
}

// called is the name of what is called, without what it is called on: without types, all of a
// package's functions of that name count.
func called(c *ast.CallExpr) string {
	switch f := c.Fun.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		return f.Sel.Name
	}
	return ""
}

// underLock lists the calls by which functions of a package ask an informer with a lock held.
func underLock(all []*ast.FuncDecl) (out []*ast.CallExpr) {
	asks := map[string]bool{}
	for name := range asksAnInformer {
		asks[name] = true
	}
	for grown := true; grown; {
		grown = false
		for _, fn := range all {
			if asks[fn.Name.Name] {
				continue
			}
			calls(fn.Body, func(c *ast.CallExpr) {
				if name := called(c); asks[name] && !asks[fn.Name.Name] {
					asks[fn.Name.Name], grown = true, true
				}
			})
		}
	}
	for _, fn := range all {
		w := &lockWalk{asks: asks}
		w.block(fn.Body.List, false)
		out = append(out, w.found...)
	}
	return out
}

// calls shows what n calls itself: not what a goroutine or a function that is kept for later does.
func calls(n ast.Node, see func(*ast.CallExpr)) {
	ast.Inspect(n, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt, *ast.FuncLit:
			return false
		case *ast.CallExpr:
			see(n)
			if lit, ok := n.Fun.(*ast.FuncLit); ok { // called at once
				calls(lit.Body, see)
			}
		}
		return true
	})
}

type lockWalk struct {
	asks  map[string]bool
	found []*ast.CallExpr
}

// block walks statements in their order and returns whether a lock is held behind them.
func (w *lockWalk) block(list []ast.Stmt, held bool) bool {
	for _, s := range list {
		held = w.statement(s, held)
	}
	return held
}

func (w *lockWalk) statement(s ast.Stmt, held bool) bool {
	switch s := s.(type) {
	case *ast.ExprStmt:
		if c, ok := s.X.(*ast.CallExpr); ok && len(c.Args) == 0 {
			switch called(c) {
			case "Lock", "RLock":
				return true
			case "Unlock", "RUnlock":
				return false
			}
		}
		w.look(s, held)
	case *ast.BlockStmt:
		return w.block(s.List, held)
	case *ast.LabeledStmt:
		return w.statement(s.Stmt, held)
	case *ast.IfStmt:
		w.look(s.Init, held)
		w.look(s.Cond, held)
		after := w.block(s.Body.List, held)
		if ends(s.Body.List) {
			after = held
		}
		if s.Else != nil {
			w.statement(s.Else, held)
		}
		return after
	case *ast.ForStmt:
		w.look(s.Init, held)
		w.look(s.Cond, held)
		w.look(s.Post, held)
		return w.block(s.Body.List, held)
	case *ast.RangeStmt:
		w.look(s.X, held)
		return w.block(s.Body.List, held)
	case *ast.SwitchStmt:
		w.look(s.Init, held)
		w.look(s.Tag, held)
		w.clauses(s.Body, held)
	case *ast.TypeSwitchStmt:
		w.clauses(s.Body, held)
	case *ast.SelectStmt:
		w.clauses(s.Body, held)
	case *ast.DeferStmt: // what runs at the end is not looked at: locks are, by then, in any state
	default:
		w.look(s, held)
	}
	return held
}

func (w *lockWalk) clauses(b *ast.BlockStmt, held bool) {
	for _, c := range b.List {
		switch c := c.(type) {
		case *ast.CaseClause:
			for _, e := range c.List {
				w.look(e, held)
			}
			w.block(c.Body, held)
		case *ast.CommClause:
			w.block(c.Body, held)
		}
	}
}

func (w *lockWalk) look(n ast.Node, held bool) {
	if !held || n == nil {
		return
	}
	calls(n, func(c *ast.CallExpr) {
		if w.asks[called(c)] {
			w.found = append(w.found, c)
		}
	})
}

// ends reports whether nothing follows the statements.
func ends(list []ast.Stmt) bool {
	if len(list) == 0 {
		return false
	}
	switch last := list[len(list)-1].(type) {
	case *ast.ReturnStmt, *ast.BranchStmt:
		return true
	case *ast.ExprStmt:
		c, ok := last.X.(*ast.CallExpr)
		return ok && called(c) == "panic"
	}
	return false
}
