package flannel

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/containernetworking/plugins/pkg/testutils"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"rivulet/offload/nodeagent/podgate"
	"rivulet/offload/nodeagent/podnet"
	"rivulet/test/harness/await"
)

// node is a network namespace that plays the node, one for the pod, and the
// built CNI binary with its links.
type node struct {
	t        *testing.T
	bin      string
	host     ns.NetNS
	pod      ns.NetNS
	conf     string
	lease    string
	stateDir string
	leases   string // host-local's
	env      []string
}

func newNode(t *testing.T) *node {
	if os.Geteuid() != 0 {
		t.Skip("needs root for network namespaces")
	}
	built, err := filepath.Abs("../../../../_build/bundle/linux_" + runtime.GOARCH + "/cni")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(built); err != nil {
		t.Skip("needs the built CNI plugins: make bundle")
	}
	n := &node{t: t, bin: t.TempDir(), stateDir: t.TempDir(), leases: t.TempDir()}
	for _, name := range []string{"flannel", "bridge", "host-local"} {
		if err := os.Symlink(built, filepath.Join(n.bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, at := range []*ns.NetNS{&n.host, &n.pod} {
		if *at, err = testutils.NewNS(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { (*at).Close(); testutils.UnmountNS(*at) })
	}
	n.lease = filepath.Join(t.TempDir(), "subnet.env")
	conf := map[string]any{}
	if err := json.Unmarshal([]byte(k3s), &conf); err != nil {
		t.Fatal(err)
	}
	conf["subnetFile"], conf["dataDir"] = n.lease, n.stateDir
	text, err := json.Marshal(conf)
	if err != nil {
		t.Fatal(err)
	}
	n.conf = string(text)
	return n
}

// call runs the plugin as the container runtime does.
func (n *node) call(command, conf string) ([]byte, error) {
	n.t.Helper()
	var out bytes.Buffer
	err := n.host.Do(func(ns.NetNS) error {
		cmd := exec.Command(filepath.Join(n.bin, "flannel"))
		cmd.Env = append([]string{"CNI_COMMAND=" + command, "CNI_CONTAINERID=c0ffee", "CNI_NETNS=" + n.pod.Path(),
			"CNI_IFNAME=eth0", "CNI_PATH=" + n.bin, "PATH=" + os.Getenv("PATH")}, n.env...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(conf), &out, os.Stderr
		return cmd.Run()
	})
	return out.Bytes(), err
}

func (n *node) writeLease() {
	n.t.Helper()
	if err := errors.Join(os.WriteFile(n.lease+".new", []byte(onLoopback), 0o644), os.Rename(n.lease+".new", n.lease)); err != nil {
		n.t.Fatal(err)
	}
}

// podLink returns the pod's eth0 with its addresses and routes, nil if there is none.
func (n *node) podLink() (link netlink.Link, addrs []netlink.Addr, routes []netlink.Route) {
	n.t.Helper()
	err := n.pod.Do(func(ns.NetNS) (err error) {
		if link, err = netlink.LinkByName("eth0"); errors.As(err, new(netlink.LinkNotFoundError)) {
			link = nil
			return nil
		} else if err != nil {
			return err
		}
		if addrs, err = netlink.AddrList(link, netlink.FAMILY_V4); err != nil {
			return err
		}
		routes, err = netlink.RouteList(link, netlink.FAMILY_V4)
		return err
	})
	if err != nil {
		n.t.Fatal(err)
	}
	return link, addrs, routes
}

// network gives host-local, which keeps its leases below /var/lib/cni for the name of the
// network, one of our own.
func (n *node) network() {
	n.t.Helper()
	n.conf = strings.Replace(n.conf, `"cbr0"`, `"rivulet-test-`+filepath.Base(filepath.Dir(n.lease))+filepath.Base(filepath.Dir(n.bin))+`"`, 1)
	var named struct{ Name string }
	if err := json.Unmarshal([]byte(n.conf), &named); err != nil {
		n.t.Fatal(err)
	}
	n.leases = filepath.Join("/var/lib/cni/networks", named.Name)
	n.t.Cleanup(func() { os.RemoveAll(n.leases) })
}

// A pod of Kubernetes has a network when the supervisor admits it, which is asked about
// the finished network. Else nothing of it stays.
func TestThePodGate(t *testing.T) {
	n := newNode(t)
	n.network()
	n.writeLease()
	socket := podgate.Socket(t.TempDir())
	n.env = []string{"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=lab;K8S_POD_NAME=web;K8S_POD_UID=u", podgate.Env + "=" + socket}
	var asked podnet.Pod
	refuse := errors.New("not isolated")
	ctx, stop := context.WithCancel(context.Background())
	served, ready := make(chan error, 1), make(chan struct{})
	go func() {
		served <- podgate.Serve(ctx, socket, func(_ context.Context, p podnet.Pod) error {
			// It is there already, and no process of the pod runs.
			err := n.host.Do(func(ns.NetNS) error { _, err := netlink.LinkByName(p.Veth); return err })
			asked = p
			return errors.Join(refuse, err)
		}, func() { close(ready) })
	}()
	defer func() {
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	<-ready
	out, err := n.call("ADD", n.conf)
	if err == nil || !bytes.Contains(out, []byte("not isolated")) {
		t.Fatalf("a refused pod: %v %s", err, out)
	}
	if asked.Namespace != "lab" || asked.Name != "web" || asked.UID != "u" || asked.MAC == "" || !strings.HasPrefix(asked.Veth, "veth") {
		t.Errorf("asked for %+v", asked)
	}
	if link, _, _ := n.podLink(); link != nil {
		t.Error("a refused pod has a link")
	}
	if _, err := os.Stat(filepath.Join(n.leases, asked.Addr.String())); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a refused pod has its address: %v", err)
	}
	if out, err := n.call("DEL", n.conf); err != nil { // as the runtime does
		t.Fatalf("del: %v %s", err, out)
	}
	refuse = nil
	if out, err = n.call("ADD", n.conf); err != nil {
		t.Fatalf("an admitted pod: %v %s", err, out)
	}
	link, addrs, _ := n.podLink()
	if link == nil || len(addrs) != 1 || addrs[0].IP.String() != asked.Addr.String() || link.Attrs().HardwareAddr.String() != asked.MAC {
		t.Errorf("the pod has %v %v, asked for %+v", link, addrs, asked)
	}
	if out, err := n.call("DEL", n.conf); err != nil {
		t.Fatalf("del: %v %s", err, out)
	}
}

func TestLifeOfAPod(t *testing.T) {
	n := newNode(t)
	n.network()

	if out, err := n.call("ADD", strings.Replace(n.conf, `"name"`, `"leaseTimeout":0,"name"`, 1)); err == nil || !bytes.Contains(out, []byte("no lease for this node yet")) {
		t.Fatalf("without a lease: %v %s", err, out)
	}
	if out, err := n.call("STATUS", strings.Replace(n.conf, "1.0.0", "1.1.0", 1)); err == nil || !bytes.Contains(out, []byte(`"code": 50`)) {
		t.Fatalf("status without a lease: %v %s", err, out)
	}
	// The lease comes while ADD waits for it, as on a node that has just become Ready.
	type answer struct {
		out []byte
		err error
	}
	added := make(chan answer)
	go func() {
		out, err := n.call("ADD", n.conf)
		added <- answer{out, err}
	}()
	n.writeLease()
	first := <-added
	if out, err := n.call("STATUS", strings.Replace(n.conf, "1.0.0", "1.1.0", 1)); err != nil {
		t.Fatalf("status: %v %s", err, out)
	}

	out := first.out
	if first.err != nil {
		t.Fatalf("add: %v %s", first.err, out)
	}
	var result current.Result
	if err := json.Unmarshal(out, &result); err != nil || len(result.IPs) != 1 {
		t.Fatalf("result %s: %v", out, err)
	}
	link, addrs, routes := n.podLink()
	if link == nil || link.Attrs().MTU != 1500 || len(addrs) != 1 {
		t.Fatalf("pod link %v, addresses %v", link, addrs)
	}
	addr, _ := netip.AddrFromSlice(addrs[0].IP.To4())
	if !netip.MustParsePrefix("10.42.0.0/24").Contains(addr) || addr.String() != result.IPs[0].Address.IP.String() {
		t.Fatalf("pod address %v, answered %v", addr, result.IPs[0])
	}
	var gateways []string
	for _, r := range routes {
		if r.Gw != nil {
			gateways = append(gateways, r.Dst.String()+" via "+r.Gw.String())
		}
	}
	slices.Sort(gateways)
	if want := []string{"0.0.0.0/0 via 10.42.0.1", "10.42.0.0/16 via 10.42.0.1"}; !slices.Equal(gateways, want) {
		t.Fatalf("routes %v, want %v", gateways, want)
	}

	withPrev := strings.Replace(n.conf, `"name"`, `"prevResult":`+string(out)+`,"name"`, 1)
	if out, err := n.call("CHECK", withPrev); err != nil {
		t.Fatalf("check: %v %s", err, out)
	}
	if err := n.pod.Do(func(ns.NetNS) error { return netlink.AddrDel(link, &addrs[0]) }); err != nil {
		t.Fatal(err)
	}
	if out, err := n.call("CHECK", withPrev); err == nil {
		t.Fatalf("check does not see that the address is gone: %s", out)
	}

	// The lease is gone, as after a reset of flannel: what ADD saved is enough.
	if err := os.Remove(n.lease); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the runtime may ask again
		if out, err := n.call("DEL", withPrev); err != nil {
			t.Fatalf("del: %v %s", err, out)
		}
	}
	if link, _, _ := n.podLink(); link != nil {
		t.Fatal("the pod still has its link")
	}
	if _, err := os.Stat(filepath.Join(n.leases, addr.String())); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("the address is still taken: %v", err)
	}
	if left, err := os.ReadDir(n.stateDir); err != nil || len(left) != 0 {
		t.Fatalf("state left: %v %v", left, err)
	}
}

// A node that is on a network of its pods' addresses gives pods none of its own: their bridge would
// cut it off. When it has left that network they have one.
func TestANetworkOfThePods(t *testing.T) {
	n := newNode(t)
	n.network()
	n.writeLease()
	on := func(what func(lan netlink.Link, at *netlink.Addr) error) {
		t.Helper()
		if err := n.host.Do(func(ns.NetNS) error {
			lan, err := netlink.LinkByName("lan0")
			if err != nil {
				return err
			}
			at, err := netlink.ParseAddr("10.42.0.7/24")
			return errors.Join(err, what(lan, at))
		}); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.host.Do(func(ns.NetNS) error {
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "lan0"}, PeerName: "lan1"})
	}); err != nil {
		t.Fatal(err)
	}
	on(func(lan netlink.Link, at *netlink.Addr) error {
		return errors.Join(netlink.LinkSetUp(lan), netlink.AddrAdd(lan, at))
	})
	out, err := n.call("ADD", n.conf)
	if err == nil || !bytes.Contains(out, []byte("10.42.0.0/24")) || !bytes.Contains(out, []byte("rivulet doctor")) {
		t.Fatalf("%v %s", err, out)
	}
	if err := n.host.Do(func(ns.NetNS) error { _, err := netlink.LinkByName(defaultBridge); return err }); err == nil {
		t.Error("there is a bridge for pods")
	}
	on(func(lan netlink.Link, at *netlink.Addr) error { return netlink.AddrDel(lan, at) })
	if out, err := n.call("ADD", n.conf); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	if out, err := n.call("DEL", n.conf); err != nil {
		t.Fatalf("%v %s", err, out)
	}
}

// A power cut may tear the state; the lease of today still frees the address.
func TestDeleteWithTornState(t *testing.T) {
	dir := t.TempDir()
	for _, torn := range []string{"", `{"type":"bri`} {
		if err := os.WriteFile(filepath.Join(dir, "c0ffee"), []byte(torn), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := loadState(dir, "c0ffee"); !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("%q: %v", torn, err)
		}
	}
	if err := saveState(dir, "c0ffee", []byte(`{"type":"bridge"}`)); err != nil {
		t.Fatal(err)
	}
	if data, err := loadState(dir, "c0ffee"); err != nil || string(data) != `{"type":"bridge"}` {
		t.Fatalf("%s %v", data, err)
	}
}

// The MTU of the links is that of the pods, as long as there is none yet.
func TestLinkMTU(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root for network namespaces")
	}
	at, err := testutils.NewNS()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { at.Close(); testutils.UnmountNS(at) }()
	err = at.Do(func(ns.NetNS) error {
		want := func(what string, mtu int) {
			t.Helper()
			if got, err := linkMTU("cni0"); err != nil || got != mtu {
				t.Errorf("%s: %d, %v; want %d", what, got, err, mtu)
			}
		}
		link := func(name string, mtu int, addr string) netlink.Link {
			t.Helper()
			veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name, MTU: mtu}, PeerName: "veth-" + name}
			if err := netlink.LinkAdd(veth); err != nil {
				t.Fatal(err)
			}
			for _, end := range []string{name, "veth-" + name} {
				l, err := netlink.LinkByName(end)
				if err == nil {
					err = netlink.LinkSetUp(l)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			// The kernel says so a moment later.
			await.True(t, 5*time.Second, name+" runs", func() bool {
				l, err := netlink.LinkByName(name)
				return err == nil && l.Attrs().RawFlags&unix.IFF_RUNNING != 0
			})
			if addr != "" {
				a, _ := netlink.ParseAddr(addr)
				if err := netlink.AddrAdd(veth, a); err != nil {
					t.Fatal(err)
				}
			}
			return veth
		}
		want("no link", 1500)
		link("eth0", 9000, "192.0.2.1/24")
		want("a jumbo link", 9000)
		wlan := link("wlan0", 1400, "192.0.2.2/24")
		want("and a narrow one", 1400)
		bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "cni0", MTU: 1400}}
		if err := netlink.LinkAdd(bridge); err != nil {
			t.Fatal(err)
		}
		if err := netlink.LinkSetMaster(link(podnet.NoPod+"0", 1400, ""), bridge); err != nil {
			t.Fatal(err)
		}
		if err := netlink.LinkDel(wlan); err != nil {
			t.Fatal(err)
		}
		want("a bridge without pods", 9000)
		if l, err := netlink.LinkByName("cni0"); err != nil || l.Attrs().MTU != 9000 {
			t.Errorf("the bridge was not adapted: %v %v", l, err)
		}
		pod := link("veth1", 9000, "")
		if err := netlink.LinkSetMaster(pod, bridge); err != nil {
			t.Fatal(err)
		}
		link("wlan1", 1300, "192.0.2.3/24")
		want("a bridge with a pod", 9000)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
