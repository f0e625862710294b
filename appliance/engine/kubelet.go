package engine

import (
	"fmt"
	"path/filepath"
)

// kubeletConfig is what the kubelet takes from a file only; k3s lays it over its own.
// Logs of containers are the largest thing that pods write without asking: three
// files of 5 MB for each container, not upstream's five of 10.
var kubeletConfig = fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
nodeLeaseDurationSeconds: %d
containerLogMaxSize: 5Mi
containerLogMaxFiles: 3
`, leaseSeconds)

func (e *Engine) kubeletConfigFile() string {
	return filepath.Join(e.cfg.StateDir, "k3s-kubelet.yaml")
}
