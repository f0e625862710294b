package nodeagent

import (
	"encoding/json"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"rivulet/fabric/changes"
	"rivulet/fabric/peer"
	"rivulet/offload/elsewhere"
)

type known struct {
	links []peer.Link
	of    map[peer.ID]Known
	changes.Signal
}

func (k *known) Links() []peer.Link   { return k.links }
func (k *known) Of(id peer.ID) Known  { return k.of[id] }
func addr(text string) netip.Addr     { return netip.MustParseAddr(text) }
func prefix(text string) netip.Prefix { return netip.MustParsePrefix(text) }
func told(changed <-chan struct{}) bool {
	select {
	case <-changed:
		return true
	default:
		return false
	}
}

// A worker knows of consumers what its server knows, and nothing before it has been told.
func TestAView(t *testing.T) {
	server := &known{
		links: []peer.Link{{ID: "alice", Name: "alice's", Addr: netip.MustParseAddrPort("241.0.255.1:7442"), PeerCIDR: prefix("10.42.0.0/16"), PeerMappedCIDR: prefix("241.0.0.0/16"), LocalMappedCIDR: prefix("242.0.0.0/16"), RTT: time.Millisecond}},
		of: map[peer.ID]Known{"alice": {
			Confirmed: []netip.Addr{addr("241.1.0.5")}, Others: []netip.Addr{addr("10.42.0.9")}, API: netip.MustParseAddrPort("100.127.0.1:17000"),
			Under: elsewhere.Under{Prefixes: map[peer.ID]netip.Prefix{"bob": prefix("243.0.0.0/16")}, Relayed: map[netip.Addr]netip.Addr{addr("243.0.0.7"): addr("10.42.9.7")}},
		}},
	}
	raw, err := json.Marshal(Show(server, map[peer.ID]bool{"alice": true, "gone": true}))
	if err != nil {
		t.Fatal(err)
	}
	var v View
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatal(err)
	}
	var worker Received
	changed, stop := worker.Changed()
	defer stop()
	if len(worker.Links()) > 0 || !reflect.DeepEqual(worker.Of("alice"), Known{}) {
		t.Error("it knows something before")
	}
	worker.Set(v)
	if !told(changed) || !reflect.DeepEqual(worker.Of("alice"), server.of["alice"]) {
		t.Errorf("%+v, want %+v", worker.Of("alice"), server.of["alice"])
	}
	want := server.links[0]
	want.RTT = 0 // it changes all the time
	if got := worker.Links(); len(got) != 1 || !reflect.DeepEqual(got[0], want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	if worker.Set(v); told(changed) {
		t.Error("the same View is told as a change")
	}
}
