package doctor

import (
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/vishvananda/netlink"

	"rivulet/appliance/addons/podview"
	"rivulet/test/harness/await"
	"rivulet/test/harness/testns"
)

func TestMain(m *testing.M) {
	testns.Enter()
	os.Exit(m.Run())
}

// kubeProxys are its rules for cluster DNS and the API server, and the frame of the others.
const kubeProxys = `*mangle
:KUBE-PROXY-CANARY - [0:0]
COMMIT
*filter
:KUBE-PROXY-CANARY - [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-SERVICES - [0:0]
-A INPUT -m comment --comment "kubernetes health check service ports" -j KUBE-NODEPORTS
-A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-A FORWARD -m conntrack --ctstate NEW -j KUBE-SERVICES
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
COMMIT
*nat
:KUBE-PROXY-CANARY - [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-POSTROUTING - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A KUBE-SERVICES -d 10.43.0.1/32 -p tcp -m tcp --dport 443 -j DNAT --to-destination 100.127.7.7:6443
-A KUBE-SERVICES -d 10.43.0.10/32 -p udp -m udp --dport 53 -j DNAT --to-destination 100.127.7.7:1053
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
COMMIT
`

// A device with a bridge for pods, the two servers, and a peer at the other end of what stands
// for the tunnel. Rules that are flushed, and firewalls of all kinds, are found by packets, and
// the cures let packets through.
func TestWhatPodsReach(t *testing.T) {
	t.Parallel()
	for _, tool := range []string{"ip", "iptables", "iptables-restore", "nft"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s: make deps", tool)
		}
	}
	const inside = "DOCTOR_INSIDE"
	if os.Getenv(inside) == "" {
		out, err := exec.CommandContext(t.Context(), testns.Program(t, testns.New(t).NS, inside+"=1"), "-test.run=^"+t.Name()+"$", "-test.v").CombinedOutput()
		if t.Logf("%s", out); err != nil {
			t.Error(err)
		}
		return
	}
	sh := func(script string) {
		t.Helper()
		if out, err := exec.CommandContext(t.Context(), "sh", "-ec", script).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", script, err, out)
		}
	}
	view := podview.New("cni0", "ulet", supervisorsView())
	e := &testEnv{Env: here(t.TempDir(), t.TempDir(), nil, view)}
	e.Node = netip.MustParseAddr("100.127.7.7")
	found(t, e, podNetwork, Skip, "no pod network yet")

	peer := testns.New(t)
	sh(`ip link set lo up; ip addr add 100.127.7.7/32 dev lo; ip route add 10.43.0.0/16 dev lo scope link src 100.127.7.7
		ip link add cni0 type bridge; ip addr add 10.42.0.1/24 dev cni0; ip link set cni0 up; echo 1 >/proc/sys/net/ipv4/ip_forward
		ip link add riv0 type veth peer name eth9; ip addr add 10.42.255.254/32 dev riv0; ip link set riv0 up; ip route add 10.70.0.0/16 dev riv0`)
	if err := moveTo("eth9", peer); err != nil {
		t.Fatal(err)
	}
	peer.Do(func() error { return testns.Give("eth9", "10.70.0.1/8") })
	for _, at := range []string{"100.127.7.7:6443", "10.42.255.254:7442"} {
		l, err := net.Listen("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
	}
	names, err := net.ListenPacket("udp", "100.127.7.7:1053")
	if err != nil {
		t.Fatal(err)
	}
	server := &dns.Server{PacketConn: names, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, m *dns.Msg) { _ = w.WriteMsg(new(dns.Msg).SetReply(m)) })}
	go server.ActivateAndServe()
	defer server.Shutdown()

	asMade := func() {
		t.Helper()
		sh("nft flush ruleset; iptables-restore <<'E'\n" + kubeProxys + "E\n")
	}
	asMade()
	await.True(t, 10*time.Second, "pods reach what they need", func() bool { return podNetwork.Run(t.Context(), e.Env).Status == Pass })
	found(t, e, serviceRules, Pass)
	await.True(t, 10*time.Second, "a peer reaches the control port", func() bool { return peer.Reaches("", "10.42.255.254:7442") })

	// Flushed: found, and kube-proxy is told by its own means.
	canary := func() bool { return exec.Command("iptables", "-t", "mangle", "-S", "KUBE-PROXY-CANARY").Run() == nil }
	for _, c := range []struct {
		what  string
		probe Probe
		words string
	}{
		{"iptables -t nat -F", podNetwork, "lead nowhere"},
		{"iptables -t nat -F", serviceRules, "nat KUBE-SERVICES"},
		{"iptables -t nat -F KUBE-SERVICES", podNetwork, "lead nowhere"},
		{"iptables -t nat -F POSTROUTING", serviceRules, "nat KUBE-POSTROUTING"},
		{"iptables -F", serviceRules, "filter KUBE-FORWARD"},
		{"iptables -F FORWARD", serviceRules, "filter KUBE-FORWARD"},
		{"iptables -F KUBE-FORWARD", serviceRules, "filter KUBE-FORWARD"},
	} {
		asMade()
		sh(c.what)
		r := found(t, e, c.probe, Fail, c.words)
		if r.Fix == nil || !c.probe.Heals {
			t.Fatalf("%s: nobody puts them back", c.what)
		}
		if !canary() {
			t.Fatal("the test itself does not work")
		}
		if err := r.Fix.Do(t.Context()); err != nil || canary() {
			t.Errorf("%s: kube-proxy is not told: %v", c.what, err)
		}
	}

	// Closed: found by packets, though the ports of peers are open, and the cure is whole.
	const ports = " -p udp -m multiport --dports 7442,5353 -j ACCEPT; iptables -A INPUT -i eth0 -p tcp --dport 7442 -j ACCEPT"
	for what, script := range map[string]string{
		"policy of INPUT":    "iptables -P INPUT DROP; iptables -A INPUT -i lo -j ACCEPT; iptables -A INPUT -m conntrack --ctstate ESTABLISHED -j ACCEPT; iptables -A INPUT -i eth0" + ports,
		"last rule of INPUT": "iptables -A INPUT -i lo -j ACCEPT; iptables -A INPUT -m conntrack --ctstate ESTABLISHED -j ACCEPT; iptables -A INPUT -i eth0" + ports + "; iptables -A INPUT -j DROP",
		"nftables, inet":     "nft 'add table inet mine; add chain inet mine in { type filter hook input priority 0; policy drop; }; add rule inet mine in iif lo accept; add rule inet mine in ct state established accept; add rule inet mine in iifname eth0 tcp dport 7442 accept'",
		"DNS alone":          "iptables -A INPUT -i cni0 -p udp -j DROP; iptables -A INPUT -i riv0 -j DROP",
	} {
		asMade()
		sh(script)
		r := found(t, e, podNetwork, Fail, "drops what pods send")
		if peer.Reaches("", "10.42.255.254:7442") {
			t.Errorf("%s: the test itself does not work: a peer gets in", what)
		}
		cure, _, _ := strings.Cut(r.Cure, "; and the same")
		t.Log(what, ": ", cure)
		sh(cure)
		found(t, e, podNetwork, Pass)
		if !peer.Reaches("", "10.42.255.254:7442") {
			t.Errorf("%s: with the cure a peer does not reach the control port", what)
		}
	}
	view.Close()
	if _, err := net.InterfaceByName("vethrivulet"); err == nil {
		t.Error("the interface is left")
	}
}

func moveTo(name string, to testns.Room) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return netlink.LinkSetNsFd(l, int(to.NS))
}
