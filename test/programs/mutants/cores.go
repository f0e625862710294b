package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// cores are the packages whose decisions are pure, so that their own short tests have to notice a wrong operator.
var cores = []string{
	"appliance/config", "appliance/lifetime/nodes/lease", "appliance/lifetime/upgrade", "appliance/network/users", "appliance/state/archive",
	"fabric/connlimit", "fabric/ipam", "fabric/keyring", "fabric/pairing", "fabric/peer", "fabric/peering", "fabric/translate", "fabric/trust",
	"fabric/tunnel/paths", "image/signed", "offload/consumer/fit", "offload/offer", "offload/policy", "offload/replacement",
}

// wrong is what an operator becomes.
var wrong = map[token.Token]token.Token{
	token.EQL: token.NEQ, token.NEQ: token.EQL, token.LAND: token.LOR, token.LOR: token.LAND,
	token.LSS: token.LEQ, token.LEQ: token.LSS, token.GTR: token.GEQ, token.GEQ: token.GTR,
	token.ADD: token.SUB, token.SUB: token.ADD, token.NOT: token.ILLEGAL, // is dropped
}

// functions are what operators become calls of. The one whose number the environment gives is wrong; none is with 0.
const functions = `package %s

import (
	"cmp"
	"os"
	"strconv"
)

var wrongOperator, _ = strconv.Atoi(os.Getenv("` + numberEnv + `"))

func op(n int) bool { return n == wrongOperator }
func opNot(n int, x bool) bool { return !x != op(n) }
func opAnd(n int, x bool, y func() bool) bool { if op(n) { return x || y() }; return x && y() }
func opOr(n int, x bool, y func() bool) bool { if op(n) { return x && y() }; return x || y() }
func opLess[T cmp.Ordered](n int, x, y T) bool { return x < y || op(n) && x == y }
func opMore[T cmp.Ordered](n int, x, y T) bool { return x > y || op(n) && x == y }
func opUpTo[T cmp.Ordered](n int, x, y T) bool { return x < y || !op(n) && x == y }
func opFrom[T cmp.Ordered](n int, x, y T) bool { return x > y || !op(n) && x == y }
func opPlus[T ~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint | ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~float32 | ~float64](n int, x, y T) T { if op(n) { return x - y }; return x + y }
func opMinus[T ~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint | ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~float32 | ~float64](n int, x, y T) T { if op(n) { return x + y }; return x - y }
`

const numberEnv = "RIVULET_WRONG_OPERATOR"

var call = map[token.Token]string{
	token.LAND: "opAnd", token.LOR: "opOr", token.LSS: "opLess", token.GTR: "opMore", token.LEQ: "opUpTo", token.GEQ: "opFrom",
	token.ADD: "opPlus", token.SUB: "opMinus", token.NOT: "opNot",
}

// operator is one of a file that can be made wrong.
type operator struct {
	folder string // below the root
	at     string // file:line:column
	was    token.Token
}

func (o operator) String() string {
	to := wrong[o.was].String()
	if o.was == token.NOT {
		to = "nothing"
	}
	return fmt.Sprintf("%s: %s becomes %s", filepath.Join(o.folder, o.at), o.was, to)
}

// rewriter makes the operators of a package calls of functions.
type rewriter struct {
	fset *token.FileSet
	text []byte
	base int             // of the file in fset
	left map[string]bool // operators that stay as they are, by place
	all  []operator      // those that are calls, in the order of their numbers
	from string          // the folder
}

// token returns what can be made wrong at n itself.
func (r *rewriter) token(n ast.Node) (op token.Token, at token.Pos) {
	switch n := n.(type) {
	case *ast.BinaryExpr:
		op, at = n.Op, n.OpPos
		if constant(n.X) && constant(n.Y) || isText(n.X) || isText(n.Y) {
			return token.ILLEGAL, at
		}
	case *ast.UnaryExpr:
		op, at = n.Op, n.OpPos
	}
	if _, known := wrong[op]; !known || r.left[r.place(at)] {
		return token.ILLEGAL, at
	}
	return op, at
}

func (r *rewriter) place(at token.Pos) string {
	p := r.fset.Position(at)
	return fmt.Sprintf("%s:%d:%d", filepath.Base(p.Filename), p.Line, p.Column)
}

// render returns the text of n, whose operators are calls.
func (r *rewriter) render(n ast.Node) string {
	op, at := r.token(n)
	if op == token.ILLEGAL {
		return r.inside(n)
	}
	r.all = append(r.all, operator{r.from, r.place(at), op})
	number := strconv.Itoa(len(r.all))
	if not, unary := n.(*ast.UnaryExpr); unary {
		return "opNot(" + number + ", " + r.render(not.X) + ")"
	}
	pair := n.(*ast.BinaryExpr)
	x, y := r.render(pair.X), r.render(pair.Y)
	switch op {
	case token.EQL, token.NEQ:
		return "(op(" + number + ") != ((" + x + ") " + op.String() + " (" + y + ")))"
	case token.LAND, token.LOR:
		y = "func() bool { return " + y + " }"
	}
	return call[op] + "(" + number + ", " + x + ", " + y + ")"
}

// inside returns the text of n, in which those below it are rendered.
func (r *rewriter) inside(n ast.Node) string {
	var out strings.Builder
	done := n.Pos()
	ast.Inspect(n, func(c ast.Node) bool {
		switch d := c.(type) {
		case nil:
			return false
		case *ast.GenDecl:
			return d.Tok != token.CONST && d.Tok != token.IMPORT // lengths of waits and the like
		case *ast.ArrayType:
			return false // its length is a constant
		}
		if c == n {
			return true
		}
		if op, _ := r.token(c); op == token.ILLEGAL {
			return true
		}
		out.Write(r.text[int(done)-r.base : int(c.Pos())-r.base])
		out.WriteString(r.render(c))
		done = c.End()
		return false
	})
	out.Write(r.text[int(done)-r.base : int(n.End())-r.base])
	return out.String()
}

// constant reports whether an operand is a number or a text of its own.
func constant(e ast.Expr) bool {
	_, literal := e.(*ast.BasicLit)
	return literal
}

// isText reports whether an operand is or has a text, of which there is no difference.
func isText(e ast.Expr) bool {
	found := false
	ast.Inspect(e, func(n ast.Node) bool {
		if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
			found = true
		}
		_, isCall := n.(*ast.CallExpr)
		return !isCall
	})
	return found
}

// pack is the test program of a package, in which one operator at a time can be wrong.
type pack struct {
	program string
	all     []operator
	takes   time.Duration // with none wrong
}

// rewrite writes the package's files with calls into temp, and an overlay of them.
func (c tryout) rewrite(folder, temp string, left map[string]bool) (all []operator, overlay string, _ error) {
	files, err := filepath.Glob(filepath.Join(c.dir, folder, "*.go"))
	if err != nil {
		return nil, "", err
	}
	replace, r, of := map[string]string{}, rewriter{fset: token.NewFileSet(), left: left, from: folder}, ""
	write := func(name, text string) error {
		to := filepath.Join(temp, filepath.Base(name))
		replace[name] = to
		return os.WriteFile(to, []byte(text), 0o600)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		if r.text, err = os.ReadFile(name); err != nil {
			return nil, "", err
		}
		file, err := parser.ParseFile(r.fset, name, r.text, parser.SkipObjectResolution)
		if err != nil {
			return nil, "", err
		}
		r.base, of = r.fset.File(file.Pos()).Base(), file.Name.Name
		before := string(r.text[:int(file.Pos())-r.base])
		if err := write(name, before+r.inside(file)+string(r.text[int(file.End())-r.base:])); err != nil {
			return nil, "", err
		}
	}
	if err := write(filepath.Join(c.dir, folder, "wrong_operators.go"), fmt.Sprintf(functions, of)); err != nil {
		return nil, "", err
	}
	list, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return nil, "", err
	}
	overlay = filepath.Join(temp, "overlay.json")
	return r.all, overlay, os.WriteFile(overlay, list, 0o600)
}

// prepare compiles a package's tests. Operators that cannot be calls, as those of constants, stay as they are.
func (c tryout) prepare(ctx context.Context, folder, temp string) (p pack, _ error) {
	left := map[string]bool{}
	for p.program = filepath.Join(temp, "package.test"); ; {
		all, overlay, err := c.rewrite(folder, temp, left)
		if err != nil {
			return p, err
		}
		p.all = all
		build := exec.CommandContext(ctx, "go", "test", "-c", "-o", p.program, "-overlay", overlay, "-tags", c.tags, "-vet=off", "-gcflags=-e", "./"+folder)
		build.Dir = c.dir
		out, err := build.CombinedOutput()
		if err == nil {
			break
		}
		known := len(left)
		for _, m := range regexp.MustCompile(`([^/\s]+\.go):(\d+):`).FindAllStringSubmatch(string(out), -1) {
			for _, o := range all {
				if strings.HasPrefix(o.at, m[1]+":"+m[2]+":") {
					left[o.at] = true
				}
			}
		}
		if len(left) == known {
			return p, fmt.Errorf("%s: %w: %s", folder, err, out)
		}
	}
	began := time.Now()
	if out, passed := c.noticed(ctx, p, 0, 10*time.Minute); !passed {
		return p, fmt.Errorf("%s: its short tests fail with no operator wrong: %s", folder, out)
	}
	p.takes = time.Since(began)
	return p, ctx.Err()
}

// noticed runs the package's short tests with the operator of that number wrong, and reports whether they pass.
func (c tryout) noticed(ctx context.Context, p pack, number int, limit time.Duration) (out []byte, passed bool) {
	run := exec.CommandContext(ctx, p.program, "-test.short", "-test.failfast", "-test.timeout="+limit.String())
	run.Dir = filepath.Join(c.dir, p.all[0].folder)
	run.Env = append(os.Environ(), numberEnv+"="+strconv.Itoa(number))
	out, err := run.CombinedOutput()
	return bytes.TrimSpace(out[max(0, len(out)-2000):]), err == nil
}

// wanted is the part of the wrong operators that has to be noticed.
const wanted = 0.9

// cores makes n operators wrong, chosen by the seed, one at a time, and runs the package's own short tests. Each package
// is compiled once. It fails when too few are noticed.
func (c tryout) cores(ctx context.Context, n int, seed uint64, only func(string) bool) error {
	temp, err := os.MkdirTemp(filepath.Dir(c.dir), "operators")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	packs, found := map[string]pack{}, map[string][]int{}
	var chosen []operator
	for i, folder := range cores {
		if !only(folder) {
			continue
		}
		at := filepath.Join(temp, strconv.Itoa(i))
		if err := os.Mkdir(at, 0o755); err != nil {
			return err
		}
		p, err := c.prepare(ctx, folder, at)
		if err != nil {
			return err
		}
		packs[folder] = p
		chosen = append(chosen, p.all...)
	}
	if len(chosen) == 0 {
		return errors.New("no operator to make wrong")
	}
	random := rand.New(rand.NewPCG(seed, 0))
	random.Shuffle(len(chosen), func(i, j int) { chosen[i], chosen[j] = chosen[j], chosen[i] })
	chosen = chosen[:min(n, len(chosen))]
	made, killed := 0, 0
	for _, o := range chosen {
		p := packs[o.folder]
		_, passed := c.noticed(ctx, p, slices.Index(p.all, o)+1, 10*p.takes+10*time.Second)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		made++
		if passed {
			fmt.Println("ALIVE ", o)
			found[o.folder] = append(found[o.folder], 0)
		} else {
			killed++
			found[o.folder] = append(found[o.folder], 1)
		}
	}
	for _, folder := range slices.Sorted(maps.Keys(found)) {
		sum := 0
		for _, one := range found[folder] {
			sum += one
		}
		fmt.Printf("%3d of %3d  %s\n", sum, len(found[folder]), folder)
	}
	fmt.Printf("%d of %d killed, seed %d\n", killed, made, seed)
	if float64(killed) < wanted*float64(made) {
		return fmt.Errorf("%d of %d wrong operators were noticed by the tests beside them, wanted are %.0f %%", killed, made, 100*wanted)
	}
	return nil
}
