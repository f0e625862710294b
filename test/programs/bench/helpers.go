package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"syscall"

	"net/netip"

	"rivulet/appliance/engine"
	"rivulet/appliance/machine/host"
	"rivulet/offload/nodeagent/podgate"
	"rivulet/test/harness/lab"
	"rivulet/test/programs/bench/internal/device"
)

// kit is what plain k3s and the tunnel need of a device that ran once: the helpers
// of the bundle, and the files the supervisor writes for the engine.
type kit struct {
	tunnel string // the shipped rivulet-tunnel
	plain  string // a binary for labs whose devices run k3s without a supervisor
}

// seeds are the files that k3s is given before it starts, below the state folder.
var seeds = []string{
	"k3s-containerd.toml", // only where CAP_SYS_RESOURCE is missing
	"k3s-kubelet.yaml",
	"k3s-scheduler.yaml",
	"k3s/agent/etc/containerd/config-v3.toml.tmpl",
	"k3s/agent/images/rivulet-pause.tar",
	"k3s/server/manifests/rivulet-engine.yaml",
}

var imageService = regexp.MustCompile(`(?m)^imageServiceEndpoint:.*\n`)

const (
	stateDir = "/var/lib/rivulet"
	runDir   = "/run/rivulet"
	kitDir   = "/opt/rivulet" // what devices see of the plain folder
)

// helpers runs one device until its API answers and takes the kit from its disk.
func (b *bench) helpers(ctx context.Context) (kit, error) {
	if b.kit.tunnel != "" {
		return b.kit, nil
	}
	b.tell("a first device, for its helpers and to warm the page cache")
	plain, err := b.stage.Beside("plain", device.CopySelf)
	if err != nil {
		return kit{}, err
	}
	dir := filepath.Dir(plain)
	err = b.stage.Lab(ctx, b.stage.Binary(), 1, nil, func(_ *lab.Lab, ds []*device.Device) error {
		if _, err := ds[0].WaitAPI(ctx); err != nil {
			return err
		}
		state := ds[0].Path(stateDir)
		bundle, err := filepath.EvalSymlinks(filepath.Join(state, "bundle", "current"))
		if err != nil {
			return fmt.Errorf("bench: %w", err)
		}
		if err := os.CopyFS(filepath.Join(dir, "bundle"), os.DirFS(bundle)); err != nil {
			return fmt.Errorf("bench: %w", err)
		}
		for _, name := range seeds {
			raw, err := os.ReadFile(filepath.Join(state, name))
			if errors.Is(err, fs.ErrNotExist) && name == seeds[0] {
				continue
			}
			// The supervisor serves it, and there is none: the kubelet would not start.
			raw = imageService.ReplaceAll(raw, nil)
			to := filepath.Join(dir, "seed", name)
			if err = errors.Join(err, os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, raw, 0o644)); err != nil {
				return fmt.Errorf("bench: %w", err)
			}
		}
		return nil
	})
	if err != nil {
		return kit{}, err
	}
	b.kit = kit{tunnel: filepath.Join(dir, "bundle", "bin", "rivulet-tunnel"), plain: plain}
	return b.kit, nil
}

// plainEngine is "rivulet run" on a device of plain k3s: it lays out the files that
// its administrator would have, and becomes the engine.
func plainEngine() error {
	product := filepath.Join(kitDir, "product")
	upstream := os.Getenv(upstreamEnv)
	if upstream != "" {
		product = upstream
		// kine makes the folder only for its default file.
		if err := os.MkdirAll(filepath.Join(stateDir, "k3s/server/db"), 0o700); err != nil {
			return fmt.Errorf("bench: %w", err)
		}
	}
	facts, err := host.Probe()
	if err != nil {
		return err
	}
	name, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	services := netip.MustParsePrefix("10.43.0.0/16")
	e := engine.New(engine.Config{
		Argv0: "rivulet-engine", StateDir: stateDir, RunDir: runDir, NodeName: name,
		NodeIP: netip.MustParseAddr("100.127.7.7"), PodCIDR: netip.MustParsePrefix("10.42.0.0/16"),
		ServiceCIDR: services, ClusterDNS: netip.MustParseAddr("10.43.0.10"), Facts: facts,
	})
	if _, err := host.EnsureNodeAddress(netip.MustParseAddr("100.127.7.7"), services); err != nil {
		return err
	}
	if err := os.CopyFS(stateDir, os.DirFS(filepath.Join(kitDir, "seed"))); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	bin := filepath.Join(runDir, "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	for _, tool := range []string{"containerd", "kubectl", "ctr", "crictl"} {
		if err := os.Symlink(product, filepath.Join(bin, tool)); err != nil {
			return fmt.Errorf("bench: %w", err)
		}
	}
	os.Setenv("PATH", bin+":"+filepath.Join(kitDir, "bundle", "bin")+":"+os.Getenv("PATH"))
	os.Setenv(podgate.Env, podgate.Nobody)
	cmd := exec.Command(product)
	cmd.Args = append([]string{"rivulet-engine"}, e.Args()...)
	if upstream != "" {
		cmd.Args = append([]string{"rivulet-engine"}, upstreamArgs(e, name, facts)...)
	}
	return fmt.Errorf("bench: %w", syscall.Exec(cmd.Path, cmd.Args, os.Environ()))
}
