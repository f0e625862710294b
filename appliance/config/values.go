package config

import (
	"errors"
	"net/netip"
	"path"
	"regexp"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/tools/clientcmd"

	"rivulet/appliance/machine/host"
	"rivulet/fabric/cure"
	"rivulet/fabric/ipam"
	"rivulet/fabric/trust"
	"rivulet/offload/offer"
)

// The checks below return an error with a cure.

// CheckName returns an error if a name cannot be a cluster's; empty is the default.
func CheckName(given string) error {
	if usable := host.Name(given); usable != given {
		if usable == "" {
			usable = "lab-1"
		}
		return cure.Errorf("%.70q cannot be a cluster's name; use at most %d lower case letters, digits and -, for example %s",
			given, host.NameMax, usable)
	}
	return nil
}

func checkMode(s string) error {
	modes := []string{TrustLAN, TrustGroup, TrustAsk}
	for _, m := range modes {
		if s == m {
			return nil
		}
	}
	if near := Nearest(s, modes); near != "" {
		return cure.Errorf("%.30q is not known; did you mean %s?", s, near)
	}
	return cure.Errorf("%.30q is not known; write lan, group or ask", s)
}

// minSecret is the length of a secret that cannot be guessed by trying, bytes.
const minSecret = 16

func checkToken(s string) error {
	if _, err := trust.ParseCode(s); err != nil {
		return cure.Errorf("this is no token to join with, or not all of one; copy what rivulet token create has printed")
	}
	return nil
}

func checkSecret(s string) error {
	if len(s) < minSecret {
		return cure.Errorf("the secret has %d characters and could be guessed; use at least %d, for example of: head -c 18 /dev/urandom | base64", len(s), minSecret)
	}
	if strings.ContainsAny(s, "\n\r\x00") {
		return cure.Errorf("the secret has several lines; write it on one")
	}
	return nil
}

// Percent is a share of the device: 0% to 100%. Empty is not set.
type Percent string

// Value returns the number; not set is 100.
func (p Percent) Value() int {
	v, err := strconv.Atoi(strings.TrimSuffix(string(p), "%"))
	if err != nil {
		return 100
	}
	return v
}

func checkPercent(s string) error {
	digits, ok := strings.CutSuffix(s, "%")
	v, err := strconv.Atoi(digits)
	switch {
	case err != nil || strings.TrimLeft(digits, "0123456789") != "":
		return cure.Errorf("%.30q is not a share; write for example 50%%", s)
	case v > 100:
		return cure.Errorf("%.30q is more than there is; write 0%% to 100%%", s)
	case !ok:
		return cure.Errorf("%.30q lacks the %%; write %d%%", s, v)
	}
	return nil
}

// checkPorts checks a range of the engine's node ports.
func checkPorts(s string) error {
	_, err := offer.ParsePorts(s)
	return err
}

func quantity(s, example string) (resource.Quantity, error) {
	q, err := resource.ParseQuantity(s)
	if err != nil || q.Sign() < 0 {
		return q, cure.Errorf("%.30q is not a quantity; write for example %s", s, example)
	}
	return q, nil
}

func checkCPU(s string, h Host) error {
	q, err := quantity(s, "500m")
	if err == nil && h.CPUs > 0 && q.Cmp(*resource.NewQuantity(int64(h.CPUs), resource.DecimalSI)) >= 0 {
		return cure.Errorf("%s leaves nothing of the %d CPUs here; write less", s, h.CPUs)
	}
	return err
}

func checkMemory(s string, h Host) error {
	q, err := quantity(s, "1Gi")
	if err != nil {
		return err
	}
	if v := q.Value(); v > 0 && v < 1<<20 {
		return cure.Errorf("%s is %d bytes; write for example 512Mi or 1Gi", s, v)
	}
	if h.MemoryBytes > 0 && q.Cmp(*resource.NewQuantity(int64(h.MemoryBytes), resource.BinarySI)) >= 0 {
		return cure.Errorf("%s leaves nothing of the %d Mi here; write less", s, h.MemoryBytes>>20)
	}
	return nil
}

var interfaceForm = regexp.MustCompile(`^[A-Za-z0-9._@:*?\[\]^-]{1,32}$`)

// never are prefixes of interfaces to containers or peers, and not to a LAN.
var never = []string{"lo", "riv", "cni", "veth", "flannel"}

func checkInterface(s string) error {
	if _, err := path.Match(s, ""); err != nil || !interfaceForm.MatchString(s) {
		return cure.Errorf("%.40q is not the name of an interface; write for example eth0 or \"wlan*\" (see: ip link)", s)
	}
	for _, n := range never {
		if s == n || n != "lo" && strings.HasPrefix(s, n) {
			return cure.Errorf("%s leads to containers, not to a LAN; name another (see: ip link)", s)
		}
	}
	return nil
}

// podBits is the length of a cluster's pod CIDR; a peer takes a prefix of that size.
const podBits = 16

func checkBlock(s string) error {
	p, err := netip.ParsePrefix(s)
	if err == nil {
		err = ipam.Check(p, podBits)
	} else {
		err = errors.New("it is no IPv4 prefix")
	}
	if err != nil {
		return cure.Errorf("%.40q cannot be the block of peers' prefixes: %w; write for example %s", s, err, ipam.Default)
	}
	return nil
}

func checkNamespace(s string) error {
	if len(validation.IsDNS1123Label(s)) > 0 {
		return cure.Errorf("%.70q is not a namespace; use lower case letters, digits and -", s)
	}
	return nil
}

// checkKubeconfig checks that the file is a kubeconfig that names a cluster.
func checkKubeconfig(file string) error {
	data, _, err := read(file)
	if err != nil {
		return err
	}
	k, err := clientcmd.Load(data)
	if err != nil {
		return errors.New("it is not a kubeconfig") // the library's message may quote it
	}
	if err := clientcmd.ConfirmUsable(*k, ""); err != nil {
		return errors.New("it is a kubeconfig without a usable current context")
	}
	return nil
}
