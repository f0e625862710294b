// Package arch holds the rules of the house as tests: who may import whom.
package arch

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"strings"
	"testing"
)

type pkg struct {
	ImportPath string
	Doc        string
	Imports    []string
	Deps       []string
	Dir        string
	GoFiles    []string
}

func list(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-deps=false", "-json=ImportPath,Dir,Doc,Imports,Deps,GoFiles",
		"rivulet/cmd/...", "rivulet/appliance/...", "rivulet/fabric/...", "rivulet/offload/...", "rivulet/image/...")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v: %s", err, stderr.String())
	}
	var pkgs []pkg
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		pkgs = append(pkgs, p)
	}
	if len(pkgs) < 10 {
		t.Fatalf("go list found only %d packages", len(pkgs))
	}
	return pkgs
}

func under(path string, roots ...string) bool {
	for _, r := range roots {
		if path == r || strings.HasPrefix(path, r+"/") {
			return true
		}
	}
	return false
}

// Imports go one way: cmd → appliance → {offload, fabric, image, systemd}.
func TestImportsGoOneWay(t *testing.T) {
	for _, p := range list(t) {
		for _, i := range p.Imports {
			bad := ""
			switch {
			case under(i, "rivulet/cmd") && !under(p.ImportPath, "rivulet/cmd"):
				bad = "nothing imports cmd"
			case under(p.ImportPath, "rivulet/fabric") && under(i, "rivulet/offload", "rivulet/appliance"):
				bad = "fabric knows neither offload nor appliance"
			case under(p.ImportPath, "rivulet/offload") && under(i, "rivulet/appliance"):
				bad = "offload does not know appliance"
			case under(p.ImportPath, "rivulet/offload") && under(i, "rivulet/fabric") && !under(i, "rivulet/fabric/peer", "rivulet/fabric/rpc", "rivulet/fabric/nft", "rivulet/fabric/reach", "rivulet/fabric/changes", "rivulet/fabric/panics", "rivulet/fabric/cure", "rivulet/fabric/logbound", "rivulet/fabric/gateway/gatewayproto", "rivulet/fabric/ipam", "rivulet/fabric/httpserver"):
				bad = "offload may know fabric/peer, fabric/rpc, fabric/nft, fabric/reach, fabric/changes, fabric/panics, fabric/cure, fabric/logbound, fabric/gateway/gatewayproto, fabric/ipam and fabric/httpserver only"
			case i == "rivulet/appliance" && !under(p.ImportPath, "rivulet/cmd"):
				bad = "only cmd imports package appliance"
			case under(i, "rivulet/test"):
				bad = "the product does not import test"
			}
			// The lab is a tool for tests.
			if bad != "" && !(p.ImportPath == "rivulet/cmd/rivulet-lab" && under(i, "rivulet/test")) {
				t.Errorf("%s imports %s: %s", p.ImportPath, i, bad)
			}
		}
	}
}

// Below fabric there is no Kubernetes, and the tunnel helper stays small.
func TestFabricHasNoKubernetes(t *testing.T) {
	for _, p := range list(t) {
		if !under(p.ImportPath, "rivulet/fabric", "rivulet/cmd/rivulet-tunnel", "rivulet/cmd/rivulet-gateway", "rivulet/cmd/rivulet-cni") {
			continue
		}
		for _, d := range p.Deps {
			if under(d, "k8s.io", "sigs.k8s.io", "github.com/k3s-io") {
				t.Errorf("%s depends on %s", p.ImportPath, d)
			}
		}
	}
}

// Only engine/k3s and the binary pull in k3s and Kubernetes proper: everybody
// else's tests compile in seconds.
func TestOnlyTheEngineImportsK3s(t *testing.T) {
	for _, p := range list(t) {
		if under(p.ImportPath, "rivulet/appliance/engine/k3s", "rivulet/cmd/rivulet") && !under(p.ImportPath, "rivulet/cmd/rivulet/cli") {
			continue
		}
		for _, d := range p.Deps {
			if under(d, "github.com/k3s-io/k3s", "k8s.io/kubernetes") {
				t.Errorf("%s depends on %s", p.ImportPath, d)
				break
			}
		}
	}
}

func TestEveryPackageSaysWhatItIsFor(t *testing.T) {
	for _, p := range list(t) {
		if len(p.GoFiles) > 0 && len(p.Doc) < 30 {
			t.Errorf("%s has no package comment that says what it is for", p.ImportPath)
		}
	}
}
