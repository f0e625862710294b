package engine

import (
	"fmt"
	"path/filepath"
)

// SchedulerConfig is what the scheduler takes from a file only, for an engine with
// that data folder. The order home, peers, campus (docs/architecture.md) is a matter
// of taints that are preferred not to be tolerated. Upstream weighs them 3, and with
// three steps each is worth 150 points; spreading replicas (200), emptier nodes (100),
// balance (100), images (100) and affinity between pods (200) together speak louder,
// and the last pods that would fit at home run at a peer or at the campus. With 15 a
// step is 750.
//
// A scheduler with a file ignores the flag that says how it reaches the API server.
func SchedulerConfig(dataDir string) string {
	return fmt.Sprintf(`apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection:
  kubeconfig: %q
profiles:
- schedulerName: default-scheduler
  plugins:
    multiPoint:
      enabled: [{name: TaintToleration, weight: 15}]
`, filepath.Join(dataDir, "server", "cred", "scheduler.kubeconfig"))
}

func (e *Engine) schedulerConfigFile() string {
	return filepath.Join(e.cfg.StateDir, "k3s-scheduler.yaml")
}

func (e *Engine) schedulerArgs() []string {
	return prefixed("--kube-scheduler-arg=", "config="+e.schedulerConfigFile())
}
