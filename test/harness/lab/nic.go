package lab

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// nicState is one network interface of a device and its cable.
type nicState struct {
	Name      string `json:"name"`
	Address   string `json:"address"` // with prefix length
	MAC       string `json:"mac"`
	MTU       int    `json:"mtu,omitempty"` // 0: the kernel's default
	Unplugged bool   `json:"unplugged,omitempty"`
	// Released is true while the cable's end took the address along: see Plug.
	Released bool `json:"released,omitempty"`
}

// nics are all interfaces of a device, eth0 first.
func (d *deviceState) nics() []nicState {
	first := nicState{Name: deviceNIC, Address: d.Address, MAC: d.MAC, MTU: d.MTU, Unplugged: d.Unplugged, Released: d.Released}
	return append([]nicState{first}, d.More...)
}

// set writes an interface of nics back, or adds it.
func (d *deviceState) set(n nicState) {
	if n.Name == deviceNIC {
		d.Address, d.MTU, d.Unplugged, d.Released = n.Address, n.MTU, n.Unplugged, n.Released
		return
	}
	at := slices.IndexFunc(d.More, func(o nicState) bool { return o.Name == n.Name })
	if at < 0 {
		d.More = append(d.More, n)
		return
	}
	d.More[at] = n
}

// port is the name of the bridge's port at the other end of the cable.
func (d *deviceState) port(nic string) string {
	if nic == deviceNIC {
		return d.Name
	}
	return d.Name + "." + nic
}

func (d *deviceState) ports() (out []string) {
	for _, n := range d.nics() {
		out = append(out, d.port(n.Name))
	}
	return out
}

// newAddress is the next one that is free on the LAN.
func (s *state) newAddress() string {
	address := lanAddress(s.NextIP)
	if s.NextIP++; s.NextIP > lastIP {
		s.NextIP = firstNewIP
	}
	return address
}

// AddInterface gives a device another network interface, with a cable into the same LAN and an address of its own:
// wlan0, say. (A radio would be slower; nothing else tells it from a cable.)
func (d *Device) AddInterface(name string) (address string, err error) {
	err = d.change(func(s *state, ds *deviceState) error {
		if port := ds.port(name); len(port) >= unix.IFNAMSIZ {
			return fmt.Errorf("lab: %q is too long for an interface", name)
		}
		if slices.ContainsFunc(ds.nics(), func(n nicState) bool { return n.Name == name }) {
			return fmt.Errorf("lab: device %s has a %s already", d.Name, name)
		}
		n := nicState{Name: name, Address: s.newAddress(), MAC: fmt.Sprintf("02:77:00:00:%02x:%s", len(ds.More)+1, ds.MAC[len(ds.MAC)-2:])}
		ds.set(n)
		address = n.Address
		if err := s.save(d.lab.dir); err != nil {
			return err
		}
		if !ds.Init.Alive() {
			return nil // it will boot with it
		}
		return errors.Join(plugIn(s.LAN, ds, n), applyCables(s))
	})
	return address, err
}

// Plug puts an interface's cable in, or takes it out. Its address goes and comes with the cable, as the programs that
// ask for addresses (NetworkManager, networkd, dhcpcd) see to.
func (d *Device) Plug(nic string, in bool) error {
	return d.nic(nic, func(n *nicState) { n.Unplugged, n.Released = !in, !in })
}

// SetAddress gives an interface an address of the caller's, in any subnet.
func (d *Device) SetAddress(nic, cidr string) error {
	return d.nic(nic, func(n *nicState) { n.Address = cidr })
}

// SetMTU changes what fits through a cable, at both of its ends.
func (d *Device) SetMTU(nic string, mtu int) error {
	return d.nic(nic, func(n *nicState) { n.MTU = mtu })
}

// Renumber gives the device another address on the LAN, as a DHCP server might.
func (d *Device) Renumber(context.Context) (address string, err error) {
	return address, d.change(func(s *state, ds *deviceState) error {
		n := ds.nics()[0]
		n.Address = s.newAddress()
		address = n.Address
		return d.changed(s, ds, n)
	})
}

func (d *Device) nic(name string, f func(*nicState)) error {
	return d.change(func(s *state, ds *deviceState) error {
		for _, n := range ds.nics() {
			if n.Name == name {
				f(&n)
				return d.changed(s, ds, n)
			}
		}
		return fmt.Errorf("lab: device %s has no %s", d.Name, name)
	})
}

// changed writes an interface down and brings device and LAN in line with it.
func (d *Device) changed(s *state, ds *deviceState, n nicState) error {
	ds.set(n)
	if err := s.save(d.lab.dir); err != nil {
		return err
	}
	if !ds.Init.Alive() {
		return nil // it will boot with it
	}
	if n.MTU > 0 {
		if err := setMTU(s.LAN, ds.port(n.Name), n.MTU); err != nil {
			return err
		}
	}
	return errors.Join(configure(ds, n), applyCables(s))
}

// configure brings an interface inside a device in line with the state.
func configure(d *deviceState, n nicState) error {
	return inNetns(d.Init, func(h *netlink.Handle, _ netns.NsHandle) error {
		l, err := h.LinkByName(n.Name)
		if err != nil {
			return fmt.Errorf("lab: %s in %s: %w", n.Name, d.Name, err)
		}
		if n.MTU > 0 {
			if err := h.LinkSetMTU(l, n.MTU); err != nil {
				return fmt.Errorf("lab: MTU %d of %s in %s: %w", n.MTU, n.Name, d.Name, err)
			}
		}
		address := n.Address
		if n.Released {
			address = ""
		}
		if err := setAddress(h, l, address); err != nil {
			return err
		}
		if err := h.LinkSetUp(l); err != nil {
			return fmt.Errorf("lab: %s in %s: %w", n.Name, d.Name, err)
		}
		return nil
	})
}

func setMTU(where Proc, link string, mtu int) error {
	return inNetns(where, func(h *netlink.Handle, _ netns.NsHandle) error {
		l, err := h.LinkByName(link)
		if err != nil {
			return fmt.Errorf("lab: port %s: %w", link, err)
		}
		if err := h.LinkSetMTU(l, mtu); err != nil {
			return fmt.Errorf("lab: MTU %d of port %s: %w", mtu, link, err)
		}
		return nil
	})
}
