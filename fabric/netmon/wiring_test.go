package netmon

import (
	"errors"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"rivulet/test/harness/testns"
)

// named are the names of those links that lead to a cable or a radio.
func named(all []netlink.Link) (names []string) {
	for _, l := range all {
		if wiring(all).leads(l) && l.Attrs().Name != "lo" {
			names = append(names, l.Attrs().Name)
		}
	}
	slices.Sort(names)
	return names
}

// The bridges of Podman, LXD, Multipass and libvirt, and what is plugged into them, as the kernel reports it: with a
// network card in the machine none of them is a LAN, whatever its name; with the card as a port the bridge is one.
func TestTheKernelTellsWhatLeadsToACable(t *testing.T) {
	room := testns.New(t)
	link := func(name string) netlink.LinkAttrs { return netlink.LinkAttrs{Name: name} }
	index := map[string]int{}
	var all []netlink.Link
	room.Do(func() (err error) {
		for _, l := range []netlink.Link{
			&netlink.Bridge{LinkAttrs: link("podman0")}, &netlink.Bridge{LinkAttrs: link("lxdbr0")}, &netlink.Bridge{LinkAttrs: link("home")},
			&netlink.Veth{LinkAttrs: link("port1"), PeerName: "c1"}, &netlink.Veth{LinkAttrs: link("eth7"), PeerName: "c2"}, &netlink.Veth{LinkAttrs: link("port3"), PeerName: "c3"},
			&netlink.Dummy{LinkAttrs: link("eth8")}, &netlink.Tuntap{LinkAttrs: link("eth9"), Mode: netlink.TUNTAP_MODE_TAP},
			&netlink.Vxlan{LinkAttrs: link("eth10"), VxlanId: 7, Port: 4789},
		} {
			if err := netlink.LinkAdd(l); err != nil {
				t.Logf("%s: %v", l.Attrs().Name, err) // not every kernel has all kinds
			}
		}
		for port, bridge := range map[string]string{"port1": "podman0", "port3": "lxdbr0"} {
			p, perr := netlink.LinkByName(port)
			b, berr := netlink.LinkByName(bridge)
			if err := errors.Join(perr, berr); err != nil {
				return err
			}
			if err := netlink.LinkSetMaster(p, b); err != nil {
				return err
			}
		}
		all, err = Dump(netlink.LinkList)
		return err
	})
	for _, l := range all {
		index[l.Attrs().Name] = l.Attrs().Index
	}
	if len(all) < 8 {
		t.Fatalf("only %v", index)
	}
	card := func(name, behind string, master string) netlink.Link {
		return &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: 900 + len(name), Name: name, ParentDev: behind, MasterIndex: index[master], NetNsID: -1}}
	}
	if got := named(append(all, card("enp3s0", "0000:03:00.0", ""))); !slices.Equal(got, []string{"enp3s0"}) {
		t.Errorf("beside a card: %q", got)
	}
	if got := named(append(all, card("enp3s0", "0000:03:00.0", "home"), card("vboxnet0", "", ""))); !slices.Equal(got, []string{"enp3s0", "home"}) {
		t.Errorf("with the card in a bridge: %q", got)
	}
	// In a container, which sees no card, its own link is a veth.
	if got := named(all); !slices.Contains(got, "eth7") || slices.Contains(got, "podman0") || slices.Contains(got, "lxdbr0") {
		t.Errorf("in a container: %q", got)
	}
}

// Links on top of links.
func TestWhatIsOnACable(t *testing.T) {
	attrs := func(index int, name string, parent, master int) netlink.LinkAttrs {
		return netlink.LinkAttrs{Index: index, Name: name, ParentIndex: parent, MasterIndex: master, NetNsID: -1}
	}
	card := attrs(2, "eth0", 0, 3)
	card.ParentDev = "fd580000.ethernet"
	radio := attrs(9, "wlan0", 0, 0)
	radio.ParentDev = "mmc1:0001:1"
	inAnother := attrs(15, "eth5", 2, 0)
	inAnother.NetNsID = 1
	all := []netlink.Link{
		&netlink.Device{LinkAttrs: card}, &netlink.Device{LinkAttrs: radio}, &netlink.Bond{LinkAttrs: attrs(3, "bond0", 0, 0)},
		&netlink.Vlan{LinkAttrs: attrs(4, "bond0.7", 3, 5)}, &netlink.Bridge{LinkAttrs: attrs(5, "br-lan", 0, 0)},
		&netlink.Macvlan{LinkAttrs: attrs(6, "mac0", 3, 0)}, &netlink.Vxlan{LinkAttrs: attrs(7, "flannel.1", 2, 0)}, &netlink.Vlan{LinkAttrs: attrs(8, "veth1.7", 10, 0)},
		&netlink.Veth{LinkAttrs: attrs(10, "veth1", 2, 0)}, &netlink.GenericLink{LinkAttrs: attrs(11, "lan1", 2, 0), LinkType: "dsa"},
		&netlink.GenericLink{LinkAttrs: attrs(12, "new0", 2, 0), LinkType: "of-tomorrow"}, &netlink.Vlan{LinkAttrs: inAnother},
		&netlink.Bridge{LinkAttrs: attrs(13, "ring1", 0, 14)}, &netlink.Bridge{LinkAttrs: attrs(14, "ring2", 0, 13)},
	}
	if got, want := named(all), []string{"bond0", "bond0.7", "br-lan", "eth0", "lan1", "mac0", "wlan0"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// A container in the manner of LXC or Docker, with other containers in it: by names.
func TestNamesInAContainer(t *testing.T) {
	for name, want := range map[string]bool{
		"eth0": true, "wlan0": true, "enp3s0": true, "br0": true, "bond0": true, "lowpan0": true, "cni0": false, "veth12ab": false, "flannel.1": false, "riv0": false,
		"docker0": false, "br-1a2b": false, "wg0": false, "tun0": false, "kube-ipvs0": false, "tailscale0": false, "podman1": false, "incusbr0": false,
	} {
		l := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Index: 2, Name: name}}
		if got := (wiring{l}).leads(l); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
