package labtest

import (
	"strings"
	"testing"

	"rivulet/appliance/api"
	"rivulet/appliance/health"
	"rivulet/fabric/peer"
	"rivulet/offload"
)

// A count of virtual nodes is not enough: which they are, and what leads to them, is told apart, whatever they are called.
func TestUnknown(t *testing.T) {
	ids := map[string]peer.ID{"b": "bbbbbbbb", "c": "cccccccc"}
	status := func(change func(*api.Status)) api.Status {
		st := api.Status{Ready: true}
		for _, name := range []string{"b", "c"} {
			st.Peers = append(st.Peers, peer.View{Record: peer.Record{ID: ids[name], Name: "pi"}, State: peer.Connected, Path: "direct"})
			st.VirtualNodes = append(st.VirtualNodes, offload.VirtualNode{ID: string(ids[name]), Name: "pi-" + name, Ready: true})
		}
		change(&st)
		return st
	}
	for want, change := range map[string]func(*api.Status){
		"":                                    func(*api.Status) {},
		"not ready: engine":                   func(st *api.Status) { st.Ready, st.Waiting = false, "engine" },
		"c is no peer":                        func(st *api.Status) { st.Peers[1].ID = "mallory" },
		"b is Connecting: no answer":          func(st *api.Status) { st.Peers[0].State, st.Peers[0].Reason = peer.Connecting, "no answer" },
		"there is no path to c":               func(st *api.Status) { st.Peers[1].Path = "" },
		"the virtual node of b is not ready":  func(st *api.Status) { st.VirtualNodes[0].Ready = false },
		"the virtual node of c is not ready":  func(st *api.Status) { st.VirtualNodes[1].ID = "mallory" },
		"b is no peer; c is no peer":          func(st *api.Status) { st.Peers = nil },
		"b is no peer; there is no path to c": func(st *api.Status) { st.Peers = st.Peers[1:]; st.Peers[0].Path = "" },
	} {
		if got := unknown(status(change), ids); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestUnexpected(t *testing.T) {
	problem := func(k *health.Kind) health.Problem { return health.Problem{Kind: *k, Subject: "x", Text: "text"} }
	all := []health.Problem{problem(health.ClockNotSynchronized), problem(health.HostFirewall), problem(health.Tunnel)}
	if got := unexpected(all, []string{health.HostFirewall.Code}); got != "tunnel x: text" {
		t.Error(got)
	}
	if got := unexpected(all, nil); !strings.Contains(got, "host-firewall x: text; tunnel x: text") {
		t.Error(got)
	}
	if got := unexpected(all[:1], nil); got != "" {
		t.Error(got)
	}
}
