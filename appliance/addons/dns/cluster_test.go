package dns

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	miekg "github.com/miekg/dns"
	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1alpha1"
	mcsclient "sigs.k8s.io/mcs-api/pkg/client/clientset/versioned"

	"rivulet/offload/homeapi"
	"rivulet/offload/policy"
	"rivulet/test/harness/await"
	"rivulet/test/harness/tree"
)

// inside marks the test process that runs in a network namespace of its own.
const inside = "RIVULET_DNS_TEST_INSIDE"

var nodeIP = netip.MustParseAddr("100.127.9.9")

// enterNamespace runs the calling test once more, in a network namespace where
// pod addresses can be sent from, and reports whether this is the one.
func enterNamespace(t *testing.T) bool {
	t.Helper()
	if os.Getenv(inside) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=8m") // it says where it hangs
		cmd.Env = append(os.Environ(), inside+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
		out, err := cmd.CombinedOutput()
		t.Logf("%s", out)
		if err != nil {
			t.Fatal(err)
		}
		return false
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		t.Fatal(err)
	}
	if err := netlink.AddrAdd(lo, &netlink.Addr{IPNet: &net.IPNet{IP: nodeIP.AsSlice(), Mask: net.CIDRMask(32, 32)}}); err != nil {
		t.Fatal(err)
	}
	// Every pod address may be sent from, and none is an interface's.
	pods := &netlink.Route{LinkIndex: lo.Attrs().Index, Table: 255, Type: syscall.RTN_LOCAL, Scope: netlink.SCOPE_HOST,
		Dst: &net.IPNet{IP: net.IPv4(10, 42, 0, 0), Mask: net.CIDRMask(16, 32)}}
	if err := netlink.RouteAdd(pods); err != nil {
		t.Fatal(err)
	}
	return true
}

// engine is the binary that the API server comes out of.
func engine(t *testing.T) string {
	t.Helper()
	path := os.Getenv("RIVULET_ENGINE")
	if path == "" {
		path = tree.Path("bin", "rivulet")
	}
	if _, err := os.Stat(path); err != nil || os.Geteuid() != 0 {
		t.Skip("needs root and an engine: make build, or set RIVULET_ENGINE")
	}
	return path
}

func startAPIServer(t *testing.T, path, kubeconfig string) {
	t.Helper()
	log := filepath.Join(t.TempDir(), "log")
	out, err := os.Create(log)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd := exec.Command(path)
	cmd.Args = append([]string{"rivulet-engine"}, strings.Fields("server --disable-agent --disable traefik,servicelb,coredns,local-storage,metrics-server"+
		" --disable-helm-controller --disable-cloud-controller --disable-network-policy --flannel-backend=none --egress-selector-mode disabled"+
		" --bind-address 127.0.0.1 --node-ip "+nodeIP.String()+" --advertise-address "+nodeIP.String()+
		" --data-dir "+t.TempDir()+" --write-kubeconfig "+kubeconfig)...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if text, err := os.ReadFile(log); err == nil && t.Failed() {
			t.Logf("the engine's last words: %s", text[max(0, len(text)-2000):])
		}
	})
}

// running starts a Server; stop ends it and returns Run's error. ready says whether the
// Server has said that it is.
func running(t *testing.T, cfg Config) (s *Server, ready func() bool, stop func() error) {
	t.Helper()
	s = New(cfg)
	var said atomic.Bool
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx, func() { said.Store(true) }) }()
	stop = func() error { cancel(); return <-ended }
	return s, said.Load, stop
}

// query asks as the client and returns records without TTL and class, or the code.
func query(t *testing.T, network, client string, server netip.AddrPort, name string, qtype uint16) string {
	t.Helper()
	from := net.Addr(&net.UDPAddr{IP: net.ParseIP(client)})
	if network == "tcp" {
		from = &net.TCPAddr{IP: net.ParseIP(client)}
	}
	c := &miekg.Client{Net: network, Timeout: 5 * time.Second, Dialer: &net.Dialer{LocalAddr: from}}
	m := new(miekg.Msg)
	m.SetQuestion(name, qtype)
	r, _, err := c.Exchange(m, server.String())
	if err != nil {
		return err.Error()
	}
	if len(r.Answer) == 0 {
		return miekg.RcodeToString[r.Rcode]
	}
	var texts []string
	for _, rr := range r.Answer {
		texts = append(texts, strings.ReplaceAll(strings.TrimPrefix(rr.String(), rr.Header().String()), "\t", " "))
		if !strings.EqualFold(rr.Header().Name, name) && rr.Header().Rrtype == qtype && len(r.Answer) == 1 {
			texts = append(texts, "of "+rr.Header().Name)
		}
	}
	return strings.Join(texts, ", ")
}

func TestStoryWithAPIServer(t *testing.T) {
	path := engine(t)
	if !enterNamespace(t) {
		return
	}
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	cfg := Config{Addr: netip.AddrPortFrom(nodeIP, 1053), Kubeconfig: kubeconfig, ServiceIP: netip.MustParseAddr("10.43.0.10"),
		PodCIDR:    netip.MustParsePrefix("10.42.0.0/16"),
		ResolvConf: []string{filepath.Join(t.TempDir(), "resolv.conf")}, Log: slog.New(slog.NewTextHandler(t.Output(), nil))}
	s, ready, stop := running(t, cfg)
	ask := func(client, name string) string {
		t.Helper()
		return query(t, "udp", client, cfg.Addr, name, miekg.TypeA)
	}

	// Before there is an API server: an answer at once, and no lie.
	await.True(t, 90*time.Second, "listening", s.bound.Load)
	for _, name := range []string{"kubernetes.default.svc.cluster.local.", "example.org."} {
		start := time.Now()
		if got := ask("10.42.0.5", name); got != "SERVFAIL" || time.Since(start) > time.Second || ready() {
			t.Fatalf("%s before the API server: %s after %v, ready %v", name, got, time.Since(start), ready())
		}
	}
	if err := New(cfg).Run(t.Context(), func() {}); err == nil || !strings.Contains(err.Error(), "stop that program") {
		t.Fatalf("the port is taken: %v", err)
	}

	startAPIServer(t, path, kubeconfig)
	client := connect(t, kubeconfig)
	up := time.Now()
	await.True(t, 90*time.Second, "ready", ready)
	t.Logf("ready %v after the API server", time.Since(up).Round(time.Millisecond))
	await.True(t, 90*time.Second, "the API server's own service", func() bool {
		return ask("10.42.0.5", "kubernetes.default.svc.cluster.local.") == "10.43.0.1"
	})
	await.True(t, 90*time.Second, "the service of the DNS itself", func() bool {
		return ensureService(t.Context(), client, cfg.ServiceIP, cfg.Addr, "home") == nil
	})
	populate(t, client)
	share(t, kubeconfig, client)
	publish(t, client, "lab-x7f2", "away", "10.42.0.7")
	publish(t, client, "lab-zzzz", "foreign", "10.42.0.9")
	publish(t, client, "lab", "local", "10.42.0.8")
	await.True(t, 90*time.Second, "the pods are known", func() bool {
		return ask("10.42.0.7", "web.lab.svc.cluster.local.") == "10.43.0.72" && ask("10.42.0.9", "web.lab.svc.cluster.local.") == "10.43.0.79" &&
			ask("10.42.0.8", "web.lab.svc.cluster.local.") == "10.43.0.70" && ask("10.42.0.7", "db.shop.svc.cluster.local.") == "10.43.0.73" && ask("10.42.0.8", "web.lab.svc.clusterset.local.") == "10.43.0.99"
	})

	for _, c := range []struct {
		who, client, name string
		qtype             uint16
		want              string
	}{
		{"the cluster's own pod", "10.42.0.8", "kube-dns.kube-system.svc.cluster.local.", miekg.TypeA, "10.43.0.10"},
		{"the cluster's own pod", "10.42.0.8", "web.shop.svc.cluster.local.", miekg.TypeA, "NXDOMAIN"},
		{"the search path of web.lab", "10.42.0.7", "web.lab.lab-x7f2.svc.cluster.local.", miekg.TypeA, "NXDOMAIN"},
		{"the search path of web", "10.42.0.7", "web.lab-x7f2.svc.cluster.local.", miekg.TypeA, "10.43.0.72"},
		{"letters of any size", "10.42.0.7", "WEB.Lab.svc.Cluster.Local.", miekg.TypeA, "10.43.0.72"},
		{"no address of this family", "10.42.0.7", "web.lab.svc.cluster.local.", miekg.TypeAAAA, "NOERROR"},
		{"a port", "10.42.0.7", "_http._tcp.web.lab.svc.cluster.local.", miekg.TypeSRV, "0 100 80 web.lab.svc.cluster.local."},
		{"the name of an address", "10.42.0.7", "72.0.43.10.in-addr.arpa.", miekg.TypePTR, "web.lab.svc.cluster.local."},
		{"the same for a pod of here", "10.42.0.8", "72.0.43.10.in-addr.arpa.", miekg.TypePTR, "web.lab-x7f2.svc.cluster.local."},
		{"another name for a service", "10.42.0.7", "alias.lab.svc.cluster.local.", miekg.TypeA, "web.lab.svc.cluster.local., 10.43.0.72"},
		{"a namespace of another origin", "10.42.0.9", "db.shop.svc.cluster.local.", miekg.TypeA, "NXDOMAIN"},
		{"a service of the provider's", "10.42.0.7", "own.kube-system.svc.cluster.local.", miekg.TypeA, "NXDOMAIN"},
		{"the cluster's DNS, which tenants ask, too", "10.42.0.7", "kube-dns.kube-system.svc.cluster.local.", miekg.TypeA, "10.43.0.10"},
		{"the name of its address", "10.42.0.7", "10.0.43.10.in-addr.arpa.", miekg.TypePTR, "kube-dns.kube-system.svc.cluster.local."},
		{"home's API server, not the one of here", "10.42.0.7", "kubernetes.default.svc.cluster.local.", miekg.TypeA, "10.43.0.74"},
		{"its port", "10.42.0.7", "_https._tcp.Kubernetes.default.svc.cluster.local.", miekg.TypeSRV, "0 100 443 kubernetes.default.svc.cluster.local."},
		{"the name of its address", "10.42.0.7", "74.0.43.10.in-addr.arpa.", miekg.TypePTR, "kubernetes.default.svc.cluster.local."},
		{"home's API server, to which there is no way", "10.42.0.9", "kubernetes.default.svc.cluster.local.", miekg.TypeA, "NXDOMAIN"},
		{"the API server of here", "10.42.0.8", "kubernetes.default.svc.cluster.local.", miekg.TypeA, "10.43.0.1"},
		{"another consumer's", "10.42.0.7", "web.lab-zzzz.svc.cluster.local.", miekg.TypeA, "NXDOMAIN"},
		{"whether a namespace is there", "10.42.0.7", "kube-system.svc.cluster.local.", miekg.TypeA, "NXDOMAIN"},
		{"its pods", "10.42.0.7", "10-42-0-8.lab.pod.cluster.local.", miekg.TypeA, "NXDOMAIN"},
		{"the name of an address of the provider's", "10.42.0.7", "75.0.43.10.in-addr.arpa.", miekg.TypePTR, "NXDOMAIN"},
		{"the name of an address of another consumer's", "10.42.0.7", "79.0.43.10.in-addr.arpa.", miekg.TypePTR, "NXDOMAIN"},
		{"an alias of its own to the provider's", "10.42.0.7", "thief.lab.svc.cluster.local.", miekg.TypeA, "NXDOMAIN"},
		{"all of the zone", "10.42.0.7", "cluster.local.", miekg.TypeANY, "NOERROR"},
		{"a service that is not there", "10.42.0.7", "nosuch.lab.svc.cluster.local.", miekg.TypeA, "NXDOMAIN"},
		{"an import", "10.42.0.8", "web.lab.svc.clusterset.local.", miekg.TypeA, "10.43.0.99"},
		{"a port of an import", "10.42.0.8", "_http._tcp.web.lab.svc.clusterset.local.", miekg.TypeSRV, "0 100 80 web.lab.svc.clusterset.local."},
		{"an import without an address", "10.42.0.8", "db.lab.svc.clusterset.local.", miekg.TypeA, "10.65.0.3"},
		{"its pod", "10.42.0.8", "db-0.b.db.lab.svc.clusterset.local.", miekg.TypeA, "10.65.0.3"},
		{"no import", "10.42.0.8", "nosuch.lab.svc.clusterset.local.", miekg.TypeA, "NXDOMAIN"},
		{"the owner's import, for a tenant", "10.42.0.7", "web.lab.svc.clusterset.local.", miekg.TypeA, "NXDOMAIN"},
		{"the node", nodeIP.String(), "web.lab.svc.cluster.local.", miekg.TypeA, "10.43.0.70"},
	} {
		for _, network := range []string{"udp", "tcp"} {
			if got := query(t, network, c.client, cfg.Addr, c.name, c.qtype); got != c.want {
				t.Errorf("%s, %s: %s %s is %q, want %q", c.who, network, miekg.TypeToString[c.qtype], c.name, got, c.want)
			}
		}
	}

	// A pod asks before its address is published.
	early := make(chan string)
	go func() { early <- ask("10.42.0.77", "web.lab.svc.cluster.local.") }()
	publish(t, client, "lab-x7f2", "late", "10.42.0.77")
	if got := <-early; got != "10.43.0.72" {
		t.Errorf("before its address was published a pod got %s", got)
	}

	// Two in one process, and a restart on the same port.
	second := cfg
	second.Addr = netip.AddrPortFrom(nodeIP, 2053)
	_, otherReady, stopOther := running(t, second)
	await.True(t, 90*time.Second, "a second server", otherReady)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if got := query(t, "udp", "10.42.0.7", second.Addr, "web.lab.svc.cluster.local.", miekg.TypeA); got != "10.43.0.72" {
		t.Errorf("the second server, the first one stopped: %s", got)
	}
	_, ready, stop = running(t, cfg)
	await.True(t, 90*time.Second, "ready after a restart", ready)
	if got := ask("10.42.0.7", "web.lab.svc.cluster.local."); got != "10.43.0.72" {
		t.Errorf("after a restart: %s", got)
	}
	for _, stop := range []func() error{stop, stopOther} {
		if err := stop(); err != nil {
			t.Error(err)
		}
	}
}

func connect(t *testing.T, kubeconfig string) *kubernetes.Clientset {
	t.Helper()
	var client *kubernetes.Clientset
	await.True(t, 90*time.Second, "the API server answers", func() bool {
		config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
		if err != nil {
			return false
		}
		config.Timeout = time.Minute // the port is open before anybody answers
		if client, err = kubernetes.NewForConfig(config); err != nil {
			return false
		}
		_, err = client.Discovery().ServerVersion()
		return err == nil
	})
	return client
}

// populate makes a namespace lab of the cluster's own, twins of lab and shop of
// one origin, and a twin of lab of another.
func populate(t *testing.T, client *kubernetes.Clientset) {
	t.Helper()
	for twin, home := range map[string]homeName{"lab": {}, "lab-x7f2": {"x", "lab"}, "shop-x7f2": {"x", "shop"}, "lab-zzzz": {"z", "lab"}} {
		n := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: twin}}
		if home.origin != "" {
			n.Labels = map[string]string{policy.OriginLabel: home.origin}
			n.Annotations = map[string]string{policy.HomeNamespaceAnnotation: home.namespace}
		}
		if _, err := client.CoreV1().Namespaces().Create(t.Context(), n, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range []struct{ namespace, name, ip string }{
		{"lab", "web", "10.43.0.70"}, {"kube-system", "own", "10.43.0.75"}, {"lab-x7f2", "web", "10.43.0.72"}, {"shop-x7f2", "db", "10.43.0.73"}, {"lab-zzzz", "web", "10.43.0.79"},
	} {
		if _, err := client.CoreV1().Services(s.namespace).Create(t.Context(), &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: s.name},
			Spec:       corev1.ServiceSpec{ClusterIP: s.ip, Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := client.CoreV1().Services("lab-x7f2").Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: homeapi.Service},
		Spec:       corev1.ServiceSpec{ClusterIP: "10.43.0.74", Ports: []corev1.ServicePort{{Name: "https", Port: homeapi.Port}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for alias, to := range map[string]string{"alias": "web.lab-x7f2.svc.cluster.local", "thief": "own.kube-system.svc.cluster.local"} {
		if _, err := client.CoreV1().Services("lab-x7f2").Create(t.Context(), &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: alias},
			Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: to},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// share makes two imports in namespace lab, one of them headless with a pod of cluster b.
func share(t *testing.T, kubeconfig string, client *kubernetes.Clientset) {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	shared, err := mcsclient.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range []mcs.ServiceImport{
		{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: mcs.ServiceImportSpec{Type: mcs.ClusterSetIP, IPs: []string{"10.43.0.99"}, Ports: []mcs.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}}}},
		{ObjectMeta: metav1.ObjectMeta{Name: "db"}, Spec: mcs.ServiceImportSpec{Type: mcs.Headless, Ports: []mcs.ServicePort{{Name: "sql", Protocol: corev1.ProtocolTCP, Port: 5432}}}},
	} {
		if _, err := shared.MulticlusterV1alpha1().ServiceImports("lab").Create(t.Context(), &i, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := client.DiscoveryV1().EndpointSlices("lab").Create(t.Context(), &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "db-b", Labels: map[string]string{mcs.LabelServiceName: "db", mcs.LabelSourceCluster: "b"}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: new("sql"), Protocol: new(corev1.ProtocolTCP), Port: new(int32(5432))}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.65.0.3"}, Hostname: new("db-0"), Conditions: discoveryv1.EndpointConditions{Ready: new(true)}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// publish makes a pod with an address, as the kubelet would.
func publish(t *testing.T, client *kubernetes.Clientset, namespace, name, ip string) {
	t.Helper()
	pods := client.CoreV1().Pods(namespace)
	await.True(t, 90*time.Second, "pod "+namespace+"/"+name, func() bool { // its service account comes a moment after the namespace
		_, err := pods.Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "none"}}},
		}, metav1.CreateOptions{})
		return err == nil
	})
	status := fmt.Sprintf(`{"status":{"phase":"Running","podIP":%q,"podIPs":[{"ip":%q}]}}`, ip, ip)
	if _, err := pods.Patch(t.Context(), name, types.MergePatchType, []byte(status), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
}
