package engine

import (
	"fmt"
	"path/filepath"

	"rivulet/offload/nodeagent/tenantimages"
)

// kubeletConfig has the kubelet settings that have no flag; k3s merges it over its own. Container logs are the largest
// unrequested writes of pods: three files of 5 MB for each container, not upstream's five of 10. No pod, of this
// cluster or of another, uses all of the machine's process numbers. The supervisor serves images, because it separates
// those of tenants.
func (e *Engine) kubeletConfig() string {
	return fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
nodeLeaseDurationSeconds: %d
containerLogMaxSize: 5Mi
containerLogMaxFiles: 3
podPidsLimit: %d
imageServiceEndpoint: unix://%s
`, leaseSeconds, e.podPIDs(), tenantimages.Socket(e.cfg.RunDir))
}

// podPIDs bounds the processes and threads of one pod: a quarter of the kernel's limit for this much memory, at most
// 4096.
func (e *Engine) podPIDs() int {
	const perProcess = 128 << 10 // bytes, as the kernel counts
	return int(max(512, min(4096, e.cfg.Facts.MemoryBytes/perProcess/4)))
}

func (e *Engine) kubeletConfigFile() string {
	return filepath.Join(e.cfg.StateDir, "k3s-kubelet.yaml")
}
