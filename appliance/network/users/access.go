package users

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"rivulet/appliance/api"
	"rivulet/fabric/changes"
	"rivulet/fabric/control"
	"rivulet/fabric/logbound"
	"rivulet/offload/apiproxy"
)

// Config is the input of New. All of it is required.
type Config struct {
	Store Store
	Key   ed25519.PrivateKey // of the cluster
	Name  api.Named          // of the cluster
	Clock api.PlausibleClock
	// Engine has the API server's configuration with the owner's rights; an error before it is known.
	Engine interface{ REST() (*rest.Config, error) }
	// VClusters are those of this device.
	VClusters VClusters
	// LAN has the device's addresses on its LANs, Port is the control port.
	LAN  interface{ Addresses() []netip.Addr }
	Port uint16
	Log  *slog.Logger
}

// Access manages who may use the API from the LAN. Its routes work before Run.
type Access struct {
	cfg  Config
	list *list
	wake chan struct{}

	mu      sync.Mutex // one change of bindings at a time
	settled string     // input of the present bindings; "": unknown
}

// New reads the note.
func New(cfg Config) *Access {
	cfg.Log = logbound.New(cfg.Log) // users cause records with their requests
	return &Access{cfg: cfg, list: load(cfg.Store), wake: make(chan struct{}, 1)}
}

// every is the longest time that an expired access continues.
const every = 5 * time.Second

// Run serves users until ctx ends. Pass routes connections for ServerName, or of browsers, to h; nil ends that. Run
// calls ready when it serves.
func (a *Access) Run(ctx context.Context, pass func(h func(net.Conn), names ...string), ready func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cfg, err := a.cfg.Engine.REST()
	if err != nil {
		return err
	}
	f, err := newFront(ctx, a.cfg.Key, a.list, a.cfg.Clock, a.cfg.Log)
	if err != nil {
		return err
	}
	if f.proxy, err = apiproxy.New(cfg, a.cfg.Log); err != nil {
		return err
	}
	f.virtual = a.cfg.VClusters
	pages, err := newLinks(ctx, a)
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(f.serve)
	wg.Go(pages.serve)
	pass(f.take, ServerName)
	defer pass(nil, ServerName)
	pass(pages.give, control.Browsers)
	defer pass(nil, control.Browsers)
	ready()
	gone, stop := a.cfg.VClusters.Changed()
	defer stop()
	tick := time.NewTicker(every)
	defer tick.Stop()
	a.mu.Lock()
	a.settled = ""
	a.mu.Unlock()
	for warned := false; ; {
		now, sure := a.cfg.Clock.Plausible()
		err := a.endGone(now)
		a.list.sweep(now, sure)
		f.closeWays(now)
		err = errors.Join(err, a.settle(ctx))
		if err != nil && !warned {
			a.cfg.Log.Warn("the rights of users are not right yet", "err", err)
		}
		warned = err != nil
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-a.wake:
		case <-gone:
		}
	}
}

// settle makes the bindings match the users with access now.
func (a *Access) settle(ctx context.Context) error {
	cfg, err := a.cfg.Engine.REST()
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	return a.settleBy(ctx, client)
}

// settleBy reads the users with access under the lock, so that it does not revert a concurrent change. Without a change
// it sends no request to the API server.
func (a *Access) settleBy(ctx context.Context, client kubernetes.Interface) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	now, sure := a.cfg.Clock.Plausible()
	active := slices.DeleteFunc(a.list.active(now), func(r record) bool { return !sure || r.ID != "" })
	of := fmt.Sprintf("%+v", active)
	if of == a.settled {
		return nil
	}
	a.settled = ""
	if err := settle(ctx, client, active); err != nil {
		return err
	}
	a.settled = of
	return nil
}

func (a *Access) woken() {
	changes.Poke(a.wake)
}

// Routes registers the routes of `rivulet kubeconfig`.
func (a *Access) Routes(mux *http.ServeMux) {
	mux.Handle("GET /v1/kubeconfigs", api.JSON(func(*http.Request) (any, error) {
		now, _ := a.cfg.Clock.Plausible()
		return api.Kubeconfigs{Kubeconfigs: a.list.views(now)}, a.list.bad
	}))
	mux.Handle("POST /v1/kubeconfigs", api.JSON(func(r *http.Request) (any, error) {
		var q api.KubeconfigRequest
		if err := json.NewDecoder(http.MaxBytesReader(nil, r.Body, 64<<10)).Decode(&q); err != nil {
			return nil, fmt.Errorf("the request is unreadable: %w; are the command and the running rivulet of the same version?", err)
		}
		return a.give(r.Context(), q)
	}))
	mux.Handle("DELETE /v1/kubeconfigs/{user}", api.JSON(func(r *http.Request) (any, error) {
		now, sure := a.cfg.Clock.Plausible()
		err := a.list.revoke(r.PathValue("user"), r.URL.Query().Get("vcluster"), now)
		a.list.sweep(now, sure)
		a.woken()
		return struct{}{}, err
	}))
}

// give gives access. It writes the rights before the record, so that a printed file works at once.
func (a *Access) give(ctx context.Context, q api.KubeconfigRequest) (any, error) {
	now, sure := a.cfg.Clock.Plausible()
	if !sure {
		return nil, fmt.Errorf("the clock cannot be right (%s), so no end can be given; see: rivulet doctor --only clock", now.UTC().Format(time.RFC3339))
	}
	r, err := accept(q, now)
	if err != nil {
		return nil, err
	}
	if r.VCluster != "" {
		if r.ID, err = a.cfg.VClusters.Identity(r.VCluster); err != nil {
			return nil, err
		}
	}
	warning, err := a.namespace(ctx, r)
	if err != nil {
		return nil, err
	}
	if err := a.list.add(r, q.Replace); err != nil {
		return nil, err
	}
	a.list.sweep(now, true)
	if r.ID != "" { // its group has the rights already
		return a.describe(r, now)
	}
	if err := a.settle(ctx); err != nil {
		a.woken()
		if undone := a.list.drop(r); undone != nil {
			return nil, undone
		}
		ended := ""
		if q.Replace {
			ended = ", and an access that was to be replaced has ended"
		}
		return nil, fmt.Errorf("%w; nothing was made%s. Try again when `rivulet status` says ready", err, ended)
	}
	out, err := a.describe(r, now)
	out.Warning = warning
	return out, err
}

// describe returns the input of a record's file.
func (a *Access) describe(r record, now time.Time) (out api.NewKubeconfig, err error) {
	out = api.NewKubeconfig{Kubeconfig: r.view(now), Cluster: a.cfg.Name.Name(), ServerName: ServerName}
	for _, addr := range a.cfg.LAN.Addresses() {
		if !addr.IsLinkLocalUnicast() {
			out.Servers = append(out.Servers, "https://"+netip.AddrPortFrom(addr, a.cfg.Port).String())
		}
	}
	cert, err := serving(a.cfg.Key)
	if err != nil {
		return out, err
	}
	out.Authority = pemOf(cert)
	if r.Link.IsZero() {
		return out, nil
	}
	browsers, err := a.linkCertificate()
	if err != nil {
		return out, err
	}
	out.Pin, err = pin(browsers)
	return out, err
}

// podSecurity is the label by which a namespace refuses pods that could take over their node.
const podSecurity = "pod-security.kubernetes.io/enforce"

// namespace checks that the namespace exists, and warns if the right to create pods in it includes more.
func (a *Access) namespace(ctx context.Context, r record) (warning string, err error) {
	if r.Namespace == "" {
		return "", nil
	}
	cfg, err := a.cfg.Engine.REST()
	if err != nil {
		return "", fmt.Errorf("the API server has not started yet (%w); see: rivulet status", err)
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return "", err
	}
	ns, err := client.CoreV1().Namespaces().Get(ctx, r.Namespace, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", fmt.Errorf("there is no namespace %s; make it first: rivulet kubectl create namespace %s", r.Namespace, r.Namespace)
	}
	if err != nil {
		return "", fmt.Errorf("%w; see: rivulet status", err)
	}
	if level := ns.Labels[podSecurity]; r.Role != "view" && level != "baseline" && level != "restricted" {
		warning = fmt.Sprintf("namespace %s takes privileged pods, by which its users own the device; close it: rivulet kubectl label namespace %[1]s %s=baseline", r.Namespace, podSecurity)
	}
	return warning, nil
}
