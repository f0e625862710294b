package network

import (
	"context"
	"errors"
	"net/http"

	"rivulet/appliance/api"
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
