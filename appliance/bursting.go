package appliance

import (
	"context"
	"net/netip"

	"k8s.io/client-go/kubernetes"

	"rivulet/appliance/burst"
	"rivulet/appliance/lifecycle"
	"rivulet/fabric"
	"rivulet/image/bundle"
	"rivulet/offload"
)

const cBurst = "burst"

// newBurst reads the list of burst targets.
func (s *System) newBurst() (*burst.Manager, error) {
	home := burst.Home{
		Cluster: string(s.id.ID()), API: netip.AddrPortFrom(tunnelAddress, controlPort), Log: s.cfg.Log.With("component", cBurst),
		Now: func() (*fabric.Fabric, *offload.Offload, kubernetes.Interface, bundle.Dir) {
			made := s.made.get()
			return made.fabric, made.offload, s.engine.Client(), made.bundle
		},
	}
	return burst.New(burst.Config{Store: s.store, Key: s.id.Key, Cluster: string(s.id.ID()), Health: &s.health, Gateway: home.Gateway, Log: home.Log})
}

func (s *System) runBurst(ctx context.Context, stage *lifecycle.Stage) error {
	s.burst.Configure(s.settings.Now().Config.Burst)
	stage.Ready()
	return s.burst.Run(ctx)
}
