// Package version reports the parts of this binary. It reads the build information that the Go tool puts into every
// binary.
package version

import (
	"runtime/debug"
	"strconv"
	"time"
)

// Version is Rivulet's own, set when linking.
var Version = "dev"

// BuildTime is the time of the commit of this build, seconds since 1970, set when linking: the same commit gives the
// same binary.
var BuildTime = ""

// epoch is older than any binary of Rivulet.
var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// Built is the time of the commit, or an earlier one if that is unknown. The present time is never earlier.
func Built() time.Time {
	seconds, err := strconv.ParseInt(BuildTime, 10, 64)
	if t := time.Unix(seconds, 0).UTC(); err == nil && t.After(epoch) {
		return t
	}
	return epoch
}

// Part is a module in the binary.
type Part struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

var modules = []struct{ name, path string }{
	{"k3s", "github.com/k3s-io/k3s"},
	{partKubernetes, "k8s.io/kubernetes"},
	{"kine", "github.com/k3s-io/kine"},
	{"containerd", "github.com/containerd/containerd/v2"},
	{"wireguard", "golang.zx2c4.com/wireguard"},
	{"virtual-kubelet", "github.com/virtual-kubelet/virtual-kubelet"},
	{"CoreDNS", "github.com/coredns/coredns"},
	{"zeroconf", "github.com/grandcat/zeroconf"},
	{"bbolt", "go.etcd.io/bbolt"},
}

// Parts returns the versions of the modules in this binary. A replaced module has the version of its replacement.
func Parts() []Part {
	bi, ok := debug.ReadBuildInfo()
	if !ok {
		return nil
	}
	out := parts(bi)
	if KubernetesOf(out) == "" && LinkedKubernetes != "" {
		out = append(out, Part{partKubernetes, LinkedKubernetes})
	}
	return out
}

func parts(bi *debug.BuildInfo) []Part {
	have := map[string]string{}
	for _, m := range bi.Deps {
		v := m.Version
		if m.Replace != nil {
			v = m.Replace.Version
		}
		have[m.Path] = v
	}
	var out []Part
	for _, m := range modules {
		if v := have[m.path]; v != "" {
			out = append(out, Part{m.name, v})
		}
	}
	return append(out, Part{"Go", bi.GoVersion})
}
