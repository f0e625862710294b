package appliance

import (
	"context"

	"rivulet/appliance/addons/peerobjects"
	"rivulet/appliance/api"
	"rivulet/appliance/lifecycle"
	"rivulet/fabric"
	"rivulet/fabric/peer"
)

// runPeers shows the peers as objects of the cluster's API.
func (s *System) runPeers(ctx context.Context, stage *lifecycle.Stage) error {
	cfg, err := s.engine.REST()
	if err != nil {
		return err
	}
	fab := s.made.get().fabric
	return peerobjects.Run(ctx, peerobjects.Config{
		API: cfg, Peers: func() []peerobjects.View { return s.peerViews(ctx, fab) }, Changed: fab.Changed, NodesChanged: s.nodes.Changed,
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

func (s *System) peerViews(ctx context.Context, fab *fabric.Fabric) []peerobjects.View {
	st := api.Status{Peers: fab.Peers()}
	if off := s.made.get().offload; off != nil {
		st.VirtualNodes = off.VirtualNodes()
	}
	tun := s.made.get().tunnel
	if tun != nil {
		ctx, cancel := context.WithTimeout(ctx, statusTimeout)
		defer cancel()
		if ts, err := tun.Status(ctx); err == nil {
			st.Tunnel = &ts
		}
	}
	var out []peerobjects.View
	for _, p := range st.PeerList() {
		v := peerobjects.View{View: p.View, Roles: peerobjects.Roles{Consume: !p.Roles.NoConsume, Provide: !p.Roles.NoProvide}, Cordoned: len(p.Cordoned) > 0}
		if p.Way != nil {
			v.Path = p.Way.Path
		}
		out = append(out, v)
	}
	return out
}
