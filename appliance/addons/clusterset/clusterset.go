// Package clusterset makes Services of the peers usable here, and those of this cluster there: the Multi-Cluster
// Services API of Kubernetes (KEP-1645), docs/design/services.md.
//
// It reads ServiceExports, Services and EndpointSlices of this cluster, and what the peers that take part export (GET
// /v1/exports). It alone writes the definitions, the ServiceImports with their derived Services and EndpointSlices
// (ObjectLabel is on all of them), the conditions of ServiceExports, and by package weights the table of imports with weights. Restart: everything is compared again, once the
// peers have answered or settle has passed. Failure: what was written stays, and is tried again.
package clusterset

import (
	"bytes"
	"cmp"
	"context"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	mcscrd "sigs.k8s.io/mcs-api/config/crd"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"rivulet/appliance/addons/clusterset/weights"
	"rivulet/appliance/addons/customresource"
	"rivulet/appliance/config"
	"rivulet/appliance/lifecycle"
	"rivulet/fabric/changes"
	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
	"rivulet/offload/policy"
)

// takesPart reports whether a peer is a member.
func takesPart(setting config.Services, l peer.Link) bool {
	switch cmp.Or(setting.Import, config.ServicesApproved) {
	case config.ServicesAll:
		return true
	case config.ServicesApproved:
		return l.Trust == peer.TrustGroup || l.Trust == peer.TrustApproved || l.Trust == peer.TrustInvite
	case config.ServicesGroup:
		return l.Trust == peer.TrustGroup
	}
	return false
}

// shared reports whether a namespace takes part.
func shared(setting config.Services, namespace string) bool {
	return namespace != metav1.NamespaceDefault && !policy.System(namespace) && (len(setting.Namespaces) == 0 || slices.Contains(setting.Namespaces, namespace))
}

// Fabric is the part of the fabric that is used.
type Fabric interface {
	peer.Following
	Client(id peer.ID) (*http.Client, string, error)
	// Handle adds a route of peers.
	Handle(pattern string, h http.Handler)
}

// Config are the dependencies of a Set; all are required.
type Config struct {
	ID     peer.ID                      // this cluster's
	API    func() (*rest.Config, error) // this cluster's API server
	Fabric func() Fabric                // once it runs
	// PodCIDR is this cluster's. Endpoints elsewhere are not exported: peers cannot reach them here.
	PodCIDR func() netip.Prefix
	Setting func() config.Services
	// Cordoned are the peers whose virtual nodes take no new pods; NodesChanged reports changes.
	Cordoned     func() map[peer.ID]bool
	NodesChanged func() (<-chan struct{}, func())
	// Exported is called after Openings has changed.
	Exported func()
	// Weights distribute the traffic of imports with weights; weights.New makes one.
	Weights interface {
		Set(all []weights.Service)
		Run(ctx context.Context) error
	}
	Log *slog.Logger
}

// Set is this cluster's part of the cluster set.
type Set struct {
	Config
	settle  time.Duration  // the constant; tests shorten it
	own     changes.Signal // published has changed
	theirs  changes.Signal // exports of peers have changed
	setting changes.Signal // Setting has changed

	published atomic.Pointer[publication]
	status    atomic.Pointer[Status]

	mu    sync.Mutex
	peers map[peer.ID]*member
}

// publication are this cluster's exports, and the line that has them.
type publication struct {
	exports []Export
	line    []byte
}

// New makes a Set.
func New(c Config) *Set {
	return &Set{Config: c, settle: settle, peers: map[peer.ID]*member{}}
}

// SettingChanged applies a changed Setting: what it opened to others ends at once.
func (s *Set) SettingChanged() {
	s.setting.Notify()
	s.theirs.Notify()
	s.own.Notify()
	s.Exported()
}

// links are the peers that take part.
func (s *Set) links() map[peer.ID]peer.Link {
	out, setting := map[peer.ID]peer.Link{}, s.Setting()
	for _, l := range s.Fabric().Links() {
		if takesPart(setting, l) {
			out[l.ID] = l
		}
	}
	return out
}

// Openings are the exported Services, and the peers that may use them.
func (s *Set) Openings() (services []types.NamespacedName, to []peer.ID) {
	published := s.published.Load()
	if published == nil || len(published.exports) == 0 {
		return nil, nil
	}
	for _, e := range published.exports {
		services = append(services, types.NamespacedName{Namespace: e.Namespace, Name: e.Name})
	}
	return services, slices.Sorted(maps.Keys(s.links()))
}

const pattern = "GET /v1/exports"

// heartbeat is the interval of lines without a change, and silence how long a peer waits for one.
const heartbeat, silence = 30 * time.Second, 75 * time.Second

// ServeHTTP streams this cluster's exports to a member: one line of JSON at once and after each change, and heartbeats.
// It ends when the peer is none any more.
func (s *Set) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id, ok := rpc.PeerID(r)
	if _, member := s.links()[id]; !ok || !member {
		rpc.Fail(w, http.StatusForbidden, &rpc.Error{Code: "no-member", Message: "this cluster exports no Services to that one; see there: rivulet config explain services.import"})
		return
	}
	changed, stop := s.own.Changed()
	defer stop()
	links, unfollow := s.Fabric().Changed()
	defer unfollow()
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	out := http.NewResponseController(w)
	w.Header().Set("Content-Type", "application/x-ndjson")
	var last *publication
	for {
		if _, member := s.links()[id]; !member {
			return
		}
		line := []byte("{}\n")
		if published := s.published.Load(); published != last {
			line, last = published.line, published
		}
		_ = out.SetWriteDeadline(time.Now().Add(silence)) // a peer that vanished must not hold this for ever
		if _, err := w.Write(line); err != nil {
			return
		}
		if out.Flush() != nil {
			return
		}
		for waiting := true; waiting; {
			select {
			case <-r.Context().Done():
				return
			case <-changed:
				waiting = false
			case <-beat.C:
				waiting = false
			case <-links:
				_, member := s.links()[id]
				waiting = member
			}
		}
	}
}

// Definitions are those of ServiceExport and ServiceImport, YAML.
func Definitions() []byte {
	return bytes.Join([][]byte{mcscrd.ServiceExportCRD, mcscrd.ServiceImportCRD}, []byte("\n---\n"))
}

// Run runs this cluster's part until ctx ends.
func (s *Set) Run(ctx context.Context, stage *lifecycle.Stage) error {
	api, err := s.API()
	if err != nil {
		return err
	}
	s.Fabric().Handle(pattern, s)
	links, stop := s.Fabric().Changed()
	defer stop()
	theirs, stop2 := s.theirs.Changed()
	defer stop2()
	nodes, stop3 := s.NodesChanged()
	defer stop3()
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { s.follow(ctx) })
	wg.Go(func() { _ = s.Weights.Run(ctx) }) // ctx has ended
	kind := customresource.Kind{Name: "service exports", Definition: Definitions(), Resource: exports, Gather: gather}
	return customresource.Run(ctx, api, kind, func(o customresource.Objects) customresource.Loop {
		c := newController(ctx, s, o)
		return customresource.Loop{Sync: c.sync, Changed: []<-chan struct{}{links, theirs, nodes}, Log: s.Log}
	}, stage.Ready)
}

var (
	group   = schema.GroupVersion(mcs.GroupVersion)
	exports = group.WithResource(mcs.ServiceExportPluralName)
	imports = group.WithResource(mcs.ServiceImportPluralName)
)
