package nodes

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	bootstrap "k8s.io/cluster-bootstrap/token/api"

	"rivulet/appliance/addons/dns"
	"rivulet/appliance/addons/loadbalancer"
	"rivulet/appliance/config/fixed"
	"rivulet/appliance/engine"
	"rivulet/appliance/machine/host"
	"rivulet/appliance/state/paths"
	"rivulet/fabric"
	"rivulet/fabric/changes"
	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
	"rivulet/offload/apiproxy"
	"rivulet/offload/policy"
)

// Routes of the server for its workers, inside the tunnel.
const (
	infoPath = "/v1/node"
	apiPath  = "/v1/node/k8s/"
)

// group has the rights of workers' supervisors (rivulet-engine.yaml); each is a user of its own.
const group = "rivulet:nodes"

// admission bounds what workers write.
//
//go:embed admission.yaml
var admission []byte

// server is the part of the device with the cluster's API.
type server struct {
	*Device
	fabric *fabric.Fabric
	client kubernetes.Interface
	proxy  *apiproxy.Proxy
	begun  time.Time
	// standby reports whether a node is a standby now.
	standby func(peer.ID) bool
	// balanced is the last of Balanced.
	balanced []loadbalancer.Node
	serving  sync.Mutex // held while the engine's list of workers is made and written
}

// request is what a worker sends about itself.
type request struct {
	Name       string `json:"name"` // that its node should have
	Kubernetes string `json:"kubernetes"`
}

// maxRequest bounds a worker's request, bytes.
const maxRequest = 4 << 10

// runServer serves workers until ctx ends.
func (d *Device) runServer(ctx context.Context, ready func()) error {
	local, err := d.API()
	if err != nil {
		return err
	}
	s := &server{Device: d, fabric: d.Fabric(), begun: time.Now()}
	s.standby = func(id peer.ID) bool { r, err := s.fabric.Worker(id); return err == nil && r.Standby }
	if s.client, err = kubernetes.NewForConfig(local); err != nil {
		return err
	}
	if s.proxy, err = apiproxy.New(local, d.Log); err != nil {
		return err
	}
	defer s.proxy.Close()
	if err := s.serve(); err != nil {
		return err
	}
	if err := policy.Apply(ctx, local, admission); err != nil { // before a worker may join
		return err
	}
	s.fabric.Handle("POST "+infoPath, http.HandlerFunc(s.info))
	s.fabric.Handle(apiPath, http.HandlerFunc(s.serveAPI))
	s.fabric.Handle("PUT "+lanPath, s.forWorkers(s.receiveLAN))
	s.serveTenants()
	s.fabric.Handle("GET "+copyPath, s.forWorkers(s.giveCopy))
	ready()
	go d.joinConfigured(ctx, s.client)
	return s.follow(ctx)
}

// serveAPI passes a worker's requests to the API server.
func (s *server) serveAPI(w http.ResponseWriter, r *http.Request) {
	id, _ := rpc.PeerID(r)
	rec, err := s.fabric.Worker(id)
	at := "/" + strings.TrimPrefix(r.URL.Path, apiPath)
	if err != nil || rec.Node == "" || !plain(at) || r.URL.RawPath != "" {
		apiproxy.Refuse(w, http.StatusForbidden, metav1.StatusReasonForbidden, cmp.Or(err, errors.New("this is no path of the API")).Error())
		return
	}
	s.passAPI(w, r, rec.Node, at)
}

// passAPI passes a request of the supervisor of a node with the path at to the API server.
func (s *server) passAPI(w http.ResponseWriter, r *http.Request, node, at string) {
	for header := range r.Header {
		if apiproxy.Says(header) {
			r.Header.Del(header)
		}
	}
	if what := apiproxy.Parse(r, at); what.Verb == "create" && what.Resource == "persistentvolumes" {
		refused, err := s.verifyVolume(w, r, node)
		if err != nil {
			apiproxy.Refuse(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, err.Error())
			return
		}
		if refused != "" {
			apiproxy.Refuse(w, http.StatusForbidden, metav1.StatusReasonForbidden, refused)
			return
		}
	}
	s.proxy.Serve(w, r, apiproxy.As{User: "rivulet:node:" + node, Group: group, Silent: "the API server of " + s.Name() + " does not answer"}, at, "")
}

// plain reports whether a path is one that workers use.
func plain(path string) bool {
	return !strings.Contains(path, "//") && !strings.Contains(path, "/.") &&
		slices.ContainsFunc([]string{"/api/", "/apis/", "/api", "/apis", "/version", "/readyz", "/openapi/"}, func(p string) bool {
			return path == p || strings.HasSuffix(p, "/") && strings.HasPrefix(path, p)
		})
}

// info answers a worker that begins, or begins again.
func (s *server) info(w http.ResponseWriter, r *http.Request) {
	id, _ := rpc.PeerID(r)
	var q request
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxRequest)).Decode(&q); err != nil {
		rpc.Fail(w, http.StatusBadRequest, &rpc.Error{Code: "bad-request", Message: "the request is unreadable", Cure: "run the same version of rivulet on both devices"})
		return
	}
	i, err := s.admit(r.Context(), id, q)
	if known := (*rpc.Error)(nil); errors.As(err, &known) {
		rpc.Fail(w, http.StatusForbidden, known)
		return
	}
	if err != nil {
		s.Log.Warn("a worker gets no answer", "id", id.Short(), "err", err)
		rpc.Fail(w, http.StatusServiceUnavailable, &rpc.Error{Code: "busy", Message: s.Name() + " cannot take it now", Cure: "it is tried again"})
		return
	}
	rpc.Write(w, http.StatusOK, i)
}

// admit gives a worker its name and its token.
func (s *server) admit(ctx context.Context, id peer.ID, q request) (Info, error) {
	rec, err := s.fabric.Worker(id)
	if err != nil {
		return Info{}, err
	}
	served, err := s.client.Discovery().ServerVersion()
	if err != nil {
		return Info{}, err
	}
	if !fits(served.GitVersion, q.Kubernetes) {
		return Info{}, &rpc.Error{Code: "version", Message: fmt.Sprintf("a node with Kubernetes %.40q cannot join a cluster with %s", q.Kubernetes, served.GitVersion), Cure: "upgrade the older device, the server before its workers"}
	}
	address := s.AddressOf(id)
	if address == s.Address || s.Taken(address) || slices.ContainsFunc(s.fabric.Nodes(), func(o peer.Record) bool { return o.ID != id && s.AddressOf(o.ID) == address }) {
		return Info{}, &rpc.Error{Code: "address", Message: fmt.Sprintf("the address %s of its node is in use in this cluster", address), Cure: "give the device another identity: rivulet reset --factory"}
	}
	name := rec.Node
	if name == "" {
		if name, err = s.free(ctx, q.Name, id); err != nil {
			return Info{}, err
		}
		if err := s.fabric.SetNode(id, name, []netip.Prefix{netip.PrefixFrom(address, 32)}); err != nil {
			return Info{}, err
		}
		s.Log.Info("a device has joined", "node", name, "id", id.Short())
	}
	if err := s.serve(); err != nil {
		return Info{}, err
	}
	token, err := s.token(ctx, id)
	if err != nil {
		return Info{}, err
	}
	return Info{
		Server: s.ID, Cluster: s.Name(), Address: s.Address, Ranges: fixed.Ranges{Pods: fixed.PodCIDR, Services: fixed.ServiceCIDR, Nodes: fixed.NodeRange},
		Block: s.Block(), Kubernetes: served.GitVersion, Node: name, Token: token,
	}, nil
}

// workers returns the records of the workers of this cluster, by the names of their nodes.
func (s *server) workers() map[string]peer.Record {
	out := map[string]peer.Record{}
	for _, r := range s.fabric.Nodes() {
		if r.Trust.How == peer.TrustWorker && r.Node != "" && r.Node != s.NodeName {
			out[r.Node] = r
		}
	}
	return out
}

// serve makes the engine serve the workers of this cluster alone, each as its own node.
func (s *server) serve() error {
	s.serving.Lock()
	defer s.serving.Unlock()
	list := engine.Workers{}
	for name, r := range s.workers() {
		list[s.AddressOf(r.ID)] = name
	}
	return engine.SaveWorkers(s.State, list)
}

// oldest is how many minor versions a kubelet may be older than the API server; it may not be newer (Kubernetes' version
// skew policy).
const oldest = 3

func fits(server, worker string) bool {
	s, err := version.ParseGeneric(server)
	w, wErr := version.ParseGeneric(worker)
	return err == nil && wErr == nil && s.Major() == w.Major() && w.Minor() <= s.Minor() && w.Minor()+oldest >= s.Minor()
}

// usable reports whether a node may have the name that it wants. The certificate of its kubelet has that name, and pods
// know the API server as kubernetes.
func usable(wanted string) bool {
	return wanted != "" && wanted != "kubernetes" && host.Name(wanted) == wanted
}

// free is the name of a new node: the wanted one, unless another node or worker has it.
func (s *server) free(ctx context.Context, wanted string, id peer.ID) (string, error) {
	taken := func(name string) (bool, error) {
		if slices.ContainsFunc(s.fabric.Nodes(), func(r peer.Record) bool { return r.Node == name }) {
			return true, nil
		}
		n, err := s.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		if err == nil && n.Labels[policy.VirtualNodeLabel] == string(id) {
			err = fmt.Errorf("the virtual node %s of what this device was as a peer is being removed", name)
		}
		return true, err
	}
	long := "rivulet-" + id.Short()
	if usable(wanted) {
		if used, err := taken(wanted); err != nil || !used {
			return wanted, err
		}
		long = strings.TrimRight(wanted[:min(len(wanted), 50)], "-.") + "-" + id.Short()
	}
	if used, err := taken(long); err != nil || used {
		return "", cmp.Or(err, error(&rpc.Error{Code: "name-taken", Message: "another node is called " + long, Cure: "remove it there: rivulet nodes remove " + long}))
	}
	return long, nil
}

// token returns the worker's token for k3s, and makes it if there is none. Each device has its own, so that it ends with
// it: the device's whole ID is in the label, since the 6 characters of a name that Kubernetes permits could be another's.
func (s *server) token(ctx context.Context, id peer.ID) (string, error) {
	secrets := s.client.CoreV1().Secrets(metav1.NamespaceSystem)
	list, err := secrets.List(ctx, metav1.ListOptions{LabelSelector: labels.SelectorFromSet(labels.Set{policy.WorkerLabel: string(id)}).String()})
	if err != nil {
		return "", err
	}
	var have *corev1.Secret
	if len(list.Items) > 0 {
		have = &list.Items[0]
	} else {
		raw := make([]byte, 11)
		rand.Read(raw)
		tokenID := hex.EncodeToString(raw[:3])
		have, err = secrets.Create(ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: bootstrap.BootstrapTokenSecretPrefix + tokenID, Labels: map[string]string{policy.WorkerLabel: string(id)}},
			Type:       bootstrap.SecretTypeBootstrapToken,
			Data: map[string][]byte{
				bootstrap.BootstrapTokenIDKey: []byte(tokenID), bootstrap.BootstrapTokenSecretKey: []byte(hex.EncodeToString(raw[3:])),
				bootstrap.BootstrapTokenUsageAuthentication: []byte("true"),
				bootstrap.BootstrapTokenExtraGroupsKey:      []byte("system:bootstrappers:k3s:default-node-token"),
			},
		}, metav1.CreateOptions{})
		if err != nil { // one of another device may have the name: the worker asks again
			return "", err
		}
	}
	ca, err := os.ReadFile(paths.Server(s.State, "tls", "server-ca.crt"))
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("K10%x::%s.%s", sha256.Sum256(ca), have.Data[bootstrap.BootstrapTokenIDKey], have.Data[bootstrap.BootstrapTokenSecretKey]), nil
}

// followEvery is the longest interval of comparisons.
const followEvery = 30 * time.Second

// follow keeps the prefixes behind workers equal to what the cluster gives them, and removes what former workers leave.
func (s *server) follow(ctx context.Context) error {
	s.polled.Follow(ctx, s.fabric.Changed)
	moved, stop := s.polled.Changed()
	defer stop()
	for ctx.Err() == nil {
		w, err := s.client.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{LabelSelector: policy.WorkerLabel})
		if err != nil {
			changes.Wait(ctx, time.Second)
			continue
		}
		s.until(ctx, w.ResultChan(), moved)
		w.Stop()
	}
	return ctx.Err()
}

// until compares until the watch ends. A Node's heartbeats are in its lease, so there are few events.
func (s *server) until(ctx context.Context, events <-chan watch.Event, moved <-chan struct{}) {
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	for {
		if err := s.compare(ctx); err != nil && ctx.Err() == nil {
			s.Log.Warn("nodes cannot be compared; it is tried again", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-moved:
		case <-tick.C:
		case _, open := <-events:
			if !open {
				return
			}
		}
	}
}

func (s *server) compare(ctx context.Context) error {
	served := s.serve() // first: a worker that was removed ends, whether the API answers or not
	s.reportStandbys()
	if now := s.Balanced(); !reflect.DeepEqual(now, s.balanced) {
		s.balanced = now
		s.lanChanged.Notify()
	}
	list, err := s.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: "!" + policy.VirtualNodeLabel})
	if err != nil {
		return errors.Join(served, err)
	}
	workers := s.workers()
	ranges, wrong := podRanges(list.Items, s.NodeName, fixed.PodCIDR)
	errs := []error{served, wrong}
	answers := map[string]bool{} // workers whose DNS their pods use
	for i := range list.Items {
		n := &list.Items[i]
		r, known := workers[n.Name]
		if _, worker := n.Labels[policy.WorkerLabel]; !known {
			if n.Name == s.NodeName && worker { // it has become the server
				errs = append(errs, s.patchLabels(ctx, n.Name, fmt.Appendf(nil, `{%q:null}`, policy.WorkerLabel)))
			} else if n.Name != s.NodeName && worker {
				errs = append(errs, forget(ctx, s.client, n.Name, s.Log))
			}
			continue
		}
		behind := []netip.Prefix{netip.PrefixFrom(s.AddressOf(r.ID), 32)}
		if p, ok := ranges[n.Name]; ok {
			behind = append(behind, p)
		}
		if !slices.Equal(behind, r.Behind) {
			errs = append(errs, s.fabric.SetNode(r.ID, r.Node, behind))
		}
		errs = append(errs, s.relabel(ctx, n.Name, n.Labels[policy.WorkerLabel], r.ID))
		if ready, _ := engine.NodeReady(n); ready {
			answers[n.Name] = true
			errs = append(errs, dns.EnsureWorker(ctx, s.client, netip.AddrPortFrom(s.AddressOf(r.ID), fixed.DNSPort), n.Name, map[string]string{policy.WorkerLabel: "true"}))
		}
	}
	return errors.Join(append(errs, dns.DropWorkers(ctx, s.client, policy.WorkerLabel, answers), s.dropTokens(ctx), s.dropOthers(ctx))...)
}

// dropTokens removes the tokens of devices that are no workers any more.
func (s *server) dropTokens(ctx context.Context) error {
	secrets := s.client.CoreV1().Secrets(metav1.NamespaceSystem)
	list, err := secrets.List(ctx, metav1.ListOptions{LabelSelector: policy.WorkerLabel})
	if err != nil {
		return err
	}
	var errs []error
	for _, x := range list.Items {
		if _, err := s.fabric.Worker(peer.ID(x.Labels[policy.WorkerLabel])); err == nil {
			continue
		}
		if err := secrets.Delete(ctx, x.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
