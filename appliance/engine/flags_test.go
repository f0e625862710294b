package engine

import (
	"slices"
	"strings"
	"testing"
	"time"

	"rivulet/appliance/machine/memory"
	"rivulet/offload/nodeagent/podgate"
)

// Each is worth a line in docs/design/small.md.
func TestFlagsThatSpareTheCard(t *testing.T) {
	c := testConfig(t)
	c.Facts.MemoryBytes = 950 * memory.MiB
	args := New(c).Args()
	for _, want := range []string{
		"--kube-apiserver-arg=endpoint-reconciler-type=master-count",
		"--kube-apiserver-arg=event-ttl=15m0s",
		"--kube-apiserver-arg=max-requests-inflight=100",
		"--kube-apiserver-arg=max-mutating-requests-inflight=50",
		"--kube-controller-manager-arg=node-monitor-grace-period=2m0s",
		"--kubelet-arg=config=" + c.StateDir + "/k3s-kubelet.yaml",
		"--kubelet-arg=address=" + c.NodeIP.String(),
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
	if config := New(testConfig(t)).kubeletConfig(); gone < 4*renewal || !strings.Contains(config, "nodeLeaseDurationSeconds: 120\n") {
		t.Errorf("given up after %v, renewed every %v: %s", gone, renewal, config)
	}
}

// A pod has a part of the processes that the kernel allows, on the smallest board too.
func TestNoPodHasAllProcesses(t *testing.T) {
	for mebibytes, want := range map[uint64]int{64: 512, 512: 1024, 950: 1900, 2048: 4096, 65536: 4096} {
		c := testConfig(t)
		c.Facts.MemoryBytes = mebibytes * memory.MiB
		if got := New(c).podPIDs(); got != want {
			t.Errorf("%d MiB: %d, want %d", mebibytes, got, want)
		}
	}
}

func TestEnvironmentOfEngineAndContainerd(t *testing.T) {
	c := testConfig(t)
	c.Facts.MemoryBytes = 950 * memory.MiB
	t.Setenv(podgate.Env, podgate.Nobody) // whoever starts the supervisor does not decide
	env := New(c).environ()
	if slices.Contains(env, podgate.Env+"="+podgate.Nobody) {
		t.Error("pods start without the supervisor's word")
	}
	for _, want := range []string{podgate.Env + "=" + podgate.Socket(c.RunDir), "GOMEMLIMIT=320MiB", "CONTAINERD_GOMEMLIMIT=48MiB"} {
		if !slices.Contains(env, want) {
			t.Errorf("%q is missing in %q", want, env)
		}
	}
}
