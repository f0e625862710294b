package network

import (
	"context"
	"errors"
	"net/http"

	"rivulet/appliance/api"
	"rivulet/fabric/peer"
	"rivulet/offload"
	"rivulet/offload/consumer/move"
)

// Move registers the route of `rivulet move volume`; running is nil before offloading has started.
func Move(mux *http.ServeMux, running func() *offload.Offload) {
	mux.Handle("POST /v1/volumes/move", api.MoveRoute(func(ctx context.Context, want move.Request) (*move.Job, error) {
		if o := running(); o != nil {
			return o.Move(ctx, want)
		}
		return nil, errors.New("no volume can be moved yet: rivulet is starting; see: rivulet status")
	}))
}

// PeersInUse are the peers with pods or data; unknown before offloading has started.
func PeersInUse(running func() *offload.Offload) func(context.Context) (map[peer.ID]bool, bool) {
	return func(ctx context.Context) (map[peer.ID]bool, bool) {
		if o := running(); o != nil {
			return o.PeersInUse(ctx)
		}
		return nil, false
	}
}

// Cordoned are the peers with a virtual node that takes no new pods; none before offloading has started.
func Cordoned(running func() *offload.Offload) func() map[peer.ID]bool {
	return func() map[peer.ID]bool {
		out := map[peer.ID]bool{}
		if o := running(); o != nil {
			for _, n := range o.VirtualNodes() {
				if n.Cordoned {
					out[peer.ID(n.ID)] = true
				}
			}
		}
		return out
	}
}
