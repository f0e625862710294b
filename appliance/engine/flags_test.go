package engine

import (
	"slices"
	"strings"
	"testing"
	"time"

	"rivulet/appliance/memory"
)

// Each is worth a line in docs/small.md.
func TestFlagsThatSpareTheCard(t *testing.T) {
	c := config(t)
	c.Facts.MemoryBytes = 950 * memory.MiB
	args := New(c).Args()
	for _, want := range []string{
		"--kube-apiserver-arg=endpoint-reconciler-type=master-count",
		"--kube-apiserver-arg=event-ttl=15m0s",
		"--kube-apiserver-arg=max-requests-inflight=100",
		"--kube-apiserver-arg=max-mutating-requests-inflight=50",
		"--kube-controller-manager-arg=node-monitor-grace-period=2m0s",
		"--kubelet-arg=config=" + c.StateDir + "/k3s-kubelet.yaml",
		"--kube-scheduler-arg=config=" + c.StateDir + "/k3s-scheduler.yaml",
	} {
		if !slices.Contains(args, want) {
			t.Errorf("%q is missing in %q", want, args)
		}
	}
	// k3s passes repeated arguments on, and of repeated gates the last would win.
	var gates []string
	for _, a := range args {
		if strings.Contains(a, "feature-gates=") {
			gates = append(gates, a)
		}
	}
	if len(gates) != 1 || !strings.Contains(gates[0], "MutatingAdmissionPolicy=true") || !strings.Contains(gates[0], "APIServerIdentity=false") {
		t.Errorf("gates %q, want one argument with all of them", gates)
	}
}

// A lease that is renewed late once, or twice, must not cost a node.
func TestNodesAreGivenUpAfterSeveralRenewals(t *testing.T) {
	gone, err := time.ParseDuration(nodeGone)
	if err != nil {
		t.Fatal(err)
	}
	renewal := leaseSeconds * time.Second / 4
	if gone < 4*renewal || !strings.Contains(kubeletConfig, "nodeLeaseDurationSeconds: 120\n") {
		t.Errorf("given up after %v, renewed every %v: %s", gone, renewal, kubeletConfig)
	}
}

func TestEnvironmentOfEngineAndContainerd(t *testing.T) {
	c := config(t)
	c.Facts.MemoryBytes = 950 * memory.MiB
	env := New(c).environ()
	for _, want := range []string{"GOMEMLIMIT=320MiB", "CONTAINERD_GOMEMLIMIT=48MiB"} {
		if !slices.Contains(env, want) {
			t.Errorf("%q is missing in %q", want, env)
		}
	}
}
