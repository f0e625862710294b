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
