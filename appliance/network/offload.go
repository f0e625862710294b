package network

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"rivulet/appliance/api"
	"rivulet/fabric/peer"
	"rivulet/offload"
	"rivulet/offload/consumer"
	"rivulet/offload/consumer/move"
	"rivulet/offload/consumer/volume"
)

// Volumes registers the routes of `rivulet move volume` and `rivulet volumes`; running is nil before offloading has started.
func Volumes(mux *http.ServeMux, running func() *offload.Offload) {
	mux.Handle("POST /v1/volumes/move", api.MoveRoute(func(ctx context.Context, want move.Request) (*move.Job, error) {
		if o := running(); o != nil {
			return o.Move(ctx, want)
		}
		return nil, consumer.ErrStarting
	}))
	volumes := func(pattern string, do func(ctx context.Context, c *volume.Controller, k api.KeptVolume) (any, error)) {
		mux.Handle(pattern, api.JSON(func(r *http.Request) (any, error) {
			var k api.KeptVolume
			if r.Method == http.MethodPost {
				if err := json.NewDecoder(r.Body).Decode(&k); err != nil {
					return nil, fmt.Errorf("the request is unreadable: %w; are the command and the running rivulet of the same version?", err)
				}
			}
			o := running()
			if o == nil {
				return nil, consumer.ErrStarting
			}
			c, err := o.Volumes()
			if err != nil {
				return nil, err
			}
			return do(r.Context(), c, k)
		}))
	}
	volumes("GET /v1/volumes", func(ctx context.Context, c *volume.Controller, _ api.KeptVolume) (any, error) { return c.View(ctx) })
	volumes("POST /v1/volumes/adopt", func(ctx context.Context, c *volume.Controller, k api.KeptVolume) (any, error) {
		return c.Adopt(ctx, k.Ref, k.As)
	})
	volumes("POST /v1/volumes/delete", func(ctx context.Context, c *volume.Controller, k api.KeptVolume) (any, error) {
		return nil, c.Discard(ctx, k.Ref)
	})
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
