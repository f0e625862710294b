package engine

import (
	"fmt"
	"path/filepath"

	"rivulet/offload/nodeagent/images"
)

// kubeletConfig is what the kubelet takes from a file only; k3s lays it over its own.
// Logs of containers are the largest thing that pods write without asking: three
// files of 5 MB for each container, not upstream's five of 10. No pod, of this cluster or of another, takes all of the machine's processes.
// Images are asked of the supervisor, which keeps those of tenants apart.
func (e *Engine) kubeletConfig() string {
	return fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
nodeLeaseDurationSeconds: %d
containerLogMaxSize: 5Mi
containerLogMaxFiles: 3
podPidsLimit: %d
imageServiceEndpoint: unix://%s
`, leaseSeconds, e.podPIDs(), images.Socket(e.cfg.RunDir))
}

// podPIDs is how many processes and threads one pod may have: a quarter of those that the
// kernel allows a machine with so much memory, 4096 at most.
func (e *Engine) podPIDs() int {
	const perProcess = 128 << 10 // bytes, as the kernel counts
	return int(max(512, min(4096, e.cfg.Facts.MemoryBytes/perProcess/4)))
}

func (e *Engine) kubeletConfigFile() string {
	return filepath.Join(e.cfg.StateDir, "k3s-kubelet.yaml")
}
