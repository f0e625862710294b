// Package tenancy grants a consumer twins, the Kubernetes API inside them, and offers, and nothing more
// (docs/design/tenancy.md). It reads namespaces, nodes, pods, and the consumers' objects. It alone writes twin
// namespaces with account, role binding, quota and limit range, the ClusterRole rivulet-consumer and, by package
// bounds, admission policies and rivulet-peers. It deletes pods that were not handed back in time or use memory that is
// not lent. Requesters are identified by the pinned certificate only; no credential is issued, so unpinning a peer ends
// its rights at once. Restart: all state is in the objects. While the API server is away, or the bounds are not in
// force, consumers get 503 and their pods continue to run.
package tenancy

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	appsinformers "k8s.io/client-go/informers/apps/v1"
	batchinformers "k8s.io/client-go/informers/batch/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"rivulet/fabric/changes"
	"rivulet/fabric/logbound"
	"rivulet/fabric/peer"
	"rivulet/offload/nodeagent/transfer"
	"rivulet/offload/offer"
	"rivulet/offload/policy"
	"rivulet/offload/provider/bounds"
	"rivulet/offload/replacement"
	"rivulet/offload/watch"
)

// Config are the dependencies of a Tenancy. Local and PeerID must be set.
type Config struct {
	// Local is a configuration with all rights on this cluster's API server.
	Local *rest.Config
	// ClusterName returns this cluster's name, for messages.
	ClusterName func() string
	Log         *slog.Logger
	// PeerID identifies the sender of a request by its pinned certificate.
	PeerID func(*http.Request) (peer.ID, bool)
	// PeerName returns the name of a peer; empty if unknown.
	PeerName func(peer.ID) string
	// Lends reports whether anything is lent to a peer; nil lends to all.
	Lends func(peer.ID) bool
	// HostOf returns the peer whose virtual cluster a consumer is, "" for others; nil: there are none.
	HostOf func(peer.ID) peer.ID
	// Neighbours returns the prefixes under which this cluster reaches others' pods, in a map that the caller may
	// change.
	Neighbours func() map[peer.ID]netip.Prefix
	// Tenants returns the addresses of a consumer's pods here; nil returns none. Call ShareChanged after a change.
	Tenants func(peer.ID) []netip.Addr
	// HomeAddresses and HomePods are values for offers.
	HomeAddresses, HomePods bool
	// Shares returns the bounds of what is lent to all consumers of a kind together.
	Shares func() offer.Shares
	// Grace is how long a consumer may use more than its part before its newest pods
	// are deleted; 0 is DefaultGrace.
	Grace time.Duration
	// ForceAfter is when what is left in a twin that is being deleted is removed by force; 0 is DefaultForceAfter.
	ForceAfter time.Duration
	// Withheld returns the hosts of registries from which nothing is pulled for consumers, "*" for all; nil withholds
	// none. Call WithheldChanged after a change.
	Withheld func() []string
	// Memory is this device's memory in bytes; 0 is unknown, and treated as little.
	Memory uint64
	// PodMemory reads what pods use of it; nil bounds each pod, and not all of them together.
	PodMemory PodMemory
	// Volumes are the folders of this cluster's nodes; with nil claims are lent, but their files are not transferred.
	Volumes Volumes
	// LAN is what virtual clusters may open; nil is nothing.
	LAN *LAN
}

// Tenancy serves consumers.
type Tenancy struct {
	Config
	client  kubernetes.Interface
	room    *offer.Watcher
	proxy   *proxy
	lists   rest.Interface // lists of which only the size is read
	stored  *store         // bytes of objects
	routes  *store         // what kube-proxy has rules for
	factory informers.SharedInformerFactory
	twins   corelisters.NamespaceLister

	namespaces coreinformers.NamespaceInformer
	quotas     coreinformers.ResourceQuotaInformer
	sets       appsinformers.ReplicaSetInformer
	jobs       batchinformers.JobInformer
	hosted     atomic.Pointer[map[peer.ID]offer.Member] // see Host
	runtimes   cache.SharedIndexInformer                // RuntimeClasses that are lent, and StorageClasses
	storages   cache.SharedIndexInformer                // (both are set by keepBounds)
	visitors   *visitors
	policies   *bounds.Bounds
	mayPass    func(namespace string, consumer peer.ID) (code int, why string) // refused, except in tests
	kick       chan struct{}
	ports      changes.Signal         // ports of the LAN may have to change
	granted    changes.Signal         // a quota, or settled, may have changed
	refusing   atomic.Pointer[string] // see Refuses

	settledMu sync.Mutex
	settled   map[string]account // see settle
	hosts     chan struct{}      // held by the one request that may claim hosts of Ingresses
}

// New returns a Tenancy; its routes may be served at once.
func New(c Config) (*Tenancy, error) {
	if c.Local == nil || c.PeerID == nil {
		return nil, fmt.Errorf("tenancy: Local and PeerID must be set")
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.Log = logbound.New(c.Log) // consumers cause records with their requests
	if c.ClusterName == nil {
		c.ClusterName = func() string { return "this cluster" }
	}
	if c.PeerName == nil {
		c.PeerName = func(peer.ID) string { return "" }
	}
	if c.Neighbours == nil {
		c.Neighbours = func() map[peer.ID]netip.Prefix { return nil }
	}
	if c.Shares == nil {
		c.Shares = func() offer.Shares { return offer.Shares{} }
	}
	local := rest.CopyConfig(c.Local)
	local.QPS = -1 // the API server's own fairness is enough in one process
	client, err := kubernetes.NewForConfig(local)
	if err != nil {
		return nil, fmt.Errorf("tenancy: %w", err)
	}
	proxy, err := newProxy(local, c.Log)
	if err != nil {
		return nil, err
	}
	plain := rest.CopyConfig(local)
	plain.DisableCompression = true
	lists, err := kubernetes.NewForConfig(plain)
	if err != nil {
		return nil, fmt.Errorf("tenancy: %w", err)
	}
	if c.Grace == 0 {
		c.Grace = DefaultGrace
	}
	if c.ForceAfter == 0 {
		c.ForceAfter = DefaultForceAfter
	}
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(slim),
		watch.Labelled(policy.OriginLabel))
	t := &Tenancy{
		Config: c, client: client, room: offer.NewWatcher(client), proxy: proxy, lists: lists.CoreV1().RESTClient(),
		factory: factory, twins: factory.Core().V1().Namespaces().Lister(),
		namespaces: factory.Core().V1().Namespaces(), quotas: factory.Core().V1().ResourceQuotas(),
		sets: factory.Apps().V1().ReplicaSets(), jobs: factory.Batch().V1().Jobs(),
		visitors: newVisitors(storeBound(c.Memory)), kick: make(chan struct{}, 1), hosts: make(chan struct{}, 1),
	}
	t.room.HostOf = c.HostOf
	t.stored = newStore(c.Memory, t.sizes)
	t.routes = newRoutes(func(ctx context.Context, consumer peer.ID) (int64, error) { return countRoutes(ctx, t, consumer) })
	t.policies, err = bounds.New(bounds.Config{Local: c.Local, Manifests: t.manifests, Log: c.Log,
		Grant: func(ctx context.Context) error { return applyRole(ctx, client) }})
	if err != nil {
		return nil, err
	}
	t.mayPass = t.refused
	return t, nil
}

// hostOf is Config.HostOf.
func (c Config) hostOf(id peer.ID) peer.ID {
	if c.HostOf == nil {
		return ""
	}
	return c.HostOf(id)
}

// account is the peer for which a consumer's objects are counted: the host of a virtual cluster, or itself.
func (c Config) account(consumer peer.ID) peer.ID { return cmp.Or(c.hostOf(consumer), consumer) }

// LabelledHost returns the host that the twins of a consumer name, "" if there is none; known is false before twins are loaded.
func LabelledHost(t *Tenancy, consumer peer.ID) (host peer.ID, known bool) {
	for _, ns := range t.twinsOf(consumer) {
		host = cmp.Or(host, peer.ID(ns.Labels[policy.HostLabel]))
	}
	return host, t.namespaces.Informer().HasSynced()
}

// Routes returns what is served to consumers, by pattern of http.ServeMux.
func (t *Tenancy) Routes() map[string]http.Handler {
	routes := map[string]http.Handler{
		"GET /v1/offer":                t.known(t.offer),
		"GET /v1/namespaces":           t.known(t.counted(t.list)),
		"PUT /v1/namespaces/{home}":    t.admitted(t.counted(t.ensure)),
		"DELETE /v1/namespaces/{home}": t.admitted(t.counted(t.remove)),
		"/k8s/":                        t.admitted(t.limited),
	}
	for r, do := range transfer.Routes {
		routes[r[0]+" /v1/volumes/{home}/{claim}"+r[1]] = t.admitted(t.serveTransfer(do))
	}
	return routes
}

// Run keeps the admission policies and the role in force, and follows the cluster's capacity, until ctx ends.
func (t *Tenancy) Run(ctx context.Context) error {
	defer t.factory.Shutdown()
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { keepBounds(ctx, t) })
	wg.Go(func() { t.keepRations(ctx) })
	wg.Go(func() { t.keepHosts(ctx) })
	wg.Go(func() { t.keepLabels(ctx) })
	if t.LAN != nil {
		wg.Go(func() { t.keepPorts(ctx) })
	}
	wg.Go(func() { t.watchAdmission(ctx) })
	for _, s := range []*store{t.stored, t.routes} {
		wg.Go(func() {
			s.run(ctx, func(id peer.ID) bool {
				return slices.ContainsFunc(t.consumers(), func(c peer.ID) bool { return t.account(c) == id })
			}, t.poke)
		})
	}
	wg.Go(func() { t.endTwins(ctx) })
	if t.PodMemory != nil {
		wg.Go(func() { t.keepMemory(ctx) })
	}
	if t.Volumes != nil {
		d := &disks{client: t.client, room: t.room, twins: t.twins, synced: t.namespaces.Informer().HasSynced, volumes: t.Volumes, log: t.Log}
		wg.Go(func() { d.keep(ctx) })
	}
	wg.Go(func() {
		_ = replacement.New(replacement.Config{Client: t.client, Pods: t.room.Pods(), Log: t.Log}).Run(ctx) // ends with ctx
	})
	return t.room.Run(ctx)
}

// manifests are what has to be in force before a consumer has any right.
func (t *Tenancy) manifests() [][]byte {
	var withheld []string
	if t.Withheld != nil {
		withheld = t.Withheld()
	}
	runtimes, storages := t.runtimes.GetStore().List(), t.storages.GetStore().List()
	return [][]byte{lending(podAdmission, runtimes, storages), imagesWithout(withheld), lending(admission, runtimes, storages), fairness}
}

// WithheldChanged applies changed Withheld at once.
func (t *Tenancy) WithheldChanged() { t.policies.Poke() }

// Problem is why consumers have no rights; nil while they have.
func (t *Tenancy) Problem() error { return t.policies.Problem() }

// ShareChanged sends offers with changed Shares at once.
func (t *Tenancy) ShareChanged() {
	t.room.Poke()
	t.ports.Notify()
}

// Only ends at once all requests of clusters that are no longer peers or may not borrow, open watches, logs and
// sessions included. Peers among them keep their streams of offers, by which they receive that.
func (t *Tenancy) Only(peers map[peer.ID]bool) {
	t.room.Poke()
	if ended := t.visitors.only(peers); ended > 0 {
		t.Log.Info("requests of clusters that are no peers any more were ended", "requests", ended)
	}
}

// Consumer is one consumer in the status.
type Consumer struct {
	ID   peer.ID `json:"id"`
	Name string  `json:"name,omitempty"`
	// Twins maps home namespaces to twins.
	Twins map[string]string `json:"twins"`
	// Pods is the number of unfinished pods, Use are their requests.
	Pods int                 `json:"pods"`
	Use  corev1.ResourceList `json:"use,omitempty"`
}

// Status returns the consumers that have twins here, and what all consumers may use together; both are empty before that
// is known.
func (t *Tenancy) Status() (consumers map[peer.ID]Consumer, lent corev1.ResourceList) {
	consumers = map[peer.ID]Consumer{}
	twins, _ := t.twins.List(labels.Everything()) // a cache cannot fail
	pods := t.room.Tenants()
	room, _ := t.room.Room(t.Shares())
	for _, ns := range twins {
		id := peer.ID(ns.Labels[policy.OriginLabel])
		c, known := consumers[id]
		if !known {
			c = Consumer{ID: id, Name: t.PeerName(id), Twins: map[string]string{}, Pods: pods[id], Use: room.Use(id)}
		}
		if ns.Status.Phase != corev1.NamespaceTerminating {
			c.Twins[ns.Annotations[policy.HomeNamespaceAnnotation]] = ns.Name
		}
		consumers[id] = c
	}
	return consumers, room.Lent()
}

// Use is what the consumer's unfinished pods request, their number included, and its claims (storage).
func (t *Tenancy) Use(id peer.ID) corev1.ResourceList {
	out := corev1.ResourceList{}
	add := func(name corev1.ResourceName, q resource.Quantity) {
		sum := out[name]
		sum.Add(q)
		out[name] = sum
	}
	room, _ := t.room.Room(t.Shares())
	for name, q := range room.Use(id) {
		add(name, q)
	}
	twins, _ := t.twins.List(labels.SelectorFromSet(labels.Set{policy.OriginLabel: string(id)})) // a cache cannot fail
	for _, ns := range twins {
		if q, err := t.quotas.Lister().ResourceQuotas(ns.Name).Get(quotaName); err == nil {
			add(corev1.ResourceStorage, q.Status.Used[limitedAs(corev1.ResourceStorage)])
		}
	}
	return out
}

func (t *Tenancy) offer(w http.ResponseWriter, r *http.Request, consumer peer.ID) {
	ctx, leave, why := t.visitors.enter(r.Context(), consumer, offers, 0)
	if leave == nil {
		fail(w, refuse(http.StatusTooManyRequests, "too-many-requests", "try again in a moment", "%s", why))
		return
	}
	defer leave()
	asked := r.URL.Query()[offer.OfQuery]
	asked = asked[:min(len(asked), offer.MaxOf)]
	changed, stop := t.room.Changed()
	defer stop()
	offer.Stream(w, r.WithContext(ctx), func() offer.Offer {
		o := offer.Offer{Withdrawn: true, Reason: t.ClusterName() + " lends nothing to this cluster any more"}
		if t.lends(consumer) {
			o = t.room.Offer(consumer, t.consumers(), t.Shares())
		}
		o.Keeps, o.HomeAddresses, o.HomePods, o.Neighbours = true, t.HomeAddresses, t.HomePods, t.Neighbours()
		maps.DeleteFunc(o.Neighbours, func(id peer.ID, _ netip.Prefix) bool { return !slices.Contains(asked, string(id)) })
		if t.Tenants != nil {
			o.Tenants = t.Tenants(consumer)
		}
		return o
	}, changed)
}
