package pods

import (
	"bufio"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"rivulet/appliance/engine/controlplane"
	"rivulet/fabric/changes"
	"rivulet/fabric/peer"
	virtual "rivulet/offload/consumer/node"
	"rivulet/offload/foreign"
	"rivulet/offload/policy"
	"rivulet/offload/target"
	peertarget "rivulet/offload/target/peer"
)

// firstList is how long a start waits for the first list of further targets.
const firstList = 2 * time.Second

// notListed is why a target does not answer that the host has listed before.
const notListed = "the device of this virtual cluster does not list it any more, and has not said that it has ended: what runs there may go on; its owner makes it a peer again, or gives it up: rivulet vcluster set NAME --targets none"

// targets are a Consumer's; see there.
type targets interface {
	SetTargets(kind target.Kind, all []target.Spec, complete bool)
	End(ids ...string)
}

// others are the further targets: peers of the host that its owner allows. One that the host does not list any more stays,
// without an answer, until the host says that it has ended.
type others struct {
	pods    netip.Prefix
	dial    dialer
	home    kubernetes.Interface
	targets targets
	log     *slog.Logger
	names   map[peer.ID]string // of those that were listed since the start, and have not ended; used by follow alone
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
	client := foreign.Client(&http.Client{Transport: &http.Transport{DialContext: o.dial, DisableKeepAlives: true}}, foreign.Origin{Name: "the host", Cure: "rivulet vcluster list"})
	known, err := o.known(ctx)
	if err != nil {
		o.log.Warn("the host cannot be asked which further targets there are", "err", err)
		return false
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://host"+controlplane.FurtherPath+"?"+known, nil)
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
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, longestList)
	for lines.Scan() {
		var now controlplane.Further
		if json.Unmarshal(lines.Bytes(), &now) != nil {
			return got
		}
		got = true
		o.links.Store(&now.Links)
		o.changed.Notify()
		o.set(now)
		select {
		case <-first:
		default:
			close(first)
		}
	}
	return got
}

// longestList bounds the line of a list, bytes.
const longestList = 4 << 20

// known are the parameters that name the targets with a node, of earlier runs, too.
func (o *others) known(ctx context.Context) (string, error) {
	out := url.Values{}
	for id := range o.names {
		out.Add(controlplane.Known, string(id))
	}
	nodes, err := o.home.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: policy.KindLabel + "=" + string(target.Peer)})
	if err != nil { // a stream without them would not say that they have ended
		return "", err
	}
	for i := range nodes.Items {
		if id := virtual.Of(&nodes.Items[i]); id != "" && o.names[peer.ID(id)] == "" {
			out.Add(controlplane.Known, id)
		}
	}
	return out.Encode(), nil
}

// set replaces the targets by those of a list.
func (o *others) set(now controlplane.Further) {
	for _, id := range now.Ended {
		delete(o.names, id)
		o.targets.End(string(id))
	}
	var specs []target.Spec
	listed := map[peer.ID]bool{}
	for _, l := range now.Links {
		o.names[l.ID], listed[l.ID] = l.Name, true
		specs = append(specs, o.spec(l, now.Control, ""))
	}
	for _, u := range now.Unlinked {
		o.names[u.ID], listed[u.ID] = u.Name, true
		specs = append(specs, o.spec(u.Link, now.Control, u.Why))
	}
	for id, name := range o.names {
		if !listed[id] {
			specs = append(specs, o.spec(peer.Link{ID: id, Name: name}, now.Control, notListed))
		}
	}
	o.targets.SetTargets(target.Peer, specs, false)
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
type way struct {
	theirs, remote, as netip.Prefix
	why                string // there is no tunnel
}

func (o *others) spec(l peer.Link, control netip.AddrPort, why string) target.Spec {
	base := "http://host" + controlplane.AtPath + string(l.ID)
	return target.Spec{
		ID: string(l.ID), Name: l.Name, Short: l.ID.Short(), Kind: target.Peer, Control: control,
		Key: way{l.PeerCIDR, l.PeerMappedCIDR, l.LocalMappedCIDR, why},
		New: func(name string, log *slog.Logger) (target.Target, error) {
			if why != "" {
				t, err := peertarget.Silent(l, name, why, o.pods, log)
				if err != nil {
					return nil, err
				}
				return peerOfHost{t}, nil
			}
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
