package cleanup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// EndPods ends the pods of a containerd whose database is damaged: their processes and shims, with mounts, network
// namespaces and addresses. Rivulet's containerd must not run. Everything else stays.
func EndPods(ctx context.Context, cfg Config) error {
	c := newCleaner(cfg)
	c.containers = ourContainers()
	c.end(ctx, step{pod, "processes of pods", 0}, step{shim, "containers' shims", 0})
	c.foreign = otherKubelet(cfg.Run)
	if c.runtime = runtimeInUse(); c.runtime != "" {
		return fmt.Errorf("cleanup: another Kubernetes uses %s (%s); stop that one: sudo systemctl stop k3s", k3sRun, c.runtime)
	}
	runtime := filepath.Join(k3sRun, "containerd")
	c.unmount(func(info string) []string {
		return slices.DeleteFunc(c.ourMounts(info), func(p string) bool { return !strictlyBelow(p, runtime) })
	})
	c.namespaces()
	for _, id := range c.containers {
		c.check(RemoveAll(filepath.Join(runcDir, id)))
	}
	c.check(RemoveAll(runtime))
	if c.foreign == "" {
		c.check(os.RemoveAll(filepath.Join(cniDir, "networks", podNetwork)))
	}
	if len(c.Left) > 0 {
		return errors.New("cleanup: " + strings.Join(c.Left, "; "))
	}
	return nil
}

// EndContainers ends the containers of pods as the kubelet does: SIGTERM to the first process of each, and after grace
// SIGKILL. Rivulet's engine must not run; when it runs again, they begin again.
func EndContainers(ctx context.Context, cfg Config, grace time.Duration) error {
	all := newCleaner(cfg).find()
	return end(ctx, slices.DeleteFunc(slices.Clone(all), func(p found) bool {
		return p.kind != pod || !slices.ContainsFunc(all, func(parent found) bool { return parent.pid == p.parent && parent.kind == shim })
	}), grace)
}
