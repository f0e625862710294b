package problems

import (
	"strings"
	"testing"

	"rivulet/appliance/health"
	"rivulet/fabric/rpc"
	"rivulet/offload"
	"rivulet/offload/target"
)

// What the parts know is told in one list, by codes of its own where there are some,
// and goes when a part takes it back.
func TestOneListOfProblems(t *testing.T) {
	var tr health.Tracker
	tr.Set(health.Tun, "x", "y")
	reportFabric(&tr, []rpc.Error{{Code: "tunnel", Message: "no tunnel", Cure: "wait"}, {Code: "new-one", Message: "m", Cure: "c"}})
	reportOffload(&tr, map[string]string{"policy": "it failed: x; do y", "node b": "refused"})
	want := []string{
		"a part of the network between clusters does not work (new-one) [fabric]: m; c",
		"a part of offloading does not run (node b) [offload]: refused; it is tried again by itself",
		"a part of offloading does not run (policy) [offload]: it failed: x; do y",
		"there is no TUN device, so no tunnel to peers [tun]: x; y",
		"there is no tunnel to any peer [tunnel]: no tunnel; wait",
	}
	got := tr.Problems()
	if len(got) != len(want) {
		t.Fatalf("%v", got)
	}
	for i, p := range got {
		if p.String() != want[i] {
			t.Errorf("%s, want %s", p, want[i])
		}
	}
	reportFabric(&tr, nil)
	reportOffload(&tr, nil)
	if got := tr.Problems(); len(got) != 1 || got[0].Code != "tun" {
		t.Errorf("%v", got)
	}
}

// A peer that is lost is a warning while it holds pods of this cluster; one that holds
// none, or only pods that it refused, is not.
func TestLostWithPodsIsAWarning(t *testing.T) {
	var tr health.Tracker
	reportCutOff(&tr, []offload.VirtualNode{
		{Name: "b", Target: "b", Kind: target.Peer, Pods: 3, Refused: map[string]string{"lab/x": "hostPath"}},
		{Name: "c", Target: "c", Kind: target.Peer, Pods: 1, Refused: map[string]string{"lab/y": "hostPath"}},
		{Name: "d", Target: "d", Kind: target.Peer, Ready: true, Pods: 1},
	})
	got := tr.Problems()
	if len(got) != 1 || got[0].Code != "peer-cut-off" || got[0].Subject != "b" || got[0].Severity != health.Warning ||
		!strings.HasPrefix(got[0].Text, "2 pods") || !strings.Contains(got[0].Cure, "rivulet unpeer b --force") {
		t.Errorf("%+v", got)
	}
	reportCutOff(&tr, nil)
	if got := tr.Problems(); len(got) != 0 {
		t.Errorf("%v", got)
	}
}

// Data that the datastore does not know are shown with commands that can be typed as they are.
func TestUnknownDataAreShown(t *testing.T) {
	var tr health.Tracker
	reportUnknown(&tr, map[string][]string{"b": {"b/lab/db-1a2b", "b/lab/web-3c4d"}})
	got := tr.Problems()
	if len(got) != 1 || got[0].Code != "volumes-unknown" || got[0].Subject != "b" || !strings.Contains(got[0].Text, "2 claims") ||
		!strings.HasSuffix(got[0].Cure, "rivulet volumes adopt b/lab/db-1a2b; or: rivulet volumes delete b/lab/db-1a2b") {
		t.Errorf("%+v", got)
	}
	reportUnknown(&tr, nil)
	if got := tr.Problems(); len(got) != 0 {
		t.Errorf("%v", got)
	}
}
