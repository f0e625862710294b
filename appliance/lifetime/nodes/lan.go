package nodes

import (
	"context"
	"encoding/json"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"rivulet/appliance/addons/loadbalancer"
	"rivulet/fabric"
	"rivulet/fabric/netmon"
	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
)

// lanPath receives what a worker has on its LAN.
const lanPath = "/v1/node/lan"

// lanLife is how long a report counts; a worker repeats it every followEvery.
const lanLife = 3 * followEvery

// The bounds of a report: its size, bytes, and its addresses.
const maxReport, maxAddresses = 256 << 10, 32

// lanReport is a worker's report of itself: its addresses on LANs, and the ports there that its programs use.
type lanReport struct {
	Addresses []netip.Addr        `json:"addresses"`
	Ports     []loadbalancer.Port `json:"ports"`
	at        time.Time
}

// reportLAN tells the server what this worker has on its LAN; it is repeated.
func (d *Device) reportLAN(ctx context.Context, f *fabric.Fabric) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	client, base, err := f.Client(d.Server)
	if err == nil {
		addrs := loadbalancer.Addresses(d.LANs.LANs())
		err = rpc.Call(ctx, client, http.MethodPut, base+lanPath, lanReport{Addresses: addrs, Ports: loadbalancer.Listening(addrs)}, nil)
	}
	if err != nil && ctx.Err() == nil {
		d.Log.Warn("the server does not know this device's addresses on the LAN; it is tried again", "err", err)
	}
}

// receiveLAN stores a worker's report.
func (s *server) receiveLAN(w http.ResponseWriter, r *http.Request, worker peer.Record) {
	report := lanReport{at: time.Now()}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxReport)).Decode(&report); err != nil || len(report.Addresses) > maxAddresses {
		rpc.Fail(w, http.StatusBadRequest, &rpc.Error{Code: "bad-request", Message: "the report is unreadable", Cure: "run the same version of rivulet on both devices"})
		return
	}
	s.lanMu.Lock()
	before := s.lan[worker.ID]
	s.lan[worker.ID] = report
	s.lanMu.Unlock()
	if !slices.Equal(before.Addresses, report.Addresses) || !slices.Equal(before.Ports, report.Ports) {
		s.lanChanged.Notify()
	}
	rpc.Write(w, http.StatusOK, struct{}{})
}

// Balanced are the workers at whose addresses Services of type LoadBalancer are reached: those on a LAN of this device.
// An address counts only if the worker has it and its tunnel comes from there; so a worker can name no other machine's.
func (d *Device) Balanced() (out []loadbalancer.Node) {
	f := d.Fabric()
	if f == nil || d.Joined != nil {
		return nil
	}
	d.lanMu.Lock()
	defer d.lanMu.Unlock()
	known, lans := map[peer.ID]bool{}, d.LANs.LANs()
	for _, v := range f.Peers() {
		if v.Trust.How != peer.TrustWorker {
			continue
		}
		known[v.ID] = true
		if n, ok := d.lan[v.ID].balanced(v, lans, time.Now()); ok {
			out = append(out, n)
		}
	}
	for id := range d.lan {
		if !known[id] {
			delete(d.lan, id)
		}
	}
	return out
}

// balanced is the worker as one of Balanced.
func (r lanReport) balanced(v peer.View, lans netmon.LANs, now time.Time) (n loadbalancer.Node, ok bool) {
	path, direct := strings.CutPrefix(v.Path, "direct ")
	at, err := netip.ParseAddrPort(path)
	addr := at.Addr().Unmap()
	if !direct || err != nil || v.State != peer.Connected || now.Sub(r.at) > lanLife || !slices.Contains(r.Addresses, addr) || !onLAN(lans, addr) {
		return n, false
	}
	n = loadbalancer.Node{Name: v.Node, Addr: addr, Taken: map[loadbalancer.Port]bool{}}
	for _, p := range r.Ports {
		n.Taken[p] = true
	}
	return n, true
}

// BalancedChanged reports changes of Balanced.
func (d *Device) BalancedChanged() (<-chan struct{}, func()) { return d.lanChanged.Changed() }

// onLAN reports whether the address is on a link of this device.
func onLAN(lans netmon.LANs, a netip.Addr) bool {
	for _, lan := range lans {
		if slices.ContainsFunc(lan.Addrs, func(p netip.Prefix) bool { return p.Contains(a) }) {
			return true
		}
	}
	return false
}
