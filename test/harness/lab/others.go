package lab

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Other is a program that many machines have beside Rivulet, or an event of their networks: see Options.With. The lab does
// not run the program: it makes the interfaces, addresses, routes and rules that the program makes.
type Other struct {
	Name string
	Does string // in a device
	From string // the program and the version of which this is known
	make func(*machine) error
}

// others are all of them, in the order in which a machine's boot starts them.
var others = []Other{
	{"ufw", "policies DROP of INPUT and FORWARD, ufw's chains, what the guide says to open", "ufw 0.36.2: before.rules, ufw-init", ufw},
	{"reject", "INPUT and FORWARD end in REJECT, what the guide says to open is before that", "iptables-services of RHEL 9, Oracle Cloud's Ubuntu 22.04: rules.v4", reject},
	{"docker", "policy DROP of FORWARD, Docker's chains, docker0 172.17.0.1/16, a container that comes and goes", "Docker Engine 29: moby's iptablesdoc, new-daemon.md", docker},
	{"podman", "cni-podman0 10.88.0.1/16 and podman0 10.89.0.1/16 with their rules", "Podman 3.0 with CNI plugins 1.1, netavark 2.0: src/firewall/nft.rs", podman},
	{"lxd", "lxdbr0 10.N.1.1/24 with its table of nftables", "LXD 5.21: lxd/firewall/drivers", lxd},
	{"tailscale", "tailscale0 100.101.1.N/32, chains ts-input and ts-forward, rules 5210 to 5270, table 52", "Tailscale 1.90: util/linuxfw, wgengine/router/osrouter", tailscale},
	{"exitnode", "tailscale, and all but the LAN goes to tailscale0, where it is lost", "Tailscale 1.90 with --exit-node and --exit-node-allow-lan-access", exitNode},
	{"strongswan", "rule 220 and table 220 with a default route, 10.3.0.N/32 on eth0, the LAN passes", "strongSwan 5.9: charon.routing_table, plugin bypass-lan", strongSwan},
	{"ra", "the router's advertisement every 3 s: fd77::N/64 with new lifetimes, a default route", "RFC 4861, MinRtrAdvInterval 3 s; as systemd-networkd 252 takes it", advertised},
	{"dhcp", "the lease renewed every 5 s: eth0's address with a new lifetime, a default route", "systemd-networkd 252, NetworkManager 1.42", leased},
	{"resolver", "10.77.0.1 answers names of the LAN, and nothing else: the Internet is out", "dnsmasq 2.90 on a router whose uplink is down", lanResolver},
	{"resolved", "systemd-resolved's files and stub, before a dnsmasq or Pi-hole on 127.0.0.1", "systemd-resolved.service(8) of systemd 252; Pi-hole 6", resolved},
}

// Others lists them.
func Others() []Other { return slices.Clone(others) }

// ParseWith reads NAME[,NAME…] or all.
func ParseWith(text string) (names []string, _ error) {
	if text == "" {
		return nil, nil
	}
	var known []string
	for _, o := range others {
		known = append(known, o.Name)
	}
	if text == "all" {
		return known, nil
	}
	for name := range strings.SplitSeq(text, ",") {
		if !slices.Contains(known, name) {
			return nil, fmt.Errorf("lab: %q is not known: write all, or some of %s with commas between them", name, strings.Join(known, ","))
		}
		names = append(names, name)
	}
	return names, nil
}

// machine is the device in which the process makes others, and keeps them: it ends with the device.
type machine struct {
	n    byte // the device's own number in addresses
	with []string
}

// othersReady is what init reads on readyFD when all others are made; anything else is an error.
const (
	othersReady = "ready"
	readyFD     = 3
)

// keepOthers makes the others that the arguments name, and goes on with what they repeat.
func keepOthers(names []string) error {
	ready := os.NewFile(readyFD, "ready")
	err := (&machine{with: names}).begin()
	if err == nil {
		_, err = fmt.Fprintln(ready, othersReady)
	} else {
		fmt.Fprintln(ready, strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	ready.Close()
	if err != nil {
		return err
	}
	for {
		_ = unix.Pause()
	}
}

func (m *machine) begin() error {
	nic, err := netlink.LinkByName(deviceNIC)
	if err != nil {
		return fmt.Errorf("lab: others: %w", err)
	}
	m.n = nic.Attrs().HardwareAddr[5]
	for _, o := range others {
		if slices.Contains(m.with, o.Name) {
			if err := o.make(m); err != nil {
				return fmt.Errorf("lab: %s: %w", o.Name, err)
			}
		}
	}
	return nil
}

func (m *machine) has(name string) bool { return slices.Contains(m.with, name) }

// run runs a shell script; NNN in it stands for the device's number.
func (m *machine) run(script string) error {
	cmd := exec.Command("sh", "-euc", strings.ReplaceAll(script, "NNN", fmt.Sprint(m.n)))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}

// repeat calls f now, and then at an interval as long as the device is on. What fails meanwhile is in the init's log: a
// cable that is out, say.
func (m *machine) repeat(every time.Duration, f func() error) error {
	err := f()
	go func() {
		for range time.Tick(every) {
			if err := f(); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}
	}()
	return err
}

// lan returns eth0's address on the LAN; ok is false while there is none.
func (m *machine) lan() (address netip.Prefix, ok bool) {
	nic, err := net.InterfaceByName(deviceNIC)
	if err != nil {
		return netip.Prefix{}, false
	}
	all, _ := nic.Addrs()
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() && !p.IsSingleIP() {
			return p, true
		}
	}
	return netip.Prefix{}, false
}

// sink makes a TUN device whose packets nobody gets, as those of a VPN that is cut off.
func sink(name string) error {
	tun := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: name}, Mode: netlink.TUNTAP_MODE_TUN, Flags: netlink.TUNTAP_NO_PI, NonPersist: true, Queues: 1}
	if err := netlink.LinkAdd(tun); err != nil {
		return err
	}
	go func() {
		packet := make([]byte, 65536)
		for {
			if _, err := tun.Fds[0].Read(packet); err != nil && !errors.Is(err, unix.EAGAIN) {
				fmt.Fprintln(os.Stderr, err)
				return
			}
		}
	}()
	return nil
}
