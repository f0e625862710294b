package nodes

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"rivulet/appliance/config/fixed"
	"rivulet/appliance/lifecycle"
	"rivulet/appliance/vcluster"
	"rivulet/fabric"
	"rivulet/fabric/changes"
	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
	"rivulet/offload"
	"rivulet/offload/consumer/homeimages"
	"rivulet/offload/nodeagent"
	"rivulet/offload/nodeagent/homeaddr"
	"rivulet/offload/nodeagent/podmemory"
	"rivulet/offload/policy"
	"rivulet/offload/provider/tenancy"
)

// Routes of the server for workers that run pods of other clusters.
const (
	// consumersPath answers with a nodeagent.View when it differs from the one whose tag the worker names.
	consumersPath = "/v1/node/consumers"
	// homesPath, with the tag of a consumer, leads to images of that consumer's home.
	homesPath = "/v1/node/homes/"
	// imagesPath leads to images of this cluster's own that the server has.
	imagesPath = "/v1/node/images/"
)

// Routes of a worker for its server.
const (
	memoryPath = "/v1/node/memory"
	// podsPath, with a consumer and an address, answers whether a pod of that consumer has it there now.
	podsPath = "/v1/node/pods/"
)

const (
	// viewEvery bounds how long the server keeps a worker's request open; isolating is how long a worker counts as one
	// that isolates after its last request.
	viewEvery, isolating = 25 * time.Second, 75 * time.Second
	// maxView bounds a View, and what a standby gets, bytes.
	maxView = 8 << 20
)

// Tenants are the parts of a Device for pods of other clusters. All fields are required.
type Tenants struct {
	// Offload is the server's; nil before it runs.
	Offload func() *offload.Offload
	// Isolation is that of this node.
	Isolation func() *nodeagent.Node
	// Home returns a client for the images of a consumer's home, as in tenantimages.RelayConfig.
	Home func(tag string) (client *http.Client, base string, ok bool)
	// Images are those of this device.
	Images homeimages.Store

	received nodeagent.Received // of a worker
	agent    atomic.Pointer[nodeagent.Agent]

	seenMu sync.Mutex
	seen   map[peer.ID]time.Time // of workers that isolate, their last requests
	polled changes.Signal        // seen has another worker
}

// OffloadOn is the component "offload": run on a server, the isolation of tenants on a worker.
func (d *Device) OffloadOn(run func(context.Context, *lifecycle.Stage) error) func(context.Context, *lifecycle.Stage) error {
	if d.Joined == nil {
		return run
	}
	return d.runTenants
}

// runTenants isolates the pods of other clusters that run on this worker, until ctx ends.
func (d *Device) runTenants(ctx context.Context, stage *lifecycle.Stage) error {
	home, err := d.API()
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(home)
	if err != nil {
		return err
	}
	node := *d.Isolation()
	node.Server = d.Joined.Address
	known := make(chan struct{})
	twins := nodeagent.NewLabelled(client, known)
	d.Fabric().Handle("POST "+memoryPath, d.forServer(func(w http.ResponseWriter, r *http.Request) {
		var q podmemory.Query
		if rpc.Read(w, r, &q) {
			rpc.Write(w, http.StatusOK, podmemory.Here.Read(q))
		}
	}))
	d.Fabric().Handle("GET "+podsPath+"{consumer}/{address}", d.forServer(func(w http.ResponseWriter, r *http.Request) {
		at, err := netip.ParseAddr(r.PathValue("address"))
		rpc.Write(w, http.StatusOK, err == nil && node.Held.Has(peer.ID(r.PathValue("consumer")), at))
	}))
	agent, err := nodeagent.New(nodeagent.Config{Node: node, Home: home, PodCIDR: fixed.PodCIDR, Twins: twins, Consumers: &d.received, Log: stage.Log()})
	if err != nil {
		return err
	}
	d.agent.Store(agent)
	stage.Ready()
	var all sync.WaitGroup
	defer all.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	all.Go(func() { twins.Run(ctx) })
	all.Go(func() { d.followConsumers(ctx, d.Fabric(), sync.OnceFunc(func() { close(known) })) })
	return agent.Run(ctx)
}

// IsolationProblems are those of the isolation of tenants on a worker; nil on a server, and before it has started.
func (d *Device) IsolationProblems() map[string]string {
	if a := d.agent.Load(); a != nil {
		return a.Problems()
	}
	return nil
}

// forServer refuses all but this worker's server.
func (d *Device) forServer(do http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if id, _ := rpc.PeerID(r); id != d.Server {
			rpc.Fail(w, http.StatusForbidden, &rpc.Error{Code: "no-server", Message: "this device is a node of another cluster"})
			return
		}
		do(w, r)
	})
}

// Memory is the tenancy.PodMemory of a cluster: of this node, and of workers, which answer themselves.
func (d *Device) Memory() tenancy.PodMemory { return memory{d} }

type memory struct{ *Device }

// Read implements tenancy.PodMemory.
func (m memory) Read(ctx context.Context, node string, q podmemory.Query) (u podmemory.Usage, err error) {
	if node == m.NodeName {
		return podmemory.Here.Read(q), nil
	}
	client, base, err := m.workerClient(node)
	if err == nil {
		err = rpc.Call(ctx, client, http.MethodPost, base.String()+memoryPath, q, &u)
	}
	return u, err
}

// Pods checks addresses of consumers' pods on all nodes; here checks those of this one.
func (d *Device) Pods(here vcluster.Addresses) vcluster.Addresses { return everywhere{here, d} }

type everywhere struct {
	vcluster.Addresses
	*Device
}

// Has implements vcluster.Addresses. A worker is asked each time: only its container network decides.
func (e everywhere) Has(consumer peer.ID, at netip.Addr) bool {
	if e.Addresses.Has(consumer, at) {
		return true
	}
	f := e.Fabric()
	if f == nil {
		return false
	}
	for _, r := range f.Nodes() {
		if !slices.ContainsFunc(r.Behind, func(p netip.Prefix) bool { return !p.IsSingleIP() && p.Contains(at) }) {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		client, base, err := f.Client(r.ID)
		has := false
		return err == nil && rpc.Call(ctx, client, http.MethodGet, base+podsPath+url.PathEscape(string(consumer))+"/"+at.String(), nil, &has) == nil && has
	}
	return false
}

// Changed implements vcluster.Addresses.
func (e everywhere) Changed() (<-chan struct{}, func()) {
	var either changes.Signal
	changed, stop := either.Changed()
	ctx, end := context.WithCancel(context.Background())
	either.Follow(ctx, e.Addresses.Changed)
	if o := e.Offload(); o != nil {
		either.Follow(ctx, o.ViewChanged)
	}
	return changed, func() { end(); stop() }
}

// followConsumers receives what the server knows of consumers, until ctx ends. What was received stays while the server
// does not answer.
func (d *Device) followConsumers(ctx context.Context, f *fabric.Fabric, known func()) {
	tag := ""
	for pause := (changes.Backoff{First: time.Second, Longest: 15 * time.Second}); ctx.Err() == nil; {
		v, now, err := d.view(ctx, f, tag)
		if err != nil {
			d.Log.Debug("the server does not show consumers", "err", err)
			if !changes.Wait(ctx, pause.Next()) {
				return
			}
			continue
		}
		pause.Reset()
		if now != tag {
			tag = now
			d.received.Set(v)
			known()
		}
	}
}

// view requests the View that has another tag; without a change it returns the same tag after viewEvery.
func (d *Device) view(ctx context.Context, f *fabric.Fabric, tag string) (v nodeagent.View, now string, err error) {
	now, err = d.changed(ctx, f, consumersPath, tag, &v)
	return v, now, err
}

// changed requests what has another tag of the server, into out; without a change it returns the same tag after viewEvery.
func (d *Device) changed(ctx context.Context, f *fabric.Fabric, path, tag string, out any) (now string, err error) {
	ctx, cancel := context.WithTimeout(ctx, viewEvery+10*time.Second)
	defer cancel()
	client, base, err := f.Client(d.Server)
	if err != nil {
		return "", err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+path, nil)
	if err != nil {
		return "", err
	}
	req.Header.Set("If-None-Match", tag)
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxView))
	switch {
	case err != nil:
		return "", err
	case resp.StatusCode == http.StatusNotModified && tag != "":
		return tag, nil
	case resp.StatusCode != http.StatusOK:
		return "", fmt.Errorf("%s: %s", resp.Status, peer.Text(string(raw)))
	}
	return resp.Header.Get("ETag"), json.Unmarshal(raw, out)
}

// HomeOf is Tenants.Home of this node: a worker reaches homes through its server.
func (d *Device) HomeOf(tag string) (client *http.Client, base string, ok bool) {
	if d.Joined == nil {
		return d.Home(tag)
	}
	return d.atServer(homesPath + url.PathEscape(tag))
}

// ServerImages is tenantimages.RelayConfig.Server of this node; nil on a server.
func (d *Device) ServerImages() func() (client *http.Client, at string, ok bool) {
	if d.Joined == nil {
		return nil
	}
	return func() (*http.Client, string, bool) { return d.atServer(imagesPath) }
}

// atServer is a client for a path of this worker's server, and its URL; false while there is no tunnel.
func (d *Device) atServer(path string) (client *http.Client, at string, ok bool) {
	f := d.Fabric()
	if f == nil {
		return nil, "", false
	}
	client, base, err := f.Client(d.Server)
	return client, base + path, err == nil
}

// ViewOn is how a consumer sees pods, on this node; own is that of a server.
func (d *Device) ViewOn(own func(id string) homeaddr.View) func(id string) homeaddr.View {
	if d.Joined == nil {
		return own
	}
	return func(id string) homeaddr.View {
		return homeaddr.ViewOf(d.received.Links(), peer.ID(id), fixed.PodCIDR, d.received.Of(peer.ID(id)).Under)
	}
}

// serveTenants lets workers run pods of other clusters.
func (s *server) serveTenants() {
	s.fabric.Handle("GET "+consumersPath, s.forWorkers(s.showConsumers))
	s.fabric.Handle("GET "+homesPath+"{tag}/v1/images/{what...}", s.forWorkers(s.passImages))
	images := &homeimages.Server{Store: s.Images, Used: s.imagesOn, On: func() bool { return true }}
	s.fabric.Handle("GET "+imagesPath+"{what...}", s.forWorkers(func(w http.ResponseWriter, r *http.Request, _ peer.Record) { images.ServeHTTP(w, r) }))
}

// imagesOn are the images of the pods of a worker.
func (s *server) imagesOn(id peer.ID) []homeimages.Use {
	rec, err := s.fabric.Worker(id)
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return imagesOf(ctx, s.client, rec.Node)
}

// imagesOf returns the images of this cluster's own pods that the server has bound to a node. Those of mirror pods are
// left out: a kubelet makes them on its own node, with any image. The API server lets nobody add or remove their mark.
func imagesOf(ctx context.Context, client kubernetes.Interface, name string) (used []homeimages.Use) {
	pods, err := client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", name).String()})
	if err != nil {
		return nil
	}
	node, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil
	}
	os, arch := node.Status.NodeInfo.OperatingSystem, node.Status.NodeInfo.Architecture
	for i := range pods.Items {
		p := &pods.Items[i]
		if _, mirror := p.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
			continue
		}
		if _, tenant := p.Labels[policy.OriginLabel]; tenant {
			continue // its images are its home's
		}
		used = append(used, homeimages.Of(p, os, arch)...)
		for _, v := range p.Spec.Volumes {
			if v.Image != nil {
				used = append(used, homeimages.Use{Image: v.Image.Reference, OS: os, Arch: arch})
			}
		}
	}
	return used
}

// forWorkers refuses all others.
func (s *server) forWorkers(do func(w http.ResponseWriter, r *http.Request, worker peer.Record)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, _ := rpc.PeerID(r)
		rec, err := s.fabric.Worker(id)
		if err == nil && rec.Node == "" {
			err = errors.New("this device has not joined yet")
		}
		if err != nil {
			rpc.Fail(w, http.StatusForbidden, &rpc.Error{Code: "no-node", Message: err.Error()})
			return
		}
		do(w, r, rec)
	})
}

// showConsumers answers a worker when what it has to know differs from what it has.
func (s *server) showConsumers(w http.ResponseWriter, r *http.Request, worker peer.Record) {
	o := s.Offload()
	if o == nil {
		rpc.Fail(w, http.StatusServiceUnavailable, &rpc.Error{Code: "busy", Message: "offloading has not started yet", Cure: "it is tried again"})
		return
	}
	changed, stop := o.ViewChanged()
	defer stop()
	last := time.NewTimer(viewEvery)
	defer last.Stop()
	for more := true; ; {
		if v, ok := o.ViewOf(worker.Node); ok {
			raw, err := json.Marshal(v)
			tag := fmt.Sprintf("%x", sha256.Sum256(raw))
			if err != nil || tag != r.Header.Get("If-None-Match") {
				w.Header().Set("ETag", tag)
				rpc.Write(w, http.StatusOK, json.RawMessage(raw))
				return
			}
			s.isolates(worker.ID) // it has the present view
		}
		if !more {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-last.C:
			more = false
		case <-changed:
		}
	}
}

// isolates notes a worker that isolates tenants.
func (s *server) isolates(id peer.ID) {
	s.seenMu.Lock()
	defer s.seenMu.Unlock()
	if _, known := s.seen[id]; !known {
		s.polled.Notify()
	}
	s.seen[id] = time.Now()
}

// label is the value of policy.WorkerLabel of a worker's Node; "" leaves it as it is.
func (s *server) label(id peer.ID) string {
	s.seenMu.Lock()
	defer s.seenMu.Unlock()
	at, known := s.seen[id]
	switch {
	case !known && time.Since(s.begun) < isolating:
		return ""
	case !known || time.Since(at) > isolating:
		delete(s.seen, id)
		return policy.WorkerPlain
	}
	return policy.WorkerIsolates
}

// relabel keeps that label of a worker's Node, by which pods of other clusters are scheduled.
func (s *server) relabel(ctx context.Context, node string, has string, id peer.ID) error {
	want := cmp.Or(s.label(id), has)
	if want == has {
		return nil
	}
	// A former server has k3s's label of servers.
	return s.patchLabels(ctx, node, fmt.Appendf(nil, `{%q:%q,"node-role.kubernetes.io/control-plane":null}`, policy.WorkerLabel, want))
}

// patchLabels is a merge patch of a Node's labels.
func (s *server) patchLabels(ctx context.Context, node string, labels []byte) error {
	_, err := s.client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":%s}}`, labels), metav1.PatchOptions{})
	return err
}

// passImages passes a worker's request for a part of an image to the home of a consumer.
func (s *server) passImages(w http.ResponseWriter, r *http.Request, _ peer.Record) {
	client, base, ok := s.Home(r.PathValue("tag"))
	at, err := url.Parse(base)
	if !ok || err != nil {
		http.NotFound(w, r)
		return
	}
	(&httputil.ReverseProxy{
		Transport: client.Transport,
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(at)
			p.Out.URL.Path, p.Out.URL.RawPath = "/v1/images/"+r.PathValue("what"), ""
			p.Out.Header.Del("Authorization")
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, _ error) { http.NotFound(w, r) },
	}).ServeHTTP(w, r)
}
