package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"rivulet/appliance/api"
	"rivulet/appliance/config/fixed"
	"rivulet/fabric/peer"
	"rivulet/fabric/tunnel"
	"rivulet/image/device/layout"
)

func TestLANAndDefaultRoute(t *testing.T) {
	for _, tc := range []struct {
		name  string
		links []Link
		want  Status
		words string
	}{
		{"cable", []Link{eth0}, Pass, "eth0 192.168.1.7/24"},
		{"only Wi-Fi", []Link{{Name: "eth0", LAN: true, Up: true}, wlan0}, Pass, "wlan0"},
		{"cable out", []Link{{Name: "eth0", LAN: true, Up: true, Addrs: eth0.Addrs}}, Warn, "eth0 has no cable"},
		{"no Wi-Fi joined", []Link{{Name: "wlan0", LAN: true, Wireless: true, Up: true}}, Warn, "joined no network"},
		{"no DHCP", []Link{{Name: "eth0", LAN: true, Up: true, Carrier: true}}, Warn, "DHCP"},
		{"switched off", []Link{{Name: "eth0", LAN: true}}, Warn, "switched off"},
		{"no driver", []Link{{Name: "lo", Up: true, Carrier: true}}, Warn, "driver"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := machine(t, nil)
			e.links = links2(tc.links...)
			found(t, e, lan, tc.want, tc.words)
		})
	}
	e := machine(t, nil)
	found(t, e, defaultRoute, Pass, "192.168.1.1 through eth0")
	e.routes = routes2(onLink)
	found(t, e, defaultRoute, Warn, "rivulet image push FILE.tar")
}

// What iwd reports, as busctl prints it.
func iwd(device, station, networks, known string) string {
	all := []string{`"/net/connman/iwd/0":{"net.connman.iwd.Adapter":{"Powered":{"type":"b","data":true}}}`,
		`"/net/connman/iwd/0/3":{"net.connman.iwd.Device":{"Name":{"type":"s","data":"wlan0"},"Powered":{"type":"b","data":` + device + `}},"net.connman.iwd.Station":{"State":{"type":"s","data":"` + station + `"}}}`}
	for n := range strings.FieldsSeq(networks) {
		n, joined := strings.CutPrefix(n, "*")
		all = append(all, fmt.Sprintf(`"/net/connman/iwd/0/3/%s_psk":{"net.connman.iwd.Network":{"Name":{"type":"s","data":%q},"Connected":{"type":"b","data":%v},"Device":{"type":"o","data":"/net/connman/iwd/0/3"}}}`, n, n, joined),
			fmt.Sprintf(`"/net/connman/iwd/0/4/%s_psk":{"net.connman.iwd.Network":{"Name":{"type":"s","data":"seen by wlan1"},"Device":{"type":"o","data":"/net/connman/iwd/0/4"}}}`, n))
	}
	for n := range strings.FieldsSeq(known) {
		n, hidden := strings.CutPrefix(n, "?")
		all = append(all, fmt.Sprintf(`"/net/connman/iwd/%s_psk":{"net.connman.iwd.KnownNetwork":{"Name":{"type":"s","data":%q},"Hidden":{"type":"b","data":%v}}}`, n, n, hidden))
	}
	return `{"type":"a{oa{sa{sv}}}","data":[{` + strings.Join(all, ",") + "}]}"
}

// A device without a screen has no other way to say why it is not in its Wi-Fi.
func TestWhyThereIsNoWiFi(t *testing.T) {
	out, lonely := Link{Name: "wlan0", LAN: true, Wireless: true, Up: true}, Link{Name: "wlan0", LAN: true, Wireless: true, Up: true, Carrier: true, Addrs: []netip.Prefix{netip.MustParsePrefix("fe80::1/64")}}
	for name, tc := range map[string]struct {
		link       Link
		iwd, log   string
		text, cure string
	}{
		"no iwd":             {out, "", "", "wlan0 has joined no network", "plug a cable in"},
		"another's":          {out, strings.Replace(iwd("true", "disconnected", "a", "a"), `"wlan0"`, `"wlan1"`, 1), "", "wlan0 has joined no network", "plug a cable in"},
		"no words":           {out, "{", "", "wlan0 has joined no network", "plug a cable in"},
		"rfkill":             {out, iwd("false", "", "", "lab"), "", "wlan0 is switched off", "radio on"},
		"nothing set up":     {out, iwd("true", "disconnected", "a b", ""), "", "wlan0 knows no Wi-Fi network", "rivulet.yaml on the boot partition"},
		"nothing in reach":   {out, iwd("true", "disconnected", "", "lab"), "", "sees no Wi-Fi network", "country"},
		"another name":       {out, iwd("true", "disconnected", "b Lab c d e f g h", "lab"), "", `does not see "lab"; in reach are "Lab", "b", "c", "d", "e", "f", 2 more`, "letter by letter"},
		"a wrong password":   {out, iwd("true", "disconnected", "lab b", "lab attic"), "event: connect-failed, status: 1\n4-Way handshake failed for ifindex: 3, reason: 2\nevent: state, old: connecting, new: disconnected\n", `cannot join "lab": its password is probably wrong`, "password"},
		"refused":            {out, iwd("true", "disconnected", "lab", "lab"), "event: connect-info, ssid: lab\nevent: connect-failed, status: 16\n", `cannot join "lab": the access point does not let it in (connect-failed, status: 16)`, "offer WPA2"},
		"no sign-in":         {out, iwd("true", "disconnected", "lab", "lab"), "EAP completed with eapSuccess\nEAP completed with eapFail\nevent: state, old: connecting, new: disconnected\n", "it does not accept the sign-in (802.1X)", "network/NAME.8021x"},
		"no answer":          {out, iwd("true", "connecting", "lab", "lab"), "event: authentication-timeout, \n", "(authentication-timeout)", "offer WPA2"},
		"hidden":             {out, iwd("true", "connecting", "b", "?lab"), "", `cannot join "lab": it is trying`, "wait"},
		"no DHCP":            {lonely, iwd("true", "connected", "*lab b", "lab"), "", `has joined "lab" and gets no address`, "DHCP"},
		"no DHCP, another's": {lonely, "", "", "or has no address there", "plug a cable in"},
	} {
		e := machine(t, files{layout.RunSlot: "a\n"})
		e.links = links2(tc.link)
		e.exec = func(_ context.Context, program string, args ...string) (string, error) {
			switch {
			case program == "busctl" && tc.iwd != "" && args[0] == "--auto-start=no":
				return tc.iwd, nil
			case program == "journalctl":
				return tc.log, nil
			}
			return "", errors.New("not here")
		}
		t.Run(name, func(t *testing.T) { found(t, e, lan, Warn, tc.text, tc.cure) })
	}
	e := machine(t, nil)
	e.links = links2(eth0, out)
	found(t, e, lan, Pass, "eth0")
}

// A cable whose last sign-in was refused is told, also with the address that it has given itself.
func TestSignInOfTheCable(t *testing.T) {
	const good, bad = "eth0: CTRL-EVENT-EAP-SUCCESS EAP authentication completed successfully\n", "eth0: CTRL-EVENT-EAP-FAILURE EAP authentication failed\n"
	for log, want := range map[string]Status{good: Pass, bad: Warn, good + "eth0: Associated with 01:80:c2:00:00:03\n" + bad: Warn, bad + good: Pass, "": Pass} {
		e := machine(t, files{"/etc/rivulet/network/wired.conf": "network={\n}\n"})
		alone := eth0
		alone.Addrs = []netip.Prefix{netip.MustParsePrefix("169.254.7.1/16")}
		e.links = links2(alone)
		e.exec = func(_ context.Context, program string, args ...string) (string, error) { return log, nil }
		found(t, e, lan, want)
		e.links = links2(alone, eth0) // it is on another network
		found(t, e, lan, Pass)
		e = machine(t, nil)
		e.exec = func(context.Context, string, ...string) (string, error) { return bad, nil }
		found(t, e, lan, Pass)
	}
}

func TestDNS(t *testing.T) {
	dead, offline := netip.MustParseAddr("192.168.1.99"), netip.MustParseAddr("192.168.1.98")
	for text, want := range map[string]Status{
		"nameserver 192.168.1.1\n":  Pass,
		"# none\n":                  Warn,
		"nameserver 192.168.1.99\n": Fail,
		"nameserver 192.168.1.1\nnameserver 192.168.1.99":           Warn,
		"nameserver 192.168.1.98\n":                                 Warn, // the Internet is out
		"nameserver 192.168.1.1\nnameserver 192.168.1.98":           Warn,
		"nameserver 192.168.1.98\nnameserver 192.168.1.99":          Warn,
		"nameserver 10.43.0.10\n":                                   Fail, // the cluster asks the host asks the cluster
		"nameserver 192.168.1.7\n":                                  Pass, // Pi-hole on the device
		"nameserver 127.0.0.53\n":                                   Pass, // systemd-resolved
		"search lab\nnameserver 192.168.1.1\nnameserver 10.43.0.10": Pass,
	} {
		e := machine(t, files{"/etc/resolv.conf": text})
		e.queryDNS = func(_ context.Context, s netip.AddrPort, q dns.Question) error {
			if s.Addr() == dead || s.Addr() == offline && q != ofItself {
				return errors.New("i/o timeout")
			}
			return nil
		}
		t.Run(text, func(t *testing.T) { found(t, e, dnsUpstream, want) })
	}
}

func peerAt(addr string, state peer.State) peer.View {
	return peer.View{Record: peer.Record{ID: "b", Name: "b", Control: netip.MustParseAddrPort(addr)}, State: state}
}

// Silence alone proves nothing: what else is known of the LAN decides.
func TestMulticast(t *testing.T) {
	lost, connected := status(api.Status{Peers: []peer.View{peerAt("192.168.1.20:7442", peer.Lost)}}), status(api.Status{Peers: []peer.View{peerAt("192.168.1.20:7442", peer.Connected)}})
	answers := func(context.Context, netip.AddrPort) error { return nil }
	for _, tc := range []struct {
		name  string
		set   func(*testEnv)
		want  Status
		words string
	}{
		{"answered", func(e *testEnv) {
			e.listen = func() (Received, error) { return Received{From: []netip.Addr{router}}, nil }
		}, Pass, "192.168.1.1"},
		{"no network", func(e *testEnv) { e.links = links2() }, Skip, "no network"},
		{"alone", func(*testEnv) {}, Skip, "no other device is known"},
		{"alone in a Wi-Fi", func(e *testEnv) { e.links = links2(wlan0) }, Warn, "client isolation"},
		{"the router is no neighbour that would answer", func(e *testEnv) {
			e.neighbours = func() ([]netip.Addr, error) { return []netip.Addr{router}, nil }
		}, Skip, "nobody answers"},
		{"others are there", func(e *testEnv) {
			e.neighbours = func() ([]netip.Addr, error) { return []netip.Addr{router, router.Next()}, nil }
		}, Warn, "IGMP snooping"},
		{"a peer that is connected, yet not heard", func(e *testEnv) { e.supervisor = connected }, Fail, "the network filters it"},
		{"a peer that takes connections, yet not heard", func(e *testEnv) { e.supervisor, e.dial = lost, answers }, Fail, "the network filters it"},
		{"a peer that is gone", func(e *testEnv) { e.supervisor = lost }, Fail, "client isolation"},
		{"a peer elsewhere says nothing about this LAN", func(e *testEnv) {
			e.supervisor = status(api.Status{Peers: []peer.View{peerAt("203.0.113.20:7442", peer.Lost)}})
		}, Skip, "nobody answers"},
		{"blocked", func(e *testEnv) {
			e.listen = func() (Received, error) { return Received{}, errors.New("operation not permitted") }
		}, Warn, "UDP 5353"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := machine(t, nil)
			tc.set(e)
			found(t, e, multicast, tc.want, tc.words)
		})
	}
}

func TestHostname(t *testing.T) {
	e := machine(t, nil)
	found(t, e, hostname, Pass, "pi.local")
	e.listen = func() (Received, error) { return Received{SameName: []netip.Addr{router}}, nil }
	found(t, e, hostname, Warn, "192.168.1.1 is called pi.local too")
	e.links = links2()
	found(t, e, hostname, Skip)
}

func TestUDP(t *testing.T) {
	tun := &tunnel.Status{Port: 7442, Peers: []tunnel.PeerStatus{{ID: "b"}}}
	b := func(s peer.State) []peer.View { return []peer.View{peerAt("192.168.1.20:7442", s)} }
	by := func(path string) []peer.View { v := b(peer.Connected); v[0].Path = path; return v }
	for _, tc := range []struct {
		name  string
		st    api.Status
		tcp   error
		want  Status
		words string
	}{
		{"nobody", api.Status{Tunnel: &tunnel.Status{}}, nil, Skip, "no peer yet"},
		{"only found", api.Status{Peers: b(peer.Discovered), Tunnel: &tunnel.Status{}}, nil, Skip, "no peer yet"},
		{"connected", api.Status{Peers: b(peer.Connected), Tunnel: tun}, errors.New("not asked"), Pass, "b"},
		{"direct", api.Status{Peers: by("direct 192.168.1.20:7442"), Tunnel: tun}, errors.New("not asked"), Pass, "b"},
		{"in a stream", api.Status{Peers: by("stream 192.168.1.20:7442"), Tunnel: tun}, errors.New("not asked"), Warn, "UDP does not pass"},
		{"blocked from the beginning", api.Status{Peers: b(peer.Connecting), Tunnel: tun}, nil, Fail, "allow UDP 7442"},
		{"blocked", api.Status{Peers: b(peer.Lost), Tunnel: tun}, nil, Fail, "allow UDP 7442"},
		{"gone", api.Status{Peers: b(peer.Lost), Tunnel: tun}, errors.New("no route"), Warn, "does not answer at all"},
		{"no tunnel process", api.Status{}, nil, Fail, "rivulet status"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := machine(t, nil)
			e.supervisor, e.dial = status(tc.st), func(context.Context, netip.AddrPort) error { return tc.tcp }
			found(t, e, udp, tc.want, tc.words)
		})
	}
	found(t, machine(t, nil), udp, Skip, "not running")
}

func TestFirewall(t *testing.T) {
	for _, tc := range []struct {
		name string
		tree files
		says map[string]string
		want Status
	}{
		{"none", nil, map[string]string{"iptables-save -t filter": "*filter\n:INPUT ACCEPT [0:0]\n:FORWARD ACCEPT [0:0]\nCOMMIT\n"}, Pass},
		{"unknown", nil, nil, Skip},
		{"firewalld", files{"/proc/7/comm": "firewalld\n"}, map[string]string{"firewall-cmd --list-ports": "22/tcp"}, Warn},
		{"firewalld, opened", files{"/proc/7/comm": "firewalld\n"}, map[string]string{"firewall-cmd --list-ports": "7442/tcp 7442/udp"}, Pass},
		{"firewalld of a workstation", files{"/proc/7/comm": "firewalld\n"}, map[string]string{"firewall-cmd --list-ports": "1025-65535/udp 1025-65535/tcp"}, Pass},
		{"firewalld, half opened", files{"/proc/7/comm": "firewalld\n"}, map[string]string{"firewall-cmd --list-ports": "1025-65535/udp 17442/tcp"}, Warn},
		{"ufw", files{"/etc/ufw/ufw.conf": "ENABLED=yes"}, nil, Warn},
		{"ufw, opened", files{"/etc/ufw/ufw.conf": "ENABLED=yes", "/etc/ufw/user.rules": "-A ufw-user-input -p udp --dport 7442 -j ACCEPT"}, nil, Pass},
		{"ufw is off", files{"/etc/ufw/ufw.conf": "ENABLED=no"}, map[string]string{"iptables-save -t filter": ""}, Pass},
		{"drop", nil, map[string]string{"iptables-save -t filter": "*filter\n:INPUT DROP [0:0]\n"}, Warn},
		{"drop, opened", nil, map[string]string{"iptables-save -t filter": "*filter\n:INPUT DROP [0:0]\n-A INPUT -p udp -m udp --dport 7442 -j ACCEPT\n"}, Pass},
		{"Docker's", nil, map[string]string{"iptables-save -t filter": "*filter\n:FORWARD DROP [0:0]\n"}, Warn},
		{"Docker's, with pods allowed", nil, map[string]string{"iptables-save -t filter": "*filter\n:FORWARD DROP [0:0]\n-A FORWARD -j FLANNEL-FWD\n"}, Pass},
		{"a cloud's, which refuses the rest", nil, map[string]string{"iptables-save -t filter": "*filter\n:INPUT ACCEPT [0:0]\n-A INPUT -p tcp -m tcp --dport 22 -j ACCEPT\n-A INPUT -j REJECT --reject-with icmp-host-prohibited\n"}, Warn},
		{"a cloud's, opened", nil, map[string]string{"iptables-save -t filter": "*filter\n:INPUT ACCEPT [0:0]\n-A INPUT -p udp -m udp --dport 7442 -j ACCEPT\n-A INPUT -j REJECT --reject-with icmp-host-prohibited\n"}, Pass},
		{"pods behind what refuses the rest", nil, map[string]string{"iptables-save -t filter": "*filter\n:FORWARD ACCEPT [0:0]\n-A FORWARD -j REJECT --reject-with icmp-host-prohibited\n-A FORWARD -m comment --comment \"flanneld forward\" -j FLANNEL-FWD\n"}, Warn},
		{"pods before what refuses the rest", nil, map[string]string{"iptables-save -t filter": "*filter\n:FORWARD ACCEPT [0:0]\n-A FORWARD -s 10.42.0.0/16 -j ACCEPT\n-A FORWARD -j REJECT --reject-with icmp-host-prohibited\n"}, Pass},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := machine(t, tc.tree)
			e.exec = says(tc.says)
			found(t, e, firewall, tc.want)
		})
	}
}

// A process is ours if a PID file names it or one above it, and by no name.
func TestPorts(t *testing.T) {
	const udp = "sl\n 1: 00000000:1D12 00000000:0000 07 0:0 0:0 0 0 0 77 2 x 0\n"
	const tcp = "sl\n 1: 00000000:192B 00000000:0000 0A 0:0 0:0 0 0 0 55 1 x 0\n 2: 0100007F:280A 0100007F:9999 01 0:0 0:0 0 0 0 66 1 x 0\n"
	ours := files{"/proc/net/tcp": tcp, "/run/rivulet/engine.pid": "40\n",
		"/proc/41/fd/3": "-> socket:[55]", "/proc/41/comm": "k3s) R 1\n", "/proc/41/stat": "41 (k3s) R 1) S 40 1 1\n"}
	found(t, machine(t, nil), ports, Pass, "free")
	found(t, machine(t, ours), ports, Pass, "ours")
	foreign := with(ours, files{"/proc/41/stat": "41 (rivulet) S 1 1 1\n", "/proc/41/comm": "rivulet"})
	found(t, machine(t, foreign), ports, Fail, "TCP 6443 (API server) by rivulet (pid 41)")
	found(t, machine(t, files{"/proc/net/udp": udp}), ports, Fail, "UDP 7442 (tunnel) by a process that cannot be seen")
	unseen := machine(t, files{"/proc/net/udp": udp})
	unseen.User = 1000
	found(t, unseen, ports, Skip, "only root sees which process has UDP 7442: sudo rivulet doctor --only ports")
	for _, p := range []Probe{podNetwork, admission, manifestsOfK3s, serviceRules} {
		found(t, unseen, p, Skip, "only root can look at it")
	}
	seen := machine(t, foreign)
	seen.User = 1000
	found(t, seen, ports, Fail, "TCP 6443 (API server) by rivulet (pid 41)")
	found(t, machine(t, files{"/proc/net/tcp6": "sl\n 1: 0:2808 0:0 0A 0:0 0:0 0 0 0 55 1 x 0\n"}), ports, Warn, "10248")
}

func TestCIDR(t *testing.T) {
	for _, tc := range []struct {
		to, link string
		want     Status
	}{
		{"192.168.1.0/24", "eth0", Pass},
		{"10.42.3.0/24", "eth0", Fail},
		{"10.43.0.0/16", "tun0", Fail},
		{"198.19.9.0/24", "wg0", Fail},
		{"100.127.9.0/24", "wg0", Pass},
		{"10.0.0.0/8", "tun0", Warn},
		{"198.18.0.0/15", "tun0", Warn}, {"100.64.0.0/10", "tailscale0", Pass},
		{"10.42.0.0/24", "cni0", Pass}, {"10.42.0.0/16", "riv0", Pass}, {"10.43.0.0/16", "lo", Pass},
		{"0.0.0.0/0", "eth0", Pass},
	} {
		e := machine(t, nil)
		e.routes = routes2(viaRouter, Route{To: netip.MustParsePrefix(tc.to), Link: tc.link})
		found(t, e, cidr, tc.want)
	}
	e := machine(t, nil)
	e.links = links2(eth0, Link{Name: "tailscale0", Up: true})
	e.exec = says(map[string]string{"iptables-save -t filter": "-A ts-input -s 100.64.0.0/10 ! -i tailscale0 -j DROP\n"})
	found(t, e, cidr, Pass)
	usual := fixed.Ranges{Pods: fixed.PodCIDR, Services: fixed.ServiceCIDR, Nodes: fixed.NodeRange}
	defer fixed.Use(usual)
	fixed.Use(fixed.Ranges{Pods: usual.Pods, Services: usual.Services, Nodes: netip.MustParsePrefix("100.127.0.0/16")})
	found(t, e, cidr, Fail, "Tailscale drops", "--netfilter-mode=off", "rivulet reset")
	// A VPN's, recognized by what it does.
	e.links = links2(eth0)
	e.exec = says(map[string]string{"iptables-save -t filter": "-A headscale ! -i hs0 -s 100.64.0.0/10 -j DROP\n"})
	found(t, e, cidr, Fail, "a rule (iptables -S headscale) drops what comes from 100.64.0.0/10 and not through hs0")
	e.exec = says(map[string]string{"iptables-save -t filter": "-A own -s 100.64.0.0/10 ! -i lo -j DROP\n-A other -s 10.9.0.0/16 ! -i x -j DROP\n-A some -s 100.64.0.0/10 ! -i hs0 -j ACCEPT\n"})
	found(t, e, cidr, Pass)
}

func TestIptables(t *testing.T) {
	const rule = "-A INPUT -j ACCEPT\n"
	e := machine(t, nil)
	found(t, e, iptables, Fail, "apt install iptables")
	found(t, machine(t, files{"/var/lib/rivulet/bundle/current/netfilter/nft/iptables": ""}), iptables, Pass, "Rivulet's own")
	for _, tc := range []struct {
		legacy, nft string
		want        Status
	}{{"", rule, Pass}, {rule, "*filter\n:INPUT ACCEPT [0:0]\n", Pass}, {rule, rule + rule, Warn}} {
		e.exec = says(map[string]string{"iptables --version": "iptables v1.8.9 (nf_tables)\n", "iptables-legacy-save": tc.legacy, "iptables-nft-save": tc.nft})
		found(t, e, iptables, tc.want, "v1.8.9 (nf_tables)")
	}
}

func TestLeftovers(t *testing.T) {
	e := machine(t, nil)
	found(t, e, leftovers, Pass)
	e.links = links2(eth0, Link{Name: "cni0"}, Link{Name: "cali12"})
	found(t, e, leftovers, Warn, "interface cali12")
	found(t, machine(t, files{"/etc/cni/net.d/10-calico.conflist": "{}"}), leftovers, Warn, "10-calico.conflist")
	found(t, machine(t, files{"/proc/9/comm": "kubelet\n", "/proc/9/stat": "9 (kubelet) S 1"}), leftovers, Fail, "kubelet (pid 9)")
	found(t, machine(t, files{"/proc/9/comm": "k3s-server\n", "/proc/9/stat": "9 (k3s-server) S 8", "/run/rivulet/engine.pid": "9"}), leftovers, Pass)
}

func TestSupervisor(t *testing.T) {
	before := files{"/var/lib/rivulet/state.db": "x"}
	answers := func(tree files, err error) *testEnv {
		e := machine(t, tree)
		e.supervisor = func(context.Context) (api.Status, error) { return api.Status{}, err }
		return e
	}
	found(t, answers(before, nil), supervisor, Pass, "it runs")
	found(t, answers(nil, api.ErrNotRunning), supervisor, Skip, "not run here yet")
	found(t, answers(before, api.ErrNotRunning), supervisor, Fail, "does not run", "start it with: sudo ")
	found(t, answers(before, fs.ErrPermission), supervisor, Skip, "sudo rivulet doctor")
	found(t, answers(before, errors.New("no answer")), supervisor, Fail, "no answer", "journalctl -n 50 -u rivulet")
}
