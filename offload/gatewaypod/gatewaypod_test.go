package gatewaypod_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/tun/netstack"
	appsv1 "k8s.io/api/apps/v1"
	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	program "rivulet/fabric/gateway"
	"rivulet/fabric/gateway/gatewayproto"
	"rivulet/fabric/tunnel"
	"rivulet/fabric/wgkey"
	"rivulet/offload/gatewaypod"
	"rivulet/test/harness/apiserver"
	"rivulet/test/harness/await"
	"rivulet/test/harness/locks"
)

// The world of these tests: one API server is home and campus. At the campus we are
// an ordinary user of one namespace; the kubelet is a stand-in whose port-forwards
// lead to gateways in this process. Home's tunnel is one on a network stack.
const (
	shared  = "student42"
	home    = "shop"
	cluster = "abcdef234567"
	long    = 60 * time.Second
)

var (
	podCIDR = netip.MustParsePrefix("10.42.0.0/16")
	prefix  = netip.MustParsePrefix("10.200.0.0/16")
	homePod = netip.MustParseAddr("10.42.0.5")
	real    = netip.MustParseAddr("127.0.0.1") // a pod at the campus
)

type world struct {
	*testing.T
	server  *apiserver.Server
	kubelet *apiserver.Kubelet
	user    *rest.Config
	fabric  *fabric
	image   string
	program func(string) ([]byte, error)

	sums string // answers with the sum of what comes

	mu       sync.Mutex
	programs map[string]*podProgram // by pod
	forwards []net.Conn
}

// fabric is home's: one userspace tunnel.
type fabric struct {
	t       testing.TB
	net     *netstack.Net
	tunnel  *tunnel.Userspace
	private string
	public  string
	port    uint16
	taken   atomic.Bool // the prefix is not free any more
}

func (f *fabric) SetGateway(name, publicKey string, p netip.Prefix) {
	private, err := wgkey.ParsePrivate(f.private)
	if err != nil {
		f.t.Error(err)
	}
	cfg := tunnel.Config{PrivateKey: private, Port: f.port, Interface: "netstack", MTU: 1280, Address: netip.MustParseAddr("10.42.255.254"), PodCIDR: podCIDR}
	if p.IsValid() {
		public, err := wgkey.Parse(publicKey)
		if err != nil {
			f.t.Error(err)
		}
		cfg.Peers = []tunnel.Peer{{ID: name, PublicKey: public, LocalMappedCIDR: podCIDR, PeerMappedCIDR: p}}
	}
	if err := f.tunnel.Apply(cfg); err != nil {
		f.t.Error(err)
	}
}

func (f *fabric) GatewayPrefix(_ string, previous netip.Prefix) (netip.Prefix, error) {
	if f.taken.Load() {
		return netip.MustParsePrefix("10.201.0.0/16"), nil
	}
	return prefix, nil
}

func (f *fabric) GatewayConfig() (string, netip.Prefix, []netip.AddrPort, []netip.AddrPort) {
	return f.public, podCIDR, nil, nil
}

func (f *fabric) GatewayStream(conn net.Conn) error {
	raw, err := conn.(interface{ File() (*os.File, error) }).File() // as the tunnel's process has its own
	if err != nil {
		return err
	}
	defer raw.Close()
	own, err := net.FileConn(raw)
	if err != nil {
		return err
	}
	f.tunnel.Accept(own, nil)
	return nil
}

func (f *fabric) GatewayPath(context.Context, string) (gatewayproto.Path, bool) {
	st, err := f.tunnel.Status()
	if err != nil || len(st.Peers) != 1 || len(st.Peers[0].Paths) == 0 || !st.Peers[0].Paths[0].Used {
		return gatewayproto.Path{}, false
	}
	p := st.Peers[0]
	return gatewayproto.Path{Kind: string(p.Paths[0].Kind), RTT: p.Paths[0].RTT, Received: p.Received, Sent: p.Sent}, true
}

// podProgram is the program of one gateway pod.
type podProgram struct {
	*program.Gateway
	control, streams, dns string
	stop                  context.CancelFunc
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{T: t, server: apiserver.Start(t), programs: map[string]*podProgram{}, image: "registry.example/rivulet-gateway:1"}
	w.kubelet = apiserver.StartKubelet(t, w.server, "campus-1")
	w.kubelet.Forward(w.forward)
	w.enrol()
	device, stack, err := netstack.CreateNetTUN([]netip.Addr{homePod}, nil, 1280)
	if err != nil {
		t.Fatal(err)
	}
	w.fabric = &fabric{t: t, net: stack, tunnel: tunnel.NewUserspace(device, logger(t).With("side", "home")), port: freeUDP(t)}
	t.Cleanup(w.fabric.tunnel.Close)
	w.fabric.private, w.fabric.public = keys(t)
	t.Cleanup(func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, p := range w.programs {
			p.stop()
		}
	})
	return w
}

// enrol makes the namespace, which is restricted, and the user with the rights that
// the documentation names.
func (w *world) enrol() {
	w.Helper()
	ctx, c := w.Context(), w.server.Client
	must := func(err error) {
		w.Helper()
		if err != nil {
			w.Fatal(err)
		}
	}
	for name, labels := range map[string]map[string]string{shared: {"pod-security.kubernetes.io/enforce": "restricted"}, home: nil} {
		_, err := c.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}, metav1.CreateOptions{})
		must(err)
	}
	_, err := c.CoreV1().ServiceAccounts(shared).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "student"}}, metav1.CreateOptions{})
	must(err)
	_, err = c.RbacV1().Roles(shared).Create(ctx, &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "student"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"get", "create", "update", "delete"}},
		{APIGroups: []string{""}, Resources: []string{"services"}, Verbs: []string{"get", "list", "watch", "create", "update", "delete"}},
		{APIGroups: []string{"apps"}, Resources: []string{"deployments"}, Verbs: []string{"get", "create", "update", "delete"}},
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get", "list", "watch"}},
		{APIGroups: []string{""}, Resources: []string{"pods/portforward", "pods/exec"}, Verbs: []string{"get", "create"}},
		{APIGroups: []string{"networking.k8s.io"}, Resources: []string{"networkpolicies"}, Verbs: []string{"get", "list", "create", "update", "delete"}},
	}}, metav1.CreateOptions{})
	must(err)
	_, err = c.RbacV1().RoleBindings(shared).Create(ctx, &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "student"},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "student"},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Name: "student", Namespace: shared}}}, metav1.CreateOptions{})
	must(err)
	token, err := c.CoreV1().ServiceAccounts(shared).CreateToken(ctx, "student", &authv1.TokenRequest{}, metav1.CreateOptions{})
	must(err)
	w.user = rest.AnonymousClientConfig(w.server.Config)
	w.user.BearerToken = token.Status.Token
}

func (w *world) config() gatewaypod.Config {
	changed := func() (<-chan struct{}, func()) { return make(chan struct{}), func() {} }
	return gatewaypod.Config{
		Name: "campus", ClusterID: cluster, Campus: w.user, Namespace: shared, Labels: map[string]string{"rivulet.dev/burst-home": cluster},
		Home: w.server.Client, Reflects: func(ns string) bool { return ns == home }, Changed: changed,
		ServiceName: func(ns, name string) string { return name + "-" + ns }, Transport: gatewaypod.TransportStream,
		Fabric: w.fabric, Image: w.image, Program: w.program, Log: logger(w.T),
		HomeAPI: netip.AddrPortFrom(homePod, 6443),
	}
}

// run starts home's side; stop ends it as a restart of the supervisor would.
func (w *world) run() (*gatewaypod.Gateway, func()) {
	w.Helper()
	g, err := gatewaypod.New(w.config())
	if err != nil {
		w.Fatal(err)
	}
	ctx, cancel := context.WithCancel(w.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil { // as the manager does
			if err := g.Run(ctx); ctx.Err() == nil {
				w.Logf("gateway: %v", err)
				select {
				case <-ctx.Done():
				case <-time.After(200 * time.Millisecond):
				}
			}
		}
	}()
	stop := func() { cancel(); <-done }
	w.Cleanup(stop)
	return g, stop
}

// forward is the kubelet's: each pod has a program of its own, which begins with what
// its Secret says, as a pod does.
func (w *world) forward(pod string, port int32) (net.Conn, error) {
	p, err := w.start(pod)
	if err != nil {
		return nil, err
	}
	at := map[int32]string{gatewayproto.ControlPort: p.control, gatewayproto.StreamPort: p.streams, sumPort: w.sums}[port]
	if at == "" {
		return nil, fmt.Errorf("nobody listens on %d", port)
	}
	c, err := net.Dial("tcp", at)
	if err == nil {
		w.mu.Lock()
		w.forwards = append(w.forwards, c)
		w.mu.Unlock()
	}
	return c, err
}

func (w *world) start(pod string) (*podProgram, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p := w.programs[pod]; p != nil {
		return p, nil
	}
	for other, p := range w.programs { // there is one at a time, and they share this machine
		p.stop()
		delete(w.programs, other)
	}
	g, err := program.New("127.0.0.1", logger(w.T).With("side", pod))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &podProgram{Gateway: g, stop: func() { cancel(); g.Close() }}
	for _, s := range []struct {
		at    *string
		serve func(net.Listener)
	}{
		{&p.control, func(l net.Listener) { g.ServeControl(ctx, l) }},
		{&p.streams, func(l net.Listener) { g.TakeStreams(ctx, l) }},
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			p.stop()
			return nil, err
		}
		*s.at = l.Addr().String()
		go s.serve(l)
	}
	p.dns = locks.Address(w.T)
	go g.ServeDNS(ctx, p.dns, nil)
	w.programs[pod] = p
	return p, nil
}

func (w *world) current(g *gatewaypod.Gateway) *podProgram {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.programs[g.Status().Pod]
}

// cut ends all connections through the API server.
func (w *world) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.forwards {
		c.Close()
	}
	w.forwards = nil
}

func (w *world) awaitReady(g *gatewaypod.Gateway) {
	w.Helper()
	w.await("pods there and home reach each other", func() bool { return g.Status().Ready }, func() any { return g.Status() })
}

func (w *world) await(text string, what func() bool, state ...func() any) {
	w.Helper()
	await.NoError(w.T, w.Context(), 3*long, text, func() error {
		if what() {
			return nil
		}
		out := ""
		for _, s := range state {
			out += fmt.Sprintf("%+v ", s())
		}
		return errors.New(out)
	})
}

// expose makes a Service at home with one pod behind it, which answers with its name.
func (w *world) says(name string, port uint16) {
	w.Helper()
	l, err := w.fabric.net.ListenTCPAddrPort(netip.AddrPortFrom(homePod, port))
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			io.WriteString(c, name)
			c.Close()
		}
	}()
}

// expose makes a Service at home whose pod says its name.
func (w *world) expose(name string, port uint16) {
	w.Helper()
	w.says(name, port)
	ctx, number, tcp, ready := w.Context(), int32(port), corev1.ProtocolTCP, true
	if _, err := w.server.Client.CoreV1().Services(home).Create(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}}}, metav1.CreateOptions{}); err != nil {
		w.Fatal(err)
	}
	http := "http"
	if _, err := w.server.Client.DiscoveryV1().EndpointSlices(home).Create(ctx, &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: name + "-1", Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: &http, Port: &number, Protocol: &tcp}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{homePod.String()}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}},
	}, metav1.CreateOptions{}); err != nil {
		w.Fatal(err)
	}
}

// visit is a pod at the campus that goes to a Service of home by its name: it asks the
// gateway's DNS, and comes where the campus's Service sends it.
func (w *world) visit(g *gatewaypod.Gateway, name string) (string, error) {
	p := w.current(g)
	if p == nil {
		return "", errors.New("no gateway runs")
	}
	var r net.Resolver
	r.PreferGo = true
	r.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, network, p.dns)
	}
	ctx, cancel := context.WithTimeout(w.Context(), 5*time.Second)
	defer cancel()
	if !strings.Contains(name, ".") {
		name += "." + home
	}
	ips, err := r.LookupHost(ctx, name+".svc.cluster.local.")
	if err != nil {
		return "", err
	}
	services, err := w.server.Client.CoreV1().Services(shared).List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", err
	}
	i := slices.IndexFunc(services.Items, func(s corev1.Service) bool { return s.Spec.ClusterIP == ips[0] })
	if i < 0 {
		return "", fmt.Errorf("no Service at the campus has %s", ips[0])
	}
	c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", services.Items[i].Spec.Ports[0].TargetPort.IntValue()))
	if err != nil {
		return "", err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(10 * time.Second))
	said, err := io.ReadAll(c)
	return string(said), err
}

func (w *world) awaitVisit(g *gatewaypod.Gateway, name string) {
	w.Helper()
	var said string
	var err error
	w.await("Service "+name+" answers at the campus", func() bool {
		said, err = w.visit(g, name)
		return err == nil && said == name
	}, func() any { return fmt.Sprintf("%q %v, %+v", said, err, g.Status()) })
}

// call is a pod at home that goes to one at the campus by the address that home sees.
func (w *world) call(g *gatewaypod.Gateway) {
	w.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			io.WriteString(c, "campus pod")
			c.Close()
		}
	}()
	seen, ok := g.Home(real)
	if !ok || !prefix.Contains(seen) {
		w.Fatalf("%s is seen as %s, %v", real, seen, ok)
	}
	to := netip.AddrPortFrom(seen, netip.MustParseAddrPort(l.Addr().String()).Port())
	var last error
	w.await("home reaches the campus pod at "+to.String(), func() bool {
		ctx, cancel := context.WithTimeout(w.Context(), 3*time.Second)
		defer cancel()
		c, err := w.fabric.net.DialContextTCPAddrPort(ctx, to)
		if last = err; err != nil {
			return false
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(10 * time.Second))
		said, err := io.ReadAll(c)
		last = err
		return string(said) == "campus pod"
	}, func() any { return fmt.Sprint(last, g.Status()) })
}

func TestGatewayThroughTheAPIServer(t *testing.T) {
	w := newWorld(t)
	g, stop := w.run()
	w.expose("web", 8080)
	w.awaitReady(g)
	if st := g.Status(); st.Transport != "stream through the API server" || st.RTT <= 0 || st.Prefix != prefix {
		t.Errorf("%+v", st)
	}
	w.call(g)
	w.awaitVisit(g, "web")
	dns, ok := g.DNS(home)
	if !ok || dns.Searches[0] != "shop.svc.cluster.local" || len(dns.Nameservers) != 1 {
		t.Errorf("%+v %v", dns, ok)
	}

	t.Run("home's API server", func(t *testing.T) {
		w.says("kubernetes.default", 6443)
		w.awaitVisit(g, "kubernetes.default")
		if away, ok := g.Away(must(g.Home(real))); !ok || away != real {
			t.Errorf("the pod is at %s, not %s", away, real)
		}
		if away, ok := g.Away(netip.MustParseAddr("10.200.77.7")); ok {
			t.Errorf("nobody is at %s", away)
		}
	})
	t.Run("a file", func(t *testing.T) { w.carries(t, g) })
	t.Run("a Service that comes and goes", func(t *testing.T) {
		w.expose("api", 8081)
		w.awaitVisit(g, "api")
		if err := w.server.Client.CoreV1().Services(home).Delete(t.Context(), "api", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		w.await("the campus's Service goes with home's", func() bool {
			_, err := w.server.Client.CoreV1().Services(shared).Get(t.Context(), "api-shop", metav1.GetOptions{})
			return err != nil
		})
	})
	t.Run("the campus's Service is spoilt", func(t *testing.T) {
		s, err := w.server.Client.CoreV1().Services(shared).Get(t.Context(), "web-shop", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		s.Spec.Selector = map[string]string{"app": "evil"}
		if _, err := w.server.Client.CoreV1().Services(shared).Update(t.Context(), s, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		w.await("it is mended", func() bool {
			s, err := w.server.Client.CoreV1().Services(shared).Get(t.Context(), "web-shop", metav1.GetOptions{})
			return err == nil && s.Spec.Selector["app"] == ""
		})
	})
	t.Run("the connection to the API server breaks", func(t *testing.T) {
		w.cut()
		w.call(g)
		w.awaitVisit(g, "web")
	})
	t.Run("the gateway pod is deleted", func(t *testing.T) {
		was := g.Status().Pod
		if err := w.server.Client.CoreV1().Pods(shared).Delete(t.Context(), was, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		w.await("another pod is the gateway", func() bool { s := g.Status(); return s.Ready && s.Pod != was }, func() any { return g.Status() })
		w.call(g)
		w.awaitVisit(g, "web")
	})
	t.Run("home restarts", func(t *testing.T) {
		seen, _ := g.Home(real)
		before := w.secret()
		generation := w.deployment().Generation
		stop()
		g, stop = w.run()
		w.awaitReady(g)
		if again, _ := g.Home(real); again != seen {
			t.Errorf("the pod was %s and is %s", seen, again)
		}
		w.call(g)
		w.awaitVisit(g, "web")
		after := w.secret()
		if after.PrivateKey != before.PrivateKey || after.Services[0].Ports[0].Listen != before.Services[0].Ports[0].Listen || after.Generation <= before.Generation {
			t.Errorf("before %+v, after %+v", before, after)
		}
		if now := w.deployment().Generation; now != generation {
			t.Errorf("the Deployment was written again: %d, %d", generation, now)
		}
	})
	t.Run("the Deployment is deleted", func(t *testing.T) {
		was := g.Status().Pod
		if err := w.server.Client.AppsV1().Deployments(shared).Delete(t.Context(), w.deployment().Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		w.await("it is made again", func() bool { s := g.Status(); return s.Ready && s.Pod != was }, func() any { return g.Status() })
	})
	t.Run("a network of the host takes the prefix", func(t *testing.T) {
		w.fabric.taken.Store(true)
		w.await("home sees the pods elsewhere", func() bool {
			seen, ok := g.Home(real)
			return ok && netip.MustParsePrefix("10.201.0.0/16").Contains(seen) && g.Status().Ready
		}, func() any { return g.Status() })
		w.awaitVisit(g, "web")
	})
	t.Run("removed", func(t *testing.T) {
		stop()
		if err := g.Remove(t.Context()); err != nil {
			t.Fatal(err)
		}
		c := w.server.Client
		w.await("nothing is left", func() bool {
			ds, _ := c.AppsV1().Deployments(shared).List(t.Context(), metav1.ListOptions{})
			ss, _ := c.CoreV1().Services(shared).List(t.Context(), metav1.ListOptions{})
			ps, _ := c.CoreV1().Pods(shared).List(t.Context(), metav1.ListOptions{})
			xs, _ := c.CoreV1().Secrets(shared).List(t.Context(), metav1.ListOptions{})
			ns, _ := c.NetworkingV1().NetworkPolicies(shared).List(t.Context(), metav1.ListOptions{})
			return len(ds.Items)+len(ss.Items)+len(ps.Items)+len(xs.Items)+len(ns.Items) == 0
		})
	})
}

func must(a netip.Addr, _ bool) netip.Addr { return a }

func (w *world) secret() (c gatewayproto.Gateway) {
	w.Helper()
	s, err := w.server.Client.CoreV1().Secrets(shared).Get(w.Context(), "rivulet-gateway-"+cluster[:6], metav1.GetOptions{})
	if err == nil {
		err = json.Unmarshal(s.Data["config.json"], &c)
	}
	if err != nil {
		w.Fatal(err)
	}
	return c
}

func (w *world) deployment() *appsv1.Deployment {
	w.Helper()
	d, err := w.server.Client.AppsV1().Deployments(shared).Get(w.Context(), "rivulet-gateway-"+cluster[:6], metav1.GetOptions{})
	if err != nil {
		w.Fatal(err)
	}
	return d
}

// An image with a shell is enough: the program is put into it. And all goes through a
// proxy, if there is one. What belongs to others is not touched.
func TestAnyImageAndAProxy(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	var put atomic.Int32
	w.image, w.program = "", func(arch string) ([]byte, error) {
		if arch == "riscv64" {
			return nil, errors.New("there is no program for riscv64")
		}
		return bytes.Repeat([]byte("program of "+arch+"\n"), 300_000), nil
	}
	machine := "riscv64"
	var mu sync.Mutex
	w.kubelet.Exec(func(pod string, cmd []string, in io.Reader, out io.Writer) error {
		mu.Lock()
		defer mu.Unlock()
		script := strings.ReplaceAll(cmd[2], "/program/", dir+"/"+pod+"-")
		script = strings.ReplaceAll(script, "uname -m", "echo "+machine)
		if strings.Contains(script, "cat >") {
			put.Add(1)
		}
		c := exec.Command("/bin/sh", "-c", script)
		c.Stdin, c.Stdout = in, out
		return c.Run()
	})
	proxy, connects := newProxy(t)
	w.user.Proxy = http.ProxyURL(proxy)
	g, stop := w.run()
	w.await("it is said that there is no program for the node", func() bool {
		return strings.Contains(fmt.Sprint(g.Status().Problems), "no program for riscv64: name an image")
	}, func() any { return g.Status() })
	mu.Lock()
	machine = "aarch64"
	mu.Unlock()
	w.awaitReady(g)
	w.call(g)
	raw, err := os.ReadFile(filepath.Join(dir, g.Status().Pod+"-rivulet-gateway"))
	if err != nil || !bytes.HasPrefix(raw, []byte("program of arm64")) || len(raw) != 300_000*len("program of arm64\n") {
		t.Errorf("%d bytes, %v", len(raw), err)
	}
	if n := connects.Load(); n < 3 {
		t.Errorf("%d connections went through the proxy", n)
	}
	stop()
	g, stop = w.run()
	w.awaitReady(g)
	if n := put.Load(); n != 1 {
		t.Errorf("the program was put into the pod %d times", n)
	}
	stop()

	if err := g.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	name := "rivulet-gateway-" + cluster[:6]
	foreign := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string][]byte{"mine": []byte("keep")}}
	if _, err := w.server.Client.CoreV1().Secrets(shared).Create(t.Context(), foreign, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	g, err = gatewaypod.New(w.config())
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "not ours: remove it") {
		t.Errorf("with a foreign Secret of that name: %v", err)
	}
	have, err := w.server.Client.CoreV1().Secrets(shared).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil || string(have.Data["mine"]) != "keep" || len(have.Data) != 1 {
		t.Errorf("%v %v", have.Data, err)
	}
}

// newProxy is an HTTP proxy that knows CONNECT.
func newProxy(t *testing.T) (*url.URL, *atomic.Int32) {
	t.Helper()
	var n atomic.Int32
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodConnect {
			http.Error(rw, "CONNECT only", http.StatusMethodNotAllowed)
			return
		}
		to, err := net.Dial("tcp", r.Host)
		if err != nil {
			http.Error(rw, err.Error(), http.StatusBadGateway)
			return
		}
		n.Add(1)
		rw.WriteHeader(http.StatusOK)
		c, rest, err := http.NewResponseController(rw).Hijack()
		if err != nil {
			to.Close()
			return
		}
		go func() { defer to.Close(); io.Copy(to, rest) }()
		defer c.Close()
		io.Copy(c, to)
	})}
	go srv.Serve(l)
	t.Cleanup(func() { srv.Close() })
	return &url.URL{Scheme: "http", Host: l.Addr().String()}, &n
}

const sumPort = 9

// carries sends a file from home to a pod, which answers with its sum: through the tunnel in the stream through the API
// server, and by a plain port-forward through the same.
func (w *world) carries(t *testing.T, g *gatewaypod.Gateway) {
	file := make([]byte, 1<<20)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(file) // it never fails
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	w.sums = l.Addr().String()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				sum := sha256.New()
				if _, err := io.CopyN(sum, c, int64(len(file))); err == nil {
					_, _ = c.Write(sum.Sum(nil))
				}
			}()
		}
	}()
	carries := func(what string, c net.Conn, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		watch := time.AfterFunc(long, func() { c.Close() })
		defer watch.Stop()
		if _, err := c.Write(file); err != nil {
			t.Fatal(what, err)
		}
		var sum [sha256.Size]byte
		if _, err := io.ReadFull(c, sum[:]); err != nil || sum != sha256.Sum256(file) {
			t.Errorf("%s: the sum of what arrives is %x: %v", what, sum, err)
		}
	}
	c, err := gatewaypod.Forward(t.Context(), w.user, w.server.Client, shared, g.Status().Pod, sumPort)
	carries("by a port-forward", c, err)
	seen, _ := g.Home(real)
	c, err = w.fabric.net.DialContextTCPAddrPort(t.Context(), netip.AddrPortFrom(seen, netip.MustParseAddrPort(w.sums).Port()))
	carries("through the tunnel", c, err)
}
