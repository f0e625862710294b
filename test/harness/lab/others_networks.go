package lab

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// The LAN's router. It leads nowhere: what is for the Internet is lost.
const (
	router  = "10.77.0.1"
	router6 = "fe80::1"
	domain  = "lan" // of names that the LAN's resolver knows
)

// tailscale is its daemon, up and not connected to anybody who answers.
func tailscale(m *machine) error {
	if m.has("exitnode") { // it has made it
		return nil
	}
	return makeTailscale(m)
}

func makeTailscale(m *machine) error {
	if err := sink("tailscale0"); err != nil {
		return err
	}
	if err := m.restore("iptables", "filter", ":ts-input - [0:0]", ":ts-forward - [0:0]", "-I INPUT -j ts-input", "-I FORWARD -j ts-forward",
		fmt.Sprintf("-A ts-input -i lo -s 100.101.1.%d/32 -j ACCEPT", m.n), "-A ts-input ! -i tailscale0 -s 100.115.92.0/23 -j RETURN",
		"-A ts-input ! -i tailscale0 -s 100.64.0.0/10 -j DROP", "-A ts-input -i tailscale0 -j ACCEPT", "-A ts-input -p udp --dport 41641 -j ACCEPT",
		"-A ts-forward -i tailscale0 -j MARK --set-xmark 0x40000/0xff0000", "-A ts-forward -m mark --mark 0x40000/0xff0000 -j ACCEPT",
		"-A ts-forward -o tailscale0 -s 100.64.0.0/10 -j DROP", "-A ts-forward -o tailscale0 -j ACCEPT"); err != nil {
		return err
	}
	if err := m.restore("iptables", "nat", ":ts-postrouting - [0:0]", "-I POSTROUTING -j ts-postrouting", "-A ts-postrouting -m mark --mark 0x40000/0xff0000 -j MASQUERADE"); err != nil {
		return err
	}
	return m.run(`ip link set tailscale0 mtu 1280 up
ip addr add 100.101.1.NNN/32 dev tailscale0
ip addr add fd7a:115c:a1e0::NNN/128 dev tailscale0
for v in -4 -6; do
	ip $v rule add pref 5210 fwmark 0x80000/0xff0000 table main
	ip $v rule add pref 5230 fwmark 0x80000/0xff0000 table default
	ip $v rule add pref 5250 fwmark 0x80000/0xff0000 type unreachable
	ip $v rule add pref 5270 table 52
done
for to in 100.100.100.100 100.101.1.201 100.101.1.202; do ip route add $to dev tailscale0 table 52; done
ip -6 route add fd7a:115c:a1e0::/48 dev tailscale0 table 52`)
}

// exitNode is tailscale with another machine as its way to the Internet, from which nothing returns.
func exitNode(m *machine) error {
	if err := makeTailscale(m); err != nil {
		return err
	}
	if err := m.run("for v in -4 -6; do ip $v route add default dev tailscale0 table 52; done; ip -6 route add throw fd77::/64 table 52"); err != nil {
		return err
	}
	return m.lanPasses("throw %[1]s table 52")
}

// lanPasses keeps a route to the LAN in another table than main. %[1]s stands for the network, %[2]s for the address there.
func (m *machine) lanPasses(route string) error {
	return m.repeat(5*time.Second, func() error {
		lan, ok := m.lan()
		if !ok {
			return nil
		}
		return m.run("ip route replace " + fmt.Sprintf(route, lan.Masked(), lan.Addr()))
	})
}

// strongSwan has a tunnel to a gateway that takes everything. Its packets have the virtual address, and no policy of the
// kernel's sends them anywhere: the router gets them.
func strongSwan(m *machine) error {
	if err := m.run("ip rule add pref 220 table 220"); err != nil {
		return err
	}
	err := m.repeat(5*time.Second, func() error {
		return m.run("ip addr replace 10.3.0.NNN/32 dev eth0; ip route replace default via " + router + " dev eth0 onlink proto static src 10.3.0.NNN table 220")
	})
	if err != nil {
		return err
	}
	return m.lanPasses("%[1]s dev eth0 proto static src %[2]s table 220")
}

func advertised(m *machine) error {
	return m.repeat(3*time.Second, func() error {
		return m.run("ip -6 addr replace fd77::NNN/64 dev eth0 valid_lft 1800 preferred_lft 600\n" +
			"ip -6 route replace default via " + router6 + " dev eth0 proto ra metric 1024 expires 1800")
	})
}

func leased(m *machine) error {
	return m.repeat(5*time.Second, func() error {
		lan, ok := m.lan()
		if !ok {
			return nil
		}
		return m.run(fmt.Sprintf("ip addr replace %s brd + dev eth0 valid_lft 3600 preferred_lft 3600\n"+
			"ip route replace default via "+router+" dev eth0 onlink proto dhcp src %s metric 100", lan, lan.Addr()))
	})
}

// lanResolver is what DHCP tells: the router, which serveLAN answers for.
func lanResolver(*machine) error {
	return os.WriteFile("/etc/resolv.conf", []byte("nameserver "+router+"\nsearch "+domain+"\n"), 0o644)
}

// resolved is its stub and its proxy, and a resolver on 127.0.0.1 which both ask.
func resolved(m *machine) error {
	const run = "/run/systemd/resolve"
	servers := "nameserver 127.0.0.1\n"
	if m.has("resolver") {
		servers += "nameserver " + router + "\n"
	}
	if err := os.MkdirAll(run, 0o755); err != nil {
		return err
	}
	for name, text := range map[string]string{"stub-resolv.conf": "nameserver 127.0.0.53\noptions edns0 trust-ad\n", "resolv.conf": servers} {
		if err := os.WriteFile(filepath.Join(run, name), []byte(text+"search "+domain+"\n"), 0o644); err != nil {
			return err
		}
	}
	if err := os.Remove("/etc/resolv.conf"); err != nil {
		return err
	}
	if err := os.Symlink("../run/systemd/resolve/stub-resolv.conf", "/etc/resolv.conf"); err != nil {
		return err
	}
	for _, at := range []string{"127.0.0.1:53", "127.0.0.53:53", "127.0.0.54:53"} {
		if err := serveLAN(at); err != nil {
			return err
		}
	}
	return nil
}

// serveLAN answers for names of the LAN at an address, by UDP and TCP, and for private addresses, as dnsmasq with
// bogus-priv does. It is silent for all others.
func serveLAN(at string) error {
	packets, err := net.ListenPacket("udp", at)
	if err != nil {
		return err
	}
	conns, err := net.Listen("tcp", at)
	if err != nil {
		return err
	}
	answer := dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		if len(q.Question) != 1 || !dns.IsSubDomain(domain+".", q.Question[0].Name) && !dns.IsSubDomain("127.in-addr.arpa.", q.Question[0].Name) {
			return
		}
		a := new(dns.Msg).SetReply(q)
		switch name := q.Question[0].Name; {
		case !strings.EqualFold(name, "nas."+domain+"."):
			a.Rcode = dns.RcodeNameError
		case q.Question[0].Qtype == dns.TypeA:
			a.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60}, A: net.ParseIP(router)}}
		}
		_ = w.WriteMsg(a) // who asked has ended
	})
	for _, s := range []*dns.Server{{PacketConn: packets, Handler: answer}, {Listener: conns, Handler: answer}} {
		go func() { fmt.Fprintln(os.Stderr, s.ActivateAndServe()) }()
	}
	return nil
}
