package pods

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"rivulet/appliance/engine/controlplane"
	"rivulet/fabric/peer"
	"rivulet/offload/policy"
	"rivulet/offload/target"
)

// told records what a Consumer would be told.
type told struct {
	specs []target.Spec
	ended []string
}

func (t *told) SetTargets(_ target.Kind, all []target.Spec, complete bool) {
	if t.specs = all; complete {
		panic("what the host does not list may run pods")
	}
}
func (t *told) End(ids ...string) { t.ended = append(t.ended, ids...) }

// TestATargetThatIsNotListedIsNotEnded: a target that the host has listed stays, without an answer, until the host says
// that it has ended; an earlier version never does. The host is told which ones there may be nodes for.
func TestATargetThatIsNotListedIsNotEnded(t *testing.T) {
	b, c := peer.Hosted("x", "b"), peer.Hosted("x", "c")
	var lists []controlplane.Further
	var known []string
	host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		known = r.URL.Query()[controlplane.Known]
		for _, l := range lists {
			_ = json.NewEncoder(w).Encode(l)
		}
	}))
	defer host.Close()
	old := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "c", Labels: map[string]string{policy.VirtualNodeLabel: string(c), policy.KindLabel: string(target.Peer)}},
		Spec: corev1.NodeSpec{ProviderID: "rivulet://" + string(c)}}
	home, fails := fake.NewClientset(old), true
	home.PrependReactor("list", "nodes", func(k8stesting.Action) (bool, runtime.Object, error) {
		return fails, nil, errors.New("the API server does not answer")
	})
	got := &told{}
	o := &others{pods: netip.MustParsePrefix("10.42.0.0/16"), targets: got, home: home, log: slog.New(slog.DiscardHandler), names: map[peer.ID]string{},
		dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", host.Listener.Addr().String())
		}}
	link := peer.Link{ID: b, Name: "b", PeerCIDR: o.pods, PeerMappedCIDR: netip.MustParsePrefix("240.3.0.0/16"), LocalMappedCIDR: netip.MustParsePrefix("240.5.0.0/16")}
	read := func(what string, want ...peer.ID) {
		t.Helper()
		if !o.read(t.Context(), make(chan struct{}, 1)) {
			t.Fatalf("%s: there is no list", what)
		}
		var have []peer.ID
		for _, s := range got.specs {
			have = append(have, peer.ID(s.ID))
		}
		if !slices.Equal(have, want) {
			t.Errorf("%s: targets %v, want %v", what, have, want)
		}
	}
	lists = []controlplane.Further{{Links: []peer.Link{link}}}
	if o.read(t.Context(), make(chan struct{}, 1)) {
		t.Error("a stream began that tells the host of no node")
	}
	fails = false
	read("listed", b)
	if !slices.Equal(known, []string{string(c)}) {
		t.Errorf("the host is told of %v, want the node of an earlier run", known)
	}
	listed := got.specs[0].Key
	lists = []controlplane.Further{{}}
	read("not listed", b)
	if s := got.specs[0]; s.Key == listed || s.Name != "b" || len(got.ended) > 0 {
		t.Errorf("%+v, ended %v", s, got.ended)
	}
	if _, err := got.specs[0].New("b", o.log); err != nil {
		t.Error(err)
	}
	lists = []controlplane.Further{{Links: []peer.Link{link}}, {Ended: []peer.ID{b, c}}}
	read("ended")
	if slices.Sort(known); len(known) != 2 || !slices.Equal(got.ended, []string{string(b), string(c)}) {
		t.Errorf("the host is told of %v; %v have ended", known, got.ended)
	}
	lists = []controlplane.Further{{Unlinked: []peer.Unlinked{{Link: peer.Link{ID: b, Name: "b"}, Why: strings.Repeat("x", 100<<10)}}}}
	read("allowed again, in a long list", b)
}
