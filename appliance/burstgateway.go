package appliance

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"

	"rivulet/appliance/burst"
	"rivulet/offload/gateway"
	target "rivulet/offload/target/burst"
	"rivulet/offload/target/burst/lens"
)

// shellImage before the name of an image says that the gateway's program is to be put
// into it; an image without it has the program.
const shellImage = "shell="

// burstGateway is the gateway of a burst target, once there is what it needs: the
// fabric, and offloading, which come up after the list of targets is read.
type burstGateway struct {
	s          *System
	settings   target.Settings
	credential target.Credential
	inner      atomic.Pointer[gateway.Gateway]
}

// newBurstGateway makes the way between home and the pods of a burst target.
func (s *System) newBurstGateway(settings target.Settings, credential target.Credential) (burst.Gateway, error) {
	return &burstGateway{s: s, settings: settings, credential: credential}, nil
}

var errNotYet = errors.New("this cluster itself is not up yet")

// Run implements burst.Gateway.
func (b *burstGateway) Run(ctx context.Context) error {
	g := b.inner.Load()
	for g == nil {
		var err error
		if g, err = b.build(); err != nil && !errors.Is(err, errNotYet) {
			return err
		}
		if g == nil {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(time.Second):
			}
		}
	}
	b.inner.Store(g)
	return g.Run(ctx)
}

func (b *burstGateway) build() (*gateway.Gateway, error) {
	s := b.s
	s.mu.Lock()
	fabric, offload, bundle := s.fabric, s.offload, s.bundle
	s.mu.Unlock()
	home := s.kube()
	if fabric == nil || offload == nil || home == nil {
		return nil, errNotYet
	}
	campus, err := b.credential.REST()
	if err != nil {
		return nil, err
	}
	cluster := string(s.id.ID())
	id := target.ID(b.credential.Server, b.settings.Namespace)
	image, shell := b.settings.Image, ""
	if name, ok := strings.CutPrefix(image, shellImage); ok {
		image, shell = "", name
	}
	return gateway.New(gateway.Config{
		Name: b.settings.Name, ClusterID: cluster, Campus: campus, Namespace: b.settings.Namespace,
		Labels: map[string]string{lens.HomeLabel: cluster}, Home: home,
		Offloaded:   func(namespace string) bool { return offload.Offloaded(namespace, id) },
		Changed:     offload.NamespacesChanged,
		ServiceName: lens.Names{Cluster: cluster}.Away,
		HomeAPI:     netip.AddrPortFrom(tunnelAddress, controlPort),
		Transport:   b.settings.Network, Fabric: fabric, Image: image, Shell: shell, Program: bundle.Gateway,
		Log: s.cfg.Log.With("component", cBurst),
	})
}

// Home implements burst.Network, as Away and DNS do.
func (b *burstGateway) Home(a netip.Addr) (netip.Addr, bool) {
	if g := b.inner.Load(); g != nil {
		return g.Home(a)
	}
	return netip.Addr{}, false
}

// Away translates an address of home.
func (b *burstGateway) Away(a netip.Addr) (netip.Addr, bool) {
	if g := b.inner.Load(); g != nil {
		return g.Away(a)
	}
	return netip.Addr{}, false
}

// DNS is what pods of the namespace ask for names.
func (b *burstGateway) DNS(namespace string) (*corev1.PodDNSConfig, bool) {
	if g := b.inner.Load(); g != nil {
		return g.DNS(namespace)
	}
	return nil, false
}

// Status implements burst.Gateway.
func (b *burstGateway) Status() any {
	if g := b.inner.Load(); g != nil {
		return g.Status()
	}
	return gateway.Status{Reason: errNotYet.Error()}
}
