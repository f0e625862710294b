package network

import (
	"net/http"

	"rivulet/appliance/addons/peerobjects"
	"rivulet/appliance/api"
	"rivulet/fabric"
	"rivulet/offload/nodeagent/tenantimages"
)

// Home finds the home of a consumer by its tag in the names of images; it returns none while on is false. running
// returns nil before the fabric has started.
func Home(running func() *fabric.Fabric, on func() bool) func(tag string) (*http.Client, string, bool) {
	return func(tag string) (*http.Client, string, bool) {
		f := running()
		if f == nil || !on() {
			return nil, "", false
		}
		for _, l := range f.Links() {
			if tenantimages.Tag(string(l.ID)) != tag {
				continue
			}
			client, base, err := f.Client(l.ID)
			return client, base, err == nil
		}
		return nil, "", false
	}
}

// PeerObjects converts peers for the objects of the cluster's API.
func PeerObjects(peers []api.Peer) (out []peerobjects.View) {
	for _, p := range peers {
		v := peerobjects.View{View: p.View, Cordoned: len(p.Cordoned) > 0}
		if p.Way != nil {
			v.Path = p.Way.Path
		}
		out = append(out, v)
	}
	return out
}
