package main

import (
	"debug/buildinfo"
	"fmt"
	"path/filepath"
	"runtime/debug"
)

// sources say which module of which binary gives a version its name.
var sources = []struct{ name, program, module string }{
	{"cni", "cni", "github.com/containernetworking/plugins"},
	{"containerd", "containerd-shim-runc-v2", "github.com/containerd/containerd/v2"},
	{"runc", "runc", "github.com/opencontainers/runc"},
	{"wireguard", "rivulet-tunnel", "golang.zx2c4.com/wireguard"},
}

// versions asks the binaries themselves.
func versions(in string) (map[string]string, error) {
	found := map[string]string{}
	for _, s := range sources {
		info, err := buildinfo.ReadFile(filepath.Join(in, s.program))
		if err != nil {
			return nil, err
		}
		version, err := moduleVersion(info, s.module)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.program, err)
		}
		found[s.name] = version
	}
	return found, nil
}

func moduleVersion(info *debug.BuildInfo, module string) (string, error) {
	for _, m := range append(info.Deps, &info.Main) {
		if m.Path != module {
			continue
		}
		if m.Replace != nil {
			return m.Replace.Version, nil
		}
		return m.Version, nil
	}
	return "", fmt.Errorf("was built without %s", module)
}
