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

// clientMakers are the types and functions by which a program gets a client, by package.
var clientMakers = map[string]bool{"http.Client": true, "http.Transport": true, "http.DefaultClient": true, "http.DefaultTransport": true, "http.Get": true, "http.Post": true, "http.Head": true,
	"rest.Config": true, "rest.TransportFor": true, "rest.HTTPClientFor": true, "rest.HTTPWrappersForConfig": true, "httputil.ReverseProxy": true,
	"clientcmd.RESTConfigFromKubeConfig": true, "clientcmd.BuildConfigFromFlags": true, "websocket.Dialer": true, "spdy.RoundTripperFor": true}

// unguarded are the files that make a client without package foreign, and why they may.
var unguarded = map[string]string{
	"appliance/addons/ingress/proxy.go":          "passes answers of pods on to their clients, and reads none",
	"appliance/addons/resourcemetrics/local.go":  "this node's own kubelet",
	"appliance/api/client.go":                    "the supervisor's own socket",
	"appliance/engine/controlplane/pods/pods.go": "given to target/peer, which guards it",
	"appliance/engine/hang.go":                   "this cluster's own API server",
	"appliance/engine/ready.go":                  "this cluster's own API server",
	"appliance/lifetime/nodes/tenants.go":        "passes answers on between this cluster's own nodes",
	"appliance/lifetime/nodes/upgrade.go":        "passes answers on between this cluster's own nodes",
	"appliance/machine/clock/dates.go":           "registries' dates: one request without a body, no redirects, headers bounded",
	"appliance/vcluster/targets.go":              "passes answers of a peer on to a virtual cluster, whose own target/peer guards them",
	"appliance/vcluster/users.go":                "given to package users, which passes answers on to the virtual cluster's users",
	"fabric/clients.go":                          "package fabric has no Kubernetes: no redirects, no compression, one address; readers bound",
	"fabric/pairing/http.go":                     "package fabric has no Kubernetes: no redirects, one address, rpc.Call bounds",
	"fabric/ping.go":                             "package fabric has no Kubernetes: no redirects, no compression, one address; bounded",
	"fabric/tunnel/controller.go":                "this device's own tunnel process",
	"image/debian/archive.go":                    "Debian's archive, on a building machine: bounded in bytes, and the pinned hash decides",
	"offload/apiproxy/apiproxy.go":               "this cluster's own API server",
	"offload/consumer/stream/stream.go":          "of Target.Config, which the target has guarded",
	"offload/gatewaypod/forward.go":              "of external.Credential.REST, which guards",
	"offload/gatewaypod/upgrade.go":              "of external.Credential.REST, which guards",
	"offload/nodeagent/tenantimages/relay.go":    "registries point elsewhere; each address is judged before it is dialled",
}

// Whoever reads what another answers does it by package foreign: bounded, not inflated, and not led elsewhere.
func TestForeignClientsAreGuarded(t *testing.T) {
	guards, makers := 0, map[string]bool{}
	for _, top := range []string{"appliance", "fabric", "offload", "cmd", "image"} {
		err := filepath.WalkDir(tree.Path(top), func(path string, _ os.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := filepath.Rel(tree.Path(), path)
			if err != nil || strings.HasPrefix(file, "offload/foreign/") {
				return err
			}
			f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			makes, guarded := clientsIn(f)
			if guarded {
				guards++
			}
			if len(makes) > 0 && !guarded {
				if makers[file] = true; unguarded[file] == "" {
					t.Errorf("%s makes %s: if it reads answers of others, make it with foreign.Guard or foreign.Client; else name it in unguarded", file, strings.Join(makes, ", "))
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for file := range unguarded {
		if !makers[file] {
			t.Errorf("%s makes no client, or guards it: it does not have to be named", file)
		}
	}
	if guards < 4 {
		t.Errorf("%d files guard their clients", guards)
	}
}

// clientsIn lists what a file makes clients of, and reports whether it guards them. A pointer to a type, or a type alone,
// as in parameters, makes none.
func clientsIn(f *ast.File) (makes []string, guarded bool) {
	name := func(e ast.Expr) string {
		if s, ok := e.(*ast.SelectorExpr); ok {
			if x, ok := s.X.(*ast.Ident); ok {
				return x.Name + "." + s.Sel.Name
			}
		}
		return ""
	}
	made := func(e ast.Expr) {
		if n := name(e); clientMakers[n] {
			makes = append(makes, n)
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CompositeLit:
			made(n.Type)
		case *ast.ValueSpec:
			made(n.Type)
		case *ast.CallExpr:
			made(n.Fun)
			for _, a := range n.Args { // new(http.Client)
				made(a)
			}
			guarded = guarded || name(n.Fun) == "foreign.Guard" || name(n.Fun) == "foreign.Client"
		case *ast.AssignStmt:
			for _, e := range n.Rhs {
				made(e)
			}
		case *ast.SelectorExpr:
			if n := name(n); strings.HasPrefix(n, "http.Default") {
				made(&ast.SelectorExpr{X: ast.NewIdent("http"), Sel: ast.NewIdent(strings.TrimPrefix(n, "http."))})
			}
		}
		return true
	})
	return makes, guarded
}

// Each way to make a client is found, and none that makes none.
func TestClientsIn(t *testing.T) {
	for body, want := range map[string]int{
		"x := &http.Client{}; _ = x":                          1,
		"var x http.Client; _ = x":                            1,
		"x := new(rest.Config); _ = x":                        1,
		"http.Get(u)":                                         1,
		"http.DefaultClient.Do(r)":                            1,
		"c, err := clientcmd.BuildConfigFromFlags(m, k)":      1,
		"f := func(c *http.Client, r *rest.Config) {}; _ = f": 0,
	} {
		f, err := parser.ParseFile(token.NewFileSet(), "x.go", "package x\nfunc f() { "+body+" }", parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := clientsIn(f); (len(got) > 0) != (want > 0) {
			t.Errorf("%s: %v", body, got)
		}
	}
}
