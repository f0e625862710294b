package pods

import (
	"bufio"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"rivulet/appliance/engine/controlplane"
	"rivulet/fabric/changes"
	"rivulet/fabric/peer"
	"rivulet/offload/policy"
	"rivulet/offload/target"
	peertarget "rivulet/offload/target/peer"
)

// firstList is how long a start waits for the first list of further targets.
const firstList = 2 * time.Second

// others are the further targets: peers of the host that its owner allows.
type others struct {
	pods    netip.Prefix
	dial    dialer
	set     func(kind target.Kind, all []target.Spec, complete bool)
	log     *slog.Logger
	links   atomic.Pointer[[]peer.Link]
	changed changes.Signal
}

// follow follows them until ctx ends. It returns when the first list is there, or after firstList.
func (o *others) follow(ctx context.Context) {
	first := make(chan struct{})
	go func() {
		for pause := (changes.Backoff{First: 100 * time.Millisecond, Longest: 10 * time.Second}); ctx.Err() == nil; pause.Wait(ctx) {
			if o.read(ctx, first) {
				pause.Reset()
			}
		}
	}()
	select {
	case <-first:
	case <-ctx.Done():
	case <-time.After(firstList):
	}
}

// read reads one stream; got: there was a list.
func (o *others) read(ctx context.Context, first chan struct{}) (got bool) {
	client := &http.Client{Transport: &http.Transport{DialContext: o.dial, DisableKeepAlives: true}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://host"+controlplane.FurtherPath, nil)
	if err != nil {
		return false
	}
	resp, err := client.Do(req)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK { // a supervisor of an earlier version
		return false
	}
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		var now controlplane.Further
		if json.Unmarshal(lines.Bytes(), &now) != nil {
			return got
		}
		got = true
		o.links.Store(&now.Links)
		o.changed.Notify()
		var specs []target.Spec
		for _, l := range now.Links {
			specs = append(specs, o.spec(l, now.Control))
		}
		o.set(target.Peer, specs, true)
		select {
		case <-first:
		default:
			close(first)
		}
	}
	return got
}

func (o *others) all() []peer.Link {
	if all := o.links.Load(); all != nil {
		return *all
	}
	return nil
}

// has reports whether pods at one of them may have the address, as the host sees it.
func (o *others) has(a netip.Addr) bool {
	return slices.ContainsFunc(o.all(), func(l peer.Link) bool { return l.PeerMappedCIDR.Contains(a) })
}

// way are the inputs of a target; after a change it is made again.
type way struct{ theirs, remote, as netip.Prefix }

func (o *others) spec(l peer.Link, control netip.AddrPort) target.Spec {
	base := "http://host" + controlplane.AtPath + string(l.ID)
	return target.Spec{
		ID: string(l.ID), Name: l.Name, Short: l.ID.Short(), Kind: target.Peer, Control: control,
		Key: way{l.PeerCIDR, l.PeerMappedCIDR, l.LocalMappedCIDR},
		New: func(name string, log *slog.Logger) (target.Target, error) {
			t, err := peertarget.New(peertarget.Config{
				Name: name, Link: l, Links: o.all, LinksChanged: o.changed.Changed, PodCIDR: o.pods, Dial: o.dial,
				HTTP: &http.Client{Transport: &http.Transport{DialContext: o.dial}}, BaseURL: base, Log: log,
			})
			if err != nil {
				return nil, err
			}
			return peerOfHost{t}, nil
		},
	}
}

// peerOfHost is a further target. It has pods and what these need: only the host opens to a LAN and keeps data.
type peerOfHost struct{ *peertarget.Target }

// Holds is that of reflect.Holder.
func (peerOfHost) Holds(kind string) bool {
	return slices.Contains([]string{"Service", "EndpointSlice", policy.KindConfigMap, policy.KindSecret, policy.NetworkPolicyKind}, kind)
}
