package lab

import (
	"fmt"
	"os"
	"strings"
	"time"
)

// opened is what docs/guide/networks.md and `rivulet doctor --only firewall` tell users to open, as the end of rules.
var opened = []string{"-p tcp --dport 7442", "-p udp --dport 7442", "-p udp --dport 5353", "-i cni0", "-i riv0"}

// restore gives a table's lines to iptables-restore or ip6tables-restore, which keeps what is there.
func (m *machine) restore(tool, table string, lines ...string) error {
	return m.run(tool + "-restore -w --noflush <<.\n*" + table + "\n" + strings.Join(lines, "\n") + "\nCOMMIT\n.\n")
}

// ufw is enabled, with its defaults.
func ufw(m *machine) error {
	user := []string{"*filter", ":ufw-user-input - [0:0]"}
	for _, o := range opened {
		user = append(user, "-A ufw-user-input "+o+" -j ACCEPT")
	}
	if err := os.MkdirAll("/etc/ufw", 0o755); err != nil {
		return err
	}
	for name, content := range map[string]string{"ufw.conf": "ENABLED=yes\nLOGLEVEL=off\n", "user.rules": strings.Join(append(user, "COMMIT", ""), "\n")} {
		if err := os.WriteFile("/etc/ufw/"+name, []byte(content), 0o644); err != nil {
			return err
		}
	}
	for _, v := range []struct{ tool, six, icmp, mdns string }{
		{"iptables", "", "-p icmp", "224.0.0.251"},
		{"ip6tables", "6", "-p icmpv6", "ff02::fb"},
	} {
		c := "ufw" + v.six + "-"
		lines := []string{":INPUT DROP [0:0]", ":FORWARD DROP [0:0]", ":OUTPUT ACCEPT [0:0]"}
		for _, chain := range []string{"input", "forward", "output"} {
			for _, part := range []string{"before-logging", "before", "after", "after-logging", "reject", "track"} {
				name := c + part + "-" + chain
				lines = append(lines, ":"+name+" - [0:0]", "-A "+strings.ToUpper(chain)+" -j "+name)
			}
			lines = append(lines, ":"+c+"user-"+chain+" - [0:0]")
		}
		in, forward, out := "-A "+c+"before-input ", "-A "+c+"before-forward ", "-A "+c+"before-output "
		const known = "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"
		lines = append(lines, ":"+c+"not-local - [0:0]",
			in+"-i lo -j ACCEPT", out+"-o lo -j ACCEPT", in+known, forward+known, out+known,
			in+"-m conntrack --ctstate INVALID -j DROP", in+v.icmp+" -j ACCEPT", forward+v.icmp+" -j ACCEPT")
		if v.six == "" {
			lines = append(lines, in+"-p udp --sport 67 --dport 68 -j ACCEPT", in+"-j ufw-not-local")
			for _, kind := range []string{"LOCAL", "MULTICAST", "BROADCAST"} {
				lines = append(lines, "-A ufw-not-local -m addrtype --dst-type "+kind+" -j RETURN")
			}
			lines = append(lines, "-A ufw-not-local -j DROP")
		}
		lines = append(lines, in+"-p udp -d "+v.mdns+" --dport 5353 -j ACCEPT",
			in+"-j "+c+"user-input", forward+"-j "+c+"user-forward", out+"-j "+c+"user-output",
			"-A "+c+"track-output -m conntrack --ctstate NEW -j ACCEPT")
		for _, o := range opened {
			lines = append(lines, "-A "+c+"user-input "+o+" -j ACCEPT")
		}
		if err := m.restore(v.tool, "filter", lines...); err != nil {
			return err
		}
	}
	return nil
}

// reject is a list of rules in a file, which a unit loads at boot.
func reject(m *machine) error {
	lines := []string{"-A INPUT -m state --state RELATED,ESTABLISHED -j ACCEPT", "-A INPUT -p icmp -j ACCEPT", "-A INPUT -i lo -j ACCEPT",
		"-A INPUT -p tcp -m state --state NEW -m tcp --dport 22 -j ACCEPT"}
	for _, o := range opened {
		lines = append(lines, "-A INPUT "+o+" -j ACCEPT")
	}
	return m.restore("iptables", "filter", append(lines, "-A INPUT -j REJECT --reject-with icmp-host-prohibited", "-A FORWARD -j REJECT --reject-with icmp-host-prohibited")...)
}

// docker is its daemon with the default bridge, and a container that runs for some seconds again and again.
func docker(m *machine) error {
	if err := m.bridge("docker0", "172.17.0.1/16"); err != nil {
		return err
	}
	if err := m.restore("iptables", "nat", ":DOCKER - [0:0]", "-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER",
		"-A OUTPUT ! -d 127.0.0.0/8 -m addrtype --dst-type LOCAL -j DOCKER", "-A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE"); err != nil {
		return err
	}
	if err := m.restore("iptables", "filter", ":FORWARD DROP [0:0]",
		":DOCKER - [0:0]", ":DOCKER-BRIDGE - [0:0]", ":DOCKER-CT - [0:0]", ":DOCKER-FORWARD - [0:0]", ":DOCKER-INTERNAL - [0:0]", ":DOCKER-USER - [0:0]",
		"-I FORWARD -j DOCKER-FORWARD", "-I FORWARD -j DOCKER-USER",
		"-A DOCKER ! -i docker0 -o docker0 -j DROP", "-A DOCKER-BRIDGE -o docker0 -j DOCKER",
		"-A DOCKER-CT -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
		"-A DOCKER-FORWARD -j DOCKER-CT", "-A DOCKER-FORWARD -j DOCKER-INTERNAL", "-A DOCKER-FORWARD -j DOCKER-BRIDGE", "-A DOCKER-FORWARD -i docker0 -j ACCEPT"); err != nil {
		return err
	}
	if err := m.run("ip netns add docker"); err != nil {
		return err
	}
	return m.repeat(7*time.Second, func() error {
		return m.run(`if ip link show vethd0c7e5 >/dev/null 2>&1; then ip link del vethd0c7e5; exit; fi
ip link add vethd0c7e5 type veth peer name eth0 netns docker
ip link set vethd0c7e5 master docker0 up
ip -n docker addr add 172.17.0.2/16 dev eth0
ip -n docker link set eth0 up`)
	})
}

// podman is a machine that had Podman 3 with CNI and has a newer one with netavark.
func podman(m *machine) error {
	if err := m.bridge("cni-podman0", "10.88.0.1/16"); err != nil {
		return err
	}
	if err := m.restore("iptables", "filter", ":CNI-FORWARD - [0:0]", ":CNI-ADMIN - [0:0]", "-I FORWARD -j CNI-FORWARD", "-A CNI-FORWARD -j CNI-ADMIN",
		"-A CNI-FORWARD -d 10.88.0.2/32 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", "-A CNI-FORWARD -s 10.88.0.2/32 -j ACCEPT"); err != nil {
		return err
	}
	if err := m.restore("iptables", "nat", ":CNI-4a1c0de - [0:0]", "-A POSTROUTING -s 10.88.0.2/32 -j CNI-4a1c0de",
		"-A CNI-4a1c0de -d 10.88.0.0/16 -j ACCEPT", "-A CNI-4a1c0de ! -d 224.0.0.0/4 -j MASQUERADE"); err != nil {
		return err
	}
	if err := m.bridge("podman0", "10.89.0.1/16"); err != nil {
		return err
	}
	return m.run(`nft -f - <<'.'
table inet netavark {
	chain NETAVARK-HOSTPORT-DNAT { }
	chain NETAVARK-HOSTPORT-SETMARK { meta mark set meta mark | 0x2000; }
	chain NETAVARK-ISOLATION-2 { }
	chain NETAVARK-ISOLATION-3 {
		oifname "podman0" drop
		jump NETAVARK-ISOLATION-2
	}
	chain NETAVARK-ISOLATION-1 { }
	chain nv_10_89_0_0_nm16 {
		ip daddr 10.89.0.0/16 accept
		ip daddr != 224.0.0.0/4 masquerade
	}
	chain INPUT {
		type filter hook input priority 0; policy accept;
		ip saddr 10.89.0.0/16 meta l4proto { tcp, udp } th dport 53 accept
	}
	chain FORWARD {
		type filter hook forward priority 0; policy accept;
		ct state invalid drop
		ct mark & 0x1000 == 0x1000 accept
		jump NETAVARK-ISOLATION-1
		ip daddr 10.89.0.0/16 ct state established,related accept
		ip saddr 10.89.0.0/16 accept
	}
	chain POSTROUTING {
		type nat hook postrouting priority 100; policy accept;
		meta mark & 0x2000 == 0x2000 masquerade
		ip saddr 10.89.0.0/16 jump nv_10_89_0_0_nm16
	}
	chain PREROUTING {
		type nat hook prerouting priority -100; policy accept;
		fib daddr type local jump NETAVARK-HOSTPORT-DNAT
	}
	chain OUTPUT {
		type nat hook output priority -100; policy accept;
		fib daddr type local jump NETAVARK-HOSTPORT-DNAT
	}
}
.`)
}

func lxd(m *machine) error {
	if err := m.bridge("lxdbr0", fmt.Sprintf("10.%d.1.1/24", m.n)); err != nil {
		return err
	}
	return m.run(`nft -f - <<'.'
table inet lxd {
	chain pstrt.lxdbr0 {
		type nat hook postrouting priority 100; policy accept;
		ip saddr 10.NNN.1.0/24 ip daddr != 10.NNN.1.0/24 masquerade
	}
	chain fwd.lxdbr0 {
		type filter hook forward priority 0; policy accept;
		ip version 4 oifname "lxdbr0" accept
		ip version 4 iifname "lxdbr0" accept
	}
	chain in.lxdbr0 {
		type filter hook input priority 0; policy accept;
		iifname "lxdbr0" tcp dport 53 accept
		iifname "lxdbr0" udp dport { 53, 67 } accept
		iifname "lxdbr0" icmp type { 3, 11, 12 } accept
	}
	chain out.lxdbr0 {
		type filter hook output priority 0; policy accept;
		oifname "lxdbr0" tcp sport 53 accept
		oifname "lxdbr0" udp sport { 53, 67 } accept
		oifname "lxdbr0" icmp type { 3, 11, 12 } accept
	}
}
.`)
}

// bridge makes a bridge with an address, for containers.
func (m *machine) bridge(name, address string) error {
	return m.run("ip link add " + name + " type bridge; ip addr add " + address + " brd + dev " + name + "; ip link set " + name + " up")
}
