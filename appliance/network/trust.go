package network

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"rivulet/appliance/api"
	"rivulet/appliance/config"
	"rivulet/appliance/state/bolt"
	"rivulet/appliance/state/identity"
	"rivulet/fabric"
	"rivulet/fabric/broker"
	"rivulet/fabric/keyring"
	"rivulet/fabric/pairing"
)

// Policy is the trust policy of the configuration. Unclear settings trust nobody.
func Policy(l config.Loaded) fabric.Policy {
	if why, _ := l.TrustClosed(); why != "" {
		return fabric.Policy{Mode: pairing.ModeClosed, Why: why}
	}
	set := l.Config.WithDefaults("").Trust
	return fabric.Policy{Mode: pairing.Mode(set.Mode), Secret: set.Secret.Reveal()}
}

// Brokers are the brokers of the configuration, which the fabric uses in a group.
func Brokers(l config.Loaded) (out []broker.Address) {
	for _, text := range l.Config.Trust.Broker {
		if a, err := broker.ParseAddress(text); err == nil { // else the configuration is not in force
			out = append(out, a)
		}
	}
	return out
}

// errNoFabric is for operator decisions before the fabric has started.
var errNoFabric = errors.New("the network between clusters has not started yet; see: rivulet status")

// Decisions serves operator decisions about other clusters. running returns nil before the fabric has started.
func Decisions(mux *http.ServeMux, running func() *fabric.Fabric) {
	say := func(pattern string, do func(ctx context.Context, f *fabric.Fabric, w api.Word) (any, error)) {
		mux.Handle(pattern, api.JSON(func(r *http.Request) (any, error) {
			var w api.Word
			if r.Method == http.MethodPost {
				if err := json.NewDecoder(r.Body).Decode(&w); err != nil {
					return nil, fmt.Errorf("the request is unreadable: %w; are the command and the running rivulet of the same version?", err)
				}
			}
			f := running()
			if f == nil {
				return nil, errNoFabric
			}
			return do(r.Context(), f, w)
		}))
	}
	say("POST /v1/peers/approve", func(ctx context.Context, f *fabric.Fabric, w api.Word) (any, error) { return f.Approve(ctx, w.Peer) })
	say("POST /v1/peers/deny", func(ctx context.Context, f *fabric.Fabric, w api.Word) (any, error) { return f.Deny(ctx, w.Peer) })
	say("POST /v1/peers/unpeer", func(ctx context.Context, f *fabric.Fabric, w api.Word) (any, error) {
		return f.Unpeer(ctx, w.Peer, fabric.Unpeer{Force: w.Force, Forget: w.Forget})
	})
	say("POST /v1/peers/forget-lan", func(ctx context.Context, f *fabric.Fabric, w api.Word) (any, error) {
		gone, stay, err := f.UnpeerLAN(ctx, w.Force)
		return api.Forgotten{Gone: gone, Stay: stay}, err
	})
	say("POST /v1/peers/settings", func(ctx context.Context, f *fabric.Fabric, w api.Word) (any, error) {
		return f.Set(ctx, w.Peer, w.Settings)
	})
	say("POST /v1/invites/accept", func(ctx context.Context, f *fabric.Fabric, w api.Word) (any, error) { return f.Accept(ctx, w.Invite) })
	say("POST /v1/invites/revoke", func(_ context.Context, f *fabric.Fabric, w api.Word) (any, error) {
		return f.Revoke(w.Invite)
	})
	say("POST /v1/invites", func(_ context.Context, f *fabric.Fabric, _ api.Word) (any, error) {
		i, code, err := f.Invite()
		return api.Invited{Invite: i, Code: code.String(), URL: code.URL()}, err
	})
	say("GET /v1/invites", func(_ context.Context, f *fabric.Fabric, _ api.Word) (any, error) {
		return api.Invites{Invites: f.Invites(), Now: time.Now()}, nil
	})
	say("POST /v1/keys/rotate", func(ctx context.Context, f *fabric.Fabric, _ api.Word) (any, error) {
		ctx, cancel := context.WithTimeout(ctx, 8*time.Second)
		defer cancel()
		return struct{}{}, f.Rotate(ctx)
	})
	say("POST /v1/leave", func(ctx context.Context, f *fabric.Fabric, _ api.Word) (any, error) {
		return api.Left{Told: f.Leave(ctx, true)}, nil
	})
}

// keyLife is how long a WireGuard key is used.
const keyLife = 30 * 24 * time.Hour

// Rotation manages the change of the WireGuard key. The age of a key without a date counts from its first use here.
func Rotation(st *bolt.Store, id identity.Identity, log *slog.Logger) keyring.Rotation {
	changed := id.Changed
	if changed.IsZero() {
		changed = time.Now()
		if err := identity.SaveWireGuard(st, id.WireGuard, id.Next, changed); err != nil {
			log.Warn("when the WireGuard key was made cannot be kept", "err", err)
		}
	}
	return keyring.Rotation{Every: keyLife, Changed: changed, Next: id.Next, Save: func(current, next string, changed time.Time) error {
		return identity.SaveWireGuard(st, current, next, changed)
	}}
}
