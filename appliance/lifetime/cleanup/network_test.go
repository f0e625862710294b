package cleanup

import (
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"github.com/vishvananda/netns"
)

// sh runs in the network namespace of the calling thread.
func sh(t *testing.T, script string) string {
	t.Helper()
	out, err := exec.Command("sh", "-ec", script).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
	return string(out)
}

// In a network namespace with what a device and somebody else have: ours goes,
// theirs stays to the letter, and a second time there is nothing to do.
func TestNetworkIsAsBefore(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root for a network namespace")
	}
	for _, tool := range []string{"ip", "iptables-save", "ip6tables-save"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s: make deps", tool)
		}
	}
	runtime.LockOSThread() // and never unlocked: the thread ends with the test
	ns, err := netns.New()
	if err != nil {
		t.Skipf("needs a network namespace: %v", err)
	}
	defer ns.Close()
	sh(t, `ip link set lo up
		ip link add br9 type bridge; ip link add veth9 type veth peer name veth9p; ip link set veth9 master br9
		ip addr add 192.168.7.1/24 dev br9; ip link set br9 up; ip addr add 100.64.1.1/32 dev lo
		iptables -t nat -N DOCKER; iptables -t nat -A PREROUTING -j DOCKER; iptables -A INPUT -s 192.0.2.9 -j DROP`)
	look := func() string {
		return sh(t, `ip -o link | sed 's/ qdisc.*//'; ip -o -4 addr | sed 's/valid_lft.*//'; ip route show table all | grep -v '^fe80\|multicast' || true
			iptables-save | grep -v '^#'; ip6tables-save | grep -v '^#' || true`)
	}
	before := look()
	c := &cleaner{}
	sh(t, `ip link add cni0 type bridge; ip addr add 10.42.0.1/24 dev cni0; ip link set cni0 up
		ip link add veth1 type veth peer name veth1p; ip link set veth1 master cni0
		ip tuntap add dev riv0 mode tun; ip link set riv0 up
		ip addr add 198.19.3.4/32 dev lo; ip route add 10.43.0.0/16 dev lo scope link src 198.19.3.4
		iptables -t nat -N KUBE-SERVICES; iptables -t nat -N KUBE-SVC-A; iptables -t nat -A KUBE-SERVICES -d 10.43.0.1 -j KUBE-SVC-A
		iptables -t nat -A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
		iptables -N FLANNEL-FWD; iptables -A FORWARD -m comment --comment "flanneld forward" -j FLANNEL-FWD
		ip6tables -t mangle -N KUBE-PROXY-CANARY`)
	c.links()
	c.rules(t.Context())
	c.tables()
	if len(c.Left) > 0 {
		t.Errorf("left: %q", c.Left)
	}
	if after := look(); after != before {
		t.Errorf("after:\n%s\nbefore:\n%s", after, before)
	}
	for _, want := range []string{"interface cni0", "interface riv0", "address 198.19.3.4 on lo", "route 10.43.0.0/16 on lo"} {
		if !strings.Contains(strings.Join(c.Removed, "\n"), want) {
			t.Errorf("%q is not reported: %q", want, c.Removed)
		}
	}
	c.Report = Report{}
	c.links()
	c.rules(t.Context())
	c.tables()
	if len(c.Removed)+len(c.Left) > 0 {
		t.Errorf("a second time: %+v", c.Report)
	}
}

// A bridge that has only the name in common with ours is somebody's.
func TestABridgeOfAnotherIsLeft(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root for a network namespace")
	}
	runtime.LockOSThread()
	ns, err := netns.New()
	if err != nil {
		t.Skipf("needs a network namespace: %v", err)
	}
	defer ns.Close()
	sh(t, "ip link add cni0 type bridge; ip addr add 10.88.0.1/16 dev cni0; ip link add riv0 type bridge")
	c := &cleaner{}
	c.links()
	if out := sh(t, "ip -o link"); !strings.Contains(out, "cni0") || !strings.Contains(out, "riv0") || len(c.Removed) > 0 {
		t.Errorf("removed %q; there are:\n%s", c.Removed, out)
	}
}
