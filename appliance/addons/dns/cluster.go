package dns

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/coredns/caddy"
	"github.com/coredns/caddy/caddyfile"
	"github.com/coredns/coredns/plugin"
	coredns "github.com/coredns/coredns/plugin/kubernetes"
	"github.com/coredns/coredns/request"
	miekg "github.com/miekg/dns"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1alpha1"

	"rivulet/appliance/addons/clusterset"
	kube "rivulet/appliance/engine"
	"rivulet/fabric/changes"
	"rivulet/offload/policy"
)

// clusterSet is the zone of Services shared with peers.
const clusterSet = "clusterset.local."

// defineLimit is how long a start waits for the definition of ServiceImports. Without it CoreDNS's plugin would never be
// ready for any name.
const defineLimit = 20 * time.Second

// cluster answers names of Services and Pods with CoreDNS's kubernetes plugin once the API server has been reached, and
// SERVFAIL before.
type cluster struct {
	domain string
	next   plugin.Handler
	lookup upstreamer
	// current answers; live is the one that follows the API server, as soon as there is one. They differ while current
	// answers from memory.
	current, live atomic.Pointer[coredns.Kubernetes]
	// without: the API server does not serve ServiceImports, so live has no zone clusterSet.
	without atomic.Bool
	limit   time.Duration // defineLimit, but in tests
}

func (c *cluster) Name() string { return "cluster" }

func (c *cluster) zones() []string {
	return []string{c.domain, clusterSet, "in-addr.arpa.", "ip6.arpa."}
}

func (c *cluster) ServeDNS(ctx context.Context, w miekg.ResponseWriter, r *miekg.Msg) (int, error) {
	state := request.Request{W: w, Req: r}
	if c.without.Load() && miekg.IsSubDomain(clusterSet, state.Name()) {
		return miekg.RcodeServerFailure, nil
	}
	if k := c.current.Load(); k != nil {
		return k.ServeDNS(ctx, w, r)
	}
	if plugin.Zones(c.zones()).Matches(state.Name()) != "" {
		return miekg.RcodeServerFailure, nil
	}
	return plugin.NextOrFailure(c.Name(), c.next, ctx, w, r)
}

func (c *cluster) ready() bool {
	k := c.live.Load()
	return k != nil && k.APIConn.HasSynced()
}

// modified changes with every change of a Service, an import or an EndpointSlice.
func (c *cluster) modified() int64 {
	if k := c.live.Load(); k != nil { // each is a time
		return k.APIConn.Modified(coredns.ModifiedInternal) + k.APIConn.Modified(coredns.ModifiedMultiCluster)
	}
	return 0
}

// plugin returns CoreDNS's plugin without a source of data, with the zone of imports or without.
func (c *cluster) plugin(imports bool) (*coredns.Kubernetes, error) {
	zones, option := c.zones(), "multicluster "+clusterSet
	if !imports {
		zones, option = slices.DeleteFunc(zones, func(z string) bool { return z == clusterSet }), ""
	}
	// These options can only be set by the text of a Corefile.
	text := `kubernetes ` + strings.Join(zones, " ") + ` {
		` + option + `
		pods insecure
		fallthrough in-addr.arpa ip6.arpa
	}`
	controller := &caddy.Controller{Dispenser: caddyfile.NewDispenser("rivulet", strings.NewReader(text))}
	controller.Next()
	k, err := coredns.ParseStanza(controller)
	if err != nil {
		return nil, err
	}
	k.Upstream = c.lookup
	k.Next = c.next
	return k, nil
}

// start begins to watch the API server; stop ends that.
func (c *cluster) start(ctx context.Context, config *rest.Config) (stop func() error, err error) {
	imports := c.define(ctx, config)
	k, err := c.plugin(imports)
	if err != nil {
		return nil, err
	}
	k.ClientConfig = loaded{config: config}
	// The first function returned waits for the API server; Run alone does not.
	_, stop, err = k.InitKubeCache(ctx)
	if err != nil {
		return nil, err
	}
	go k.APIConn.Run()
	c.without.Store(!imports)
	c.live.Store(k)
	if c.current.Load() == nil {
		c.current.Store(k)
		return stop, nil
	}
	// Remembered data are better than incomplete ones.
	go whenSynced(ctx, k, func() { c.current.Store(k) })
	return stop, nil
}

// define makes sure that the API server serves ServiceImports, and returns false if it does not.
func (c *cluster) define(ctx context.Context, config *rest.Config) bool {
	ctx, cancel := context.WithTimeout(ctx, c.limit)
	defer cancel()
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return false
	}
	for {
		if _, err := client.Resource(mcs.SchemeGroupVersion.WithResource(mcs.ServiceImportPluralName)).List(ctx, metav1.ListOptions{Limit: 1}); err == nil {
			return true // package clusterset applies later versions
		}
		_ = policy.Apply(ctx, config, clusterset.Definitions()) // the next List shows whether it helped
		if !changes.Wait(ctx, 200*time.Millisecond) {
			return false
		}
	}
}

func whenSynced(ctx context.Context, k *coredns.Kubernetes, f func()) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !k.APIConn.HasSynced() {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
	f()
}

// upstreamer is a function as a coredns.Upstreamer.
type upstreamer func(context.Context, request.Request, string, uint16) (*miekg.Msg, error)

func (u upstreamer) Lookup(ctx context.Context, state request.Request, name string, qtype uint16) (*miekg.Msg, error) {
	return u(ctx, state, name, qtype)
}

// loaded is a client configuration that was loaded already. Only ClientConfig is called.
type loaded struct {
	unused
	config *rest.Config
}

type unused interface{ clientcmd.ClientConfig }

func (l loaded) ClientConfig() (*rest.Config, error) { return l.config, nil }

// waitForAPI returns when the API server answers. Informers that start before that would use their own, long, back-off.
func (s *Server) waitForAPI(ctx context.Context) (*rest.Config, *kubernetes.Clientset, error) {
	const first, longest = 50 * time.Millisecond, time.Second
	said := ""
	for pause := first; ; pause = min(2*pause, longest) {
		config, client, err := s.tryAPI(ctx)
		if err == nil {
			return config, client, nil
		}
		if said != err.Error() {
			said = err.Error()
			s.log.Debug("waiting for the API server", "err", err)
		}
		if !changes.Wait(ctx, pause) {
			return nil, nil, ctx.Err()
		}
	}
}

func (s *Server) tryAPI(ctx context.Context) (*rest.Config, *kubernetes.Clientset, error) {
	if err := s.kubeconfigError(); err != nil {
		return nil, nil, err
	}
	config, err := kube.RESTConfig(s.cfg.Kubeconfig)
	if err != nil {
		return nil, nil, err
	}
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = config.ContentType + ",application/json" // ServiceImports are JSON only
	config.UserAgent = "rivulet-dns"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, nil, err
	}
	asking, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if err := client.Discovery().RESTClient().Get().AbsPath("/version").Do(asking).Error(); err != nil {
		return nil, nil, err
	}
	return config, client, nil
}
