package main

import (
	"debug/buildinfo"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
)

// sources map the name of a version to a binary and the module in it that has this version.
var sources = []struct{ name, program, module string }{
	{"cni", "cni", "github.com/containernetworking/plugins"},
	{"containerd", "containerd-shim-runc-v2", "github.com/containerd/containerd/v2"},
	{"runc", "runc", "github.com/opencontainers/runc"},
	{"wireguard", "rivulet-tunnel", "golang.zx2c4.com/wireguard"},
}

// versions reads the versions from the binaries, and that of iptables from Debian's package.
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
	var err error
	found["iptables"], err = packaged(filepath.Join(in, "netfilter", "packages"), "iptables")
	return found, err
}

// packaged returns a Debian package's version from the list.
func packaged(list, name string) (string, error) {
	text, err := os.ReadFile(list)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == name {
			return f[1], nil
		}
	}
	return "", fmt.Errorf("%s does not name %s", list, name)
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
