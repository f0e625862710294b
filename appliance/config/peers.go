package config

import (
	"net/netip"
	"regexp"
	"strconv"
	"strings"

	"rivulet/appliance/config/fixed"
	"rivulet/fabric/broker"
	"rivulet/fabric/cure"
)

// Where is one entry of peers: an address, or a host, or a name with SRV records.
type Where struct {
	Addr    netip.AddrPort // valid if it is an address
	Host    string
	Port    uint16 // of Host
	Service string // a name with SRV records
}

var hostForm = regexp.MustCompile(`^([A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9])?\.)*[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9])?\.?$`)

// ParsePeer reads one entry of peers: 192.0.2.7, [2001:db8::7]:7442, 2001:db8::7,
// campus.example, campus.example:7442, srv:_rivulet._tcp.lab.example. An error
// ends in "; cure".
func ParsePeer(s string) (Where, error) {
	if name, ok := strings.CutPrefix(s, "srv:"); ok {
		if !isHost(name) || !strings.Contains(name, ".") {
			return Where{}, cure.Errorf("%.80q is not a name in the DNS; write for example srv:_rivulet._tcp.lab.example", s)
		}
		return Where{Service: strings.ToLower(strings.TrimSuffix(name, "."))}, nil
	}
	if a, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(s, "["), "]")); err == nil {
		return address(s, netip.AddrPortFrom(a, fixed.ControlPort))
	}
	if a, err := netip.ParseAddrPort(s); err == nil {
		return address(s, a)
	}
	host, port := s, uint64(fixed.ControlPort)
	if h, p, ok := strings.Cut(s, ":"); ok {
		var err error
		if port, err = strconv.ParseUint(p, 10, 16); err != nil || port == 0 {
			return Where{}, cure.Errorf("%.80q has no usable port; write for example campus.example:7442", s)
		}
		host = h
	}
	// A text that resembles an address is a mistyped one.
	if !isHost(host) || strings.Trim(host, "0123456789.") == "" {
		return Where{}, cure.Errorf("%.80q is neither an address nor a name; write for example 192.0.2.7, campus.example:7442 or srv:_rivulet._tcp.lab.example", s)
	}
	return Where{Host: strings.ToLower(strings.TrimSuffix(host, ".")), Port: uint16(port)}, nil
}

func isHost(s string) bool { return len(s) <= 253 && hostForm.MatchString(s) }

func address(s string, a netip.AddrPort) (Where, error) {
	switch ip := a.Addr().Unmap(); {
	case ip.IsUnspecified() || ip.IsMulticast() || a.Port() == 0:
		return Where{}, cure.Errorf("%.80q is nobody's address; write that of another device", s)
	case ip.IsLoopback():
		return Where{}, cure.Errorf("%.80q is this device itself; write the address of another", s)
	case ip.Is6() && ip.IsLinkLocalUnicast() && ip.Zone() == "":
		return Where{}, cure.Errorf("%.80q could be on any interface; add which, for example %%eth0", s)
	default:
		return Where{Addr: netip.AddrPortFrom(ip, a.Port())}, nil
	}
}

const exampleBroker = "mfzwizltoq2gkzlemvzxk3lfnzzsa2lt@broker.example:7442"

func checkBroker(s string) error {
	if _, err := broker.ParseAddress(s); err != nil {
		return cure.Errorf("%.120s; write what rivulet broker has printed, for example %s", err, exampleBroker)
	}
	return nil
}

// sameBroker reports whether two addresses are of one broker, which serves one registration of a device.
func sameBroker(a, b string) bool {
	id, _, _ := strings.Cut(a, "@")
	return strings.HasPrefix(b, id+"@")
}

func checkPeer(s string) error {
	_, err := ParsePeer(s)
	return err
}
