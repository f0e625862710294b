package nodes

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"rivulet/appliance/api"
	"rivulet/appliance/config/fixed"
	"rivulet/appliance/health"
	"rivulet/appliance/lifecycle"
	"rivulet/appliance/lifetime/nodes/lease"
	"rivulet/appliance/lifetime/nodes/standby"
	"rivulet/appliance/lifetime/upgrade"
	"rivulet/appliance/state/durable"
	"rivulet/appliance/state/paths"
	"rivulet/fabric"
	"rivulet/fabric/changes"
	"rivulet/fabric/cure"
	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
	"rivulet/fabric/tunnel"
)

// A worker may be a standby: it becomes the server when the lease of the gateway in the cluster's database is not
// renewed (docs/design/nodes.md#standby-servers).

const (
	// copyPath gives a standby what it needs to be the server, when that differs from what it has.
	copyPath = "/v1/node/copy"
	// standbyPath makes a worker a standby; DELETE ends that.
	standbyPath = "/v1/node/standby"
)

// Failover are the parts of a Device for standbys. All fields are required.
type Failover struct {
	Store standby.Store
	// Settings are those of the cluster, as text; Database is the address of its SQL database, empty for a file.
	Settings, Database func() string
	// Tunnel is the tunnel's process, which gets the deadline.
	Tunnel func() *tunnel.Controller

	copy    atomic.Pointer[standby.Copy] // of a standby
	release chan chan error              // of a server: to end its lease

	hadMu sync.Mutex
	had   map[peer.ID]time.Time // of a server: when a standby had its present state
}

// current is how long a standby may be without the server's present state; it gets a change within lease.Every.
const current = 3 * lease.Every

// Ready reports whether a standby could be the server now.
func (f *Failover) Ready(id peer.ID) bool {
	f.hadMu.Lock()
	defer f.hadMu.Unlock()
	return time.Since(f.had[id]) < current
}

// failover is the Device in this respect.
type failover struct{ *Device }

// reportStandbys reports that no standby could be the server now, from two minutes after the start on.
func (s *server) reportStandbys() {
	if time.Since(s.begun) < standbyPatience {
		return
	}
	var err error
	if names := s.behind(s.fabric.Nodes()); len(names) > 0 {
		err = cure.Errorf("%s has not this device's present state, so it does not take over; see that it is on, and that this device reaches it: rivulet nodes", strings.Join(names, ", "))
	}
	s.Health.Report(health.StandbyBehind, err)
}

// behind are the standbys if none of them could be the server now.
func (s *server) behind(nodes []peer.Record) (names []string) {
	for _, r := range nodes {
		switch {
		case !r.Standby || r.Node == s.NodeName:
		case s.Ready(r.ID):
			return nil
		default:
			names = append(names, r.Node)
		}
	}
	return names
}

// standbyPatience is how long a standby may take after a start of the server.
const standbyPatience = 2 * time.Minute

// own is this server's Copy.
func (d failover) own() (standby.Copy, error) { return standby.Take(d.State, d.Store, d.Settings()) }

// giveCopy answers a standby when the copy differs from what it has.
func (s *server) giveCopy(w http.ResponseWriter, r *http.Request, worker peer.Record) {
	for end := time.Now().Add(viewEvery); ; {
		if !s.standby(worker.ID) { // it may have ended since the request
			rpc.Fail(w, http.StatusForbidden, &rpc.Error{Code: "no-standby", Message: "this node is no standby of " + s.Name(), Cure: "on the server: rivulet nodes standby " + worker.Node})
			return
		}
		c, err := failover{s.Device}.own()
		if err != nil {
			s.Log.Warn("a standby gets no copy", "node", worker.Node, "err", err)
			rpc.Fail(w, http.StatusServiceUnavailable, &rpc.Error{Code: "busy", Message: s.Name() + " cannot read its state now", Cure: "it is tried again"})
			return
		}
		if tag := c.Hash(); tag != r.Header.Get("If-None-Match") {
			w.Header().Set("ETag", tag)
			rpc.Write(w, http.StatusOK, c)
			return
		}
		s.hadMu.Lock()
		s.had[worker.ID] = time.Now()
		s.hadMu.Unlock()
		if time.Now().After(end) {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		if !changes.Wait(r.Context(), lease.Every) {
			return
		}
	}
}

// fetchCopy requests the server's Copy, and stores it when it has another tag.
func (d failover) fetchCopy(ctx context.Context, f *fabric.Fabric, tag string) (c standby.Copy, now string, err error) {
	now, err = d.changed(ctx, f, copyPath, tag, &c)
	if err != nil || now == tag {
		return c, now, err
	}
	if err = c.Check(); err == nil {
		err = c.Save(d.State)
	}
	return c, now, err
}

// followCopy keeps a standby's copy equal to the server's state, until ctx ends.
func (d failover) followCopy(ctx context.Context, f *fabric.Fabric) {
	pause := changes.Backoff{First: time.Second, Longest: 10 * time.Second}
	tag := ""
	for ctx.Err() == nil {
		c, now, err := d.fetchCopy(ctx, f, tag)
		if err != nil {
			changes.Wait(ctx, pause.Next())
			continue
		}
		pause.Reset()
		if now == tag {
			continue
		}
		tag = now
		if was := d.copy.Swap(&c); was != nil && was.Settings != c.Settings {
			d.Restart() // the database may be another one
		}
	}
}

// serveStandby lets the server make this worker a standby.
func (d failover) serveStandby(f *fabric.Fabric) {
	answer := func(w http.ResponseWriter, was bool, err error) {
		if err != nil {
			d.Log.Warn("this node does not become a standby", "err", err)
			rpc.Fail(w, http.StatusServiceUnavailable, &rpc.Error{Code: "busy", Message: err.Error(), Cure: "see rivulet status there, and try it again"})
			return
		}
		rpc.Write(w, http.StatusOK, struct{}{})
		if was != (d.Copy != nil) {
			time.AfterFunc(restartAfter, d.Restart)
		}
	}
	f.Handle("POST "+standbyPath, d.forServer(func(w http.ResponseWriter, r *http.Request) {
		err := offTrial()
		if err == nil {
			_, _, err = d.fetchCopy(r.Context(), f, "")
		}
		answer(w, true, err)
	}))
	f.Handle("DELETE "+standbyPath, d.forServer(func(w http.ResponseWriter, _ *http.Request) {
		err := offTrial()
		if err == nil {
			err = durable.Remove(paths.Standby(d.State))
		}
		answer(w, false, err)
	}))
}

// standby makes a worker a standby, or ends that.
func (d failover) standby(ctx context.Context, f *fabric.Fabric, w api.NodeWord) (any, error) {
	if err := d.onServer(); err != nil {
		return nil, err
	}
	answer := api.JoinedCluster{Cluster: d.Name(), Node: w.Node}
	var worker peer.Record
	for _, r := range f.Nodes() {
		if r.Node == w.Node && w.Node != d.NodeName {
			worker = r
		}
	}
	switch clusters, err := os.ReadDir(paths.VirtualClusters(d.State)); {
	case worker.ID == "":
		return nil, cure.Errorf("no worker of this cluster is called %q; see: rivulet nodes", w.Node)
	case w.Off:
		return answer, errors.Join(f.SetStandby(worker.ID, false), notify(ctx, f, worker, http.MethodDelete))
	case d.Database() == "":
		return nil, cure.Errorf("the objects of this cluster are in a file of this device, which another one cannot have; a cluster with standbys has its objects in an SQL database from its beginning: datastore in the configuration")
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, err
	case len(clusters) > 0:
		return nil, cure.Errorf("this device has %d virtual clusters, which no other device could go on with; delete them first: rivulet vcluster list", len(clusters))
	}
	if err := f.SetStandby(worker.ID, true); err != nil {
		return nil, err
	}
	if err := notify(ctx, f, worker, http.MethodPost); err != nil {
		return nil, errors.Join(err, f.SetStandby(worker.ID, worker.Standby))
	}
	if d.Serving != nil {
		return answer, nil
	}
	// The first standby: from the next start on this device is the server while it has the lease.
	back, err := json.Marshal(Joined{Info: Info{Server: d.ID, Cluster: d.Name(), Address: d.Address, Ranges: fixed.Ranges{Pods: fixed.PodCIDR, Services: fixed.ServiceCIDR, Nodes: fixed.NodeRange}, Block: d.Block(), Kubernetes: d.Kubernetes, Node: d.NodeName}})
	if err != nil {
		return nil, err
	}
	if err := (standby.Gateway{Step: standby.StepBegin, New: true, Worker: back}).Save(d.State); err != nil {
		return nil, err
	}
	time.AfterFunc(restartAfter, d.Restart)
	return answer, nil
}

// hand makes a standby the server now.
func (d failover) hand(ctx context.Context, f *fabric.Fabric, _ api.NodeWord) (any, error) {
	if err := d.onServer(); err != nil {
		return nil, err
	}
	to := ""
	for _, v := range f.Peers() {
		if v.Standby && v.State == peer.Connected && d.Ready(v.ID) {
			to = v.Node
		}
	}
	if to == "" || d.Serving == nil {
		return nil, cure.Errorf("no standby of this cluster is connected and has this device's present state; see: rivulet nodes")
	}
	done := make(chan error, 1)
	select {
	case d.release <- done:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	err := <-done
	time.AfterFunc(restartAfter, d.Restart) // after an error, too: the standby goes on when the lease has expired
	return api.JoinedCluster{Cluster: d.Name(), Node: to}, err
}

// stepDown has the next start make this server a worker. It keeps the cluster's settings as the last note has them, so that
// it may be the server again if nothing has changed.
func (d failover) stepDown() error {
	g := *d.Serving
	g.Step, g.Settings = standby.StepFollow, d.Settings()
	return g.Save(d.State)
}

// end gives up the lease, after lease.Run has returned: the tunnel ends first.
func (d failover) end(ctx context.Context) error {
	if err := d.Tunnel().Stop(ctx); err != nil {
		return err
	}
	if err := d.stepDown(); err != nil {
		return err
	}
	return lease.Release(ctx, d.Database(), d.NodeName)
}

// beginLease makes the lease if this device has never had it. It returns an error only when ctx has ended.
func (d failover) beginLease(ctx context.Context, report func(error)) error {
	for begun := !d.Serving.New; !begun; {
		own, err := d.own()
		if err == nil {
			err = lease.Begin(ctx, d.Database(), d.NodeName, own.Tag())
		}
		if err == nil {
			g := *d.Serving
			g.New = false
			err = g.Save(d.State)
		}
		begun = err == nil
		if report(err); err != nil && !changes.Wait(ctx, lease.Every) {
			return ctx.Err()
		}
	}
	return nil
}

// notify requests of a worker that it becomes a standby, or ceases to be one.
func notify(ctx context.Context, f *fabric.Fabric, worker peer.Record, method string) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	client, base, err := f.Client(worker.ID)
	if err == nil {
		err = rpc.Call(ctx, client, method, base+standbyPath, struct{}{}, nil)
	}
	if err != nil {
		return cure.Errorf("%s does not answer: %w; see that it is on, and try it again", worker.Node, err)
	}
	return nil
}

// RunLease is the component "lease": of the server of a cluster with standbys, ready while the device is the gateway,
// and of a standby.
func (d *Device) RunLease(life context.Context, stage *lifecycle.Stage) error {
	stage.Waiting("for the lease of the gateway in the database")
	ctx, cancel := context.WithCancel(life)
	defer cancel()
	expiry := time.AfterFunc(time.Hour, func() {
		d.Log.Error("the lease of the gateway was not renewed in time; this device is not the gateway until it has it again")
		d.Restart()
	})
	expiry.Stop()
	defer expiry.Stop()
	ready := sync.OnceFunc(stage.Ready)
	cfg := lease.Config{
		Address: d.Database(), Node: d.NodeName, Log: d.Log, Pinned: upgrade.OnTrial(),
		Report: func(err error) { d.Health.Report(health.DatastoreUnusable, err) },
	}
	if f := (failover{d}); d.Joined == nil {
		if err := f.beginLease(ctx, cfg.Report); err != nil {
			return err
		}
		cfg.Lead = func(lease.Holder) bool { return true }
		cfg.Note = func() string {
			c, err := f.own()
			if err != nil {
				return "" // no standby has this one
			}
			return c.Tag()
		}
		cfg.Held = func(until time.Duration) {
			configured, err := d.Tunnel().Deadline(ctx, until)
			if err != nil {
				d.Log.Warn("the tunnel has no new deadline", "err", err)
				return
			}
			if f := d.Fabric(); f != nil && !configured {
				f.Reapply()
			}
			expiry.Reset(until - changes.BootTime())
			ready()
		}
		cfg.Other = func(h lease.Holder) {
			d.Log.Warn("another device is the server of this cluster; this one becomes a worker", "server", h.Node)
			if err := f.stepDown(); err != nil {
				d.Log.Error("this device cannot become a worker", "err", err)
				return
			}
			d.Restart()
		}
	} else {
		stage.Ready()
		cfg.Lead = func(h lease.Holder) bool { return !upgrade.OnTrial() && d.copy.Load().Tag() == h.Note }
		cfg.Note = func() string { return d.copy.Load().Tag() }
		cfg.Other = func(lease.Holder) {}
		cfg.Held = func(time.Duration) {
			j := *d.Joined
			j.Step = stepLead
			if err := j.save(d.State); err != nil {
				d.Log.Error("this device cannot become the server", "err", err)
				return
			}
			d.Log.Warn("the server does not renew its lease; this device becomes the server", "cluster", j.Cluster)
			cancel() // the next start renews it
			d.Restart()
		}
	}
	ended := make(chan error, 1)
	go func() { ended <- lease.Run(ctx, cfg) }()
	select {
	case err := <-ended:
		if err == nil {
			<-life.Done()
		}
		if d.Joined == nil && d.Upgrade.Begun() { // what is saved and tried takes longer than others wait
			if err := lease.Pin(context.WithoutCancel(life), d.Database(), d.NodeName); err != nil {
				d.Log.Warn("a standby may take over while the upgrade begins", "err", err)
			}
		}
		return err
	case done := <-d.release:
		cancel()
		<-ended
		expiry.Stop()
		done <- failover{d}.end(life)
		<-life.Done()
		return nil
	}
}
