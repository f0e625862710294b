package burst

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"

	"rivulet/fabric"
	"rivulet/fabric/changes"
	"rivulet/image/bundle"
	"rivulet/offload"
	"rivulet/offload/gatewaypod"
	"rivulet/offload/target/external"
	"rivulet/offload/target/external/rewrite"
)

// shellImage is a prefix for the name of an image into which the gateway's program is to be put; other images contain
// it.
const shellImage = "shell="

// Home has this cluster's inputs of a gateway. The functions return nil for what has not started.
type Home struct {
	Cluster string         // its ID
	API     netip.AddrPort // of its API server, for pods away
	Fabric  func() *fabric.Fabric
	Offload func() *offload.Offload
	Client  func() kubernetes.Interface
	Bundle  func() *bundle.Dir
	Log     *slog.Logger
}

// lateGateway is the gateway of a burst target, once its inputs exist: the fabric and offloading, which start after the
// list of targets is read.
type lateGateway struct {
	home       Home
	id         string // of the target
	settings   external.Settings
	credential external.Credential
	inner      atomic.Pointer[gatewaypod.Gateway]
}

// Gateway returns the gateway between home and the pods of an external target.
func (h Home) Gateway(id string, settings external.Settings, credential external.Credential) (Gateway, error) {
	return &lateGateway{home: h, id: id, settings: settings, credential: credential}, nil
}

var errNotYet = errors.New("this cluster itself is not up yet")

// Run implements Gateway.
func (b *lateGateway) Run(ctx context.Context) error {
	g := b.inner.Load()
	for g == nil {
		var err error
		if g, err = b.build(); err != nil && !errors.Is(err, errNotYet) {
			return err
		}
		if g == nil {
			if !changes.Wait(ctx, time.Second) {
				return ctx.Err()
			}
		}
	}
	b.inner.Store(g)
	return g.Run(ctx)
}

func (b *lateGateway) build() (*gatewaypod.Gateway, error) {
	fabric, offload, home, bundle := b.home.Fabric(), b.home.Offload(), b.home.Client(), b.home.Bundle()
	if fabric == nil || offload == nil || home == nil || bundle == nil {
		return nil, errNotYet
	}
	campus, err := b.credential.REST()
	if err != nil {
		return nil, err
	}
	cluster := b.home.Cluster
	image, shell := b.settings.Image, ""
	if name, ok := strings.CutPrefix(image, shellImage); ok {
		image, shell = "", name
	}
	return gatewaypod.New(gatewaypod.Config{
		Name: b.settings.Name, ClusterID: cluster, Campus: campus, Namespace: b.settings.Namespace,
		Labels: map[string]string{rewrite.HomeLabel: cluster}, Home: home,
		Reflects:    func(namespace string) bool { return offload.Reflects(namespace, b.id) },
		Changed:     offload.Namespaces().Changed,
		ServiceName: rewrite.Names{Cluster: cluster}.Away,
		HomeAPI:     b.home.API,
		Transport:   b.settings.Network, Fabric: fabric, Image: image, Shell: shell, Program: bundle.Gateway,
		Log: b.home.Log,
	})
}

// Home implements external.Network, as do Away and DNS.
func (b *lateGateway) Home(a netip.Addr) (netip.Addr, bool) {
	if g := b.inner.Load(); g != nil {
		return g.Home(a)
	}
	return netip.Addr{}, false
}

// Away translates an address of home.
func (b *lateGateway) Away(a netip.Addr) (netip.Addr, bool) {
	if g := b.inner.Load(); g != nil {
		return g.Away(a)
	}
	return netip.Addr{}, false
}

// DNS is the DNS configuration of the namespace's pods.
func (b *lateGateway) DNS(namespace string) (*corev1.PodDNSConfig, bool) {
	if g := b.inner.Load(); g != nil {
		return g.DNS(namespace)
	}
	return nil, false
}

// Status implements Gateway.
func (b *lateGateway) Status() any {
	if g := b.inner.Load(); g != nil {
		return g.Status()
	}
	return gatewaypod.Status{Reason: errNotYet.Error()}
}
