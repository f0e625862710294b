package provider

import (
	"log/slog"
	"maps"
	"net/http"
	"testing"

	"k8s.io/client-go/rest"

	"rivulet/fabric/peer"
	"rivulet/offload/offer"
	"rivulet/offload/provider/tenancy"
)

// reading are the virtual clusters of this device, one of which cannot be read unless known.
type reading struct {
	Hosted
	known bool
}

func (r reading) Consumers() map[peer.ID]string {
	return map[peer.ID]string{"ann": "db-ann", "test": "test"}
}
func (r reading) Members() map[peer.ID]offer.Member {
	return map[peer.ID]offer.Member{"ann": {Groups: []offer.Group{{Name: "default/db"}, {Name: "default/informatics"}}}, "test": {}, "leaves": {}}
}
func (r reading) Identities() (map[peer.ID]bool, bool)        { return map[peer.ID]bool{"ann": true}, r.known }
func (reading) Handle(string, http.Handler)                   {}
func (reading) PeerID(*http.Request) (id peer.ID, isOne bool) { return "", false }

// TestWhatCannotBeReadIsNoStranger: while the record of a virtual cluster cannot be read, none that is no peer is ended for
// its silence. A peer without a tunnel is a peer.
func TestWhatCannotBeReadIsNoStranger(t *testing.T) {
	for _, known := range []bool{true, false} {
		p, err := New(Config{Peers: twoHosts{http.NewServeMux()}, Hosted: reading{known: known}, Config: tenancy.Config{
			Local: &rest.Config{Host: "https://127.0.0.1:1"}, Log: slog.New(slog.DiscardHandler),
			PeerID: func(*http.Request) (peer.ID, bool) { return "", false },
		}})
		if err != nil {
			t.Fatal(err)
		}
		for id, want := range map[peer.ID]struct{ stays, isPeer bool }{"ann": {true, true}, "ben": {!known, false}, hostA: {false, true}, "keyless": {false, true}} {
			if p.stays(id) != want.stays || p.isPeer(id) != want.isPeer {
				t.Errorf("all are read: %v; %s stays %v, is a peer %v, want %+v", known, id, p.stays(id), p.isPeer(id), want)
			}
		}
		if got, want := p.courses(), (map[peer.ID]string{"ann": "default/db", "test": ""}); !maps.Equal(got, want) {
			t.Errorf("the virtual clusters of this device are in %v, want %v", got, want)
		}
	}
}
