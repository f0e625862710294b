package appliance

import (
	"context"

	"rivulet/appliance/api"
	"rivulet/appliance/engine"
	"rivulet/appliance/lifecycle"
	"rivulet/appliance/peers"
	"rivulet/fabric"
	"rivulet/fabric/peer"
)

const cPeers = "peers"

// runPeers shows the peers as objects of the cluster's API.
func (s *System) runPeers(ctx context.Context, stage *lifecycle.Stage) error {
	cfg, err := engine.RESTConfig(s.engine.Kubeconfig())
	if err != nil {
		return err
	}
	s.mu.Lock()
	fab := s.fabric
	s.mu.Unlock()
	return peers.Run(ctx, peers.Config{
		API: cfg, Peers: func() []peers.View { return s.peerViews(ctx, fab) }, Changed: fab.Changed,
		Unpeer: func(ctx context.Context, id peer.ID, force bool) error {
			_, err := fab.Unpeer(ctx, string(id), fabric.Unpeer{Force: force})
			return err
		},
		SetRoles: func(ctx context.Context, id peer.ID, consume, provide *bool) error {
			_, err := fab.SetRoles(ctx, string(id), consume, provide)
			return err
		},
		Peer: func(ctx context.Context, id peer.ID, address string) (peer.ID, error) {
			v, err := fab.ApproveAt(ctx, id, address)
			return v.ID, err
		},
		Withdraw: func(_ context.Context, id peer.ID) error { return fab.Withdraw(id) },
		Log:      s.cfg.Log.With("component", cPeers),
	}, stage.Ready)
}

func (s *System) peerViews(ctx context.Context, fab *fabric.Fabric) []peers.View {
	st := api.Status{Peers: fab.Peers()}
	s.mu.Lock()
	tun := s.tunnel
	s.mu.Unlock()
	if tun != nil {
		ctx, cancel := context.WithTimeout(ctx, statusTimeout)
		defer cancel()
		if ts, err := tun.Status(ctx); err == nil {
			st.Tunnel = &ts
		}
	}
	var out []peers.View
	for _, p := range st.PeerList() {
		v := peers.View{View: p.View, Roles: peers.Roles{Consume: !p.Roles.NoConsume, Provide: !p.Roles.NoProvide}}
		if p.Way != nil {
			v.Path = p.Way.Path
		}
		out = append(out, v)
	}
	return out
}
