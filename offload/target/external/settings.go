package external

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
)

// How pods there and home reach each other.
const (
	NetworkNone   = "none"   // not at all: batch work
	NetworkAuto   = "auto"   // through a gateway pod, over whatever works
	NetworkStream = "stream" // through a gateway pod and the API server
	NetworkUDP    = "udp"    // through a gateway pod and UDP
)

// Networks are the valid values.
var Networks = []string{NetworkNone, NetworkAuto, NetworkStream, NetworkUDP}

// How the Pod Security level of the namespace is determined.
const (
	SecurityAuto       = "auto" // as detected
	SecurityRestricted = "restricted"
	SecurityAsIs       = "as-is" // pods are sent unchanged
)

// Securities are the valid values.
var Securities = []string{SecurityAuto, SecurityRestricted, SecurityAsIs}

// When pods are placed there.
const (
	OrderLast  = "last"  // after home and the peers on the LAN
	OrderEqual = "equal" // like a peer
)

// Prices are those of peers: see peer.Settings.
var Prices = []string{"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"}

// Orders are the valid values.
var Orders = []string{OrderLast, OrderEqual}

// Architectures are those of the images that Rivulet supports.
var Architectures = []string{"amd64", "arm64", "arm"}

// Settings are a user's settings of one target.
type Settings struct {
	Name string `json:"name"`
	// Namespace is the one to use; empty is the context's.
	Namespace string `json:"namespace"`
	// Limits bound what pods of home may request there, in total.
	Limits corev1.ResourceList `json:"limits,omitempty"`
	// Arch is the nodes' architecture if they cannot be read; empty is amd64.
	Arch string `json:"arch,omitempty"`
	// Labels are added to the virtual node.
	Labels  map[string]string `json:"labels,omitempty"`
	Network string            `json:"network,omitempty"`
	// Image is the gateway's.
	Image    string `json:"image,omitempty"`
	Security string `json:"podSecurity,omitempty"`
	Order    string `json:"order,omitempty"`
	// Price is one of Prices.
	Price string `json:"price,omitempty"`
}

// Or returns s, with unset fields from had. The name stays.
func (s Settings) Or(had Settings) Settings {
	if len(s.Limits) == 0 {
		s.Limits = had.Limits
	}
	if len(s.Labels) == 0 {
		s.Labels = had.Labels
	}
	for _, field := range []struct {
		mine  *string
		other string
	}{{&s.Namespace, had.Namespace}, {&s.Arch, had.Arch}, {&s.Network, had.Network}, {&s.Image, had.Image}, {&s.Security, had.Security}, {&s.Order, had.Order}, {&s.Price, had.Price}} {
		*field.mine = cmp.Or(*field.mine, field.other)
	}
	return s
}

// maxName leaves room for "burst-" and an architecture in the name of a node.
const maxName = 40

// Complete sets defaults and validates; the error has the cure.
func (s *Settings) Complete() error {
	if faults := validation.IsDNS1123Label(s.Name); len(faults) > 0 || len(s.Name) > maxName {
		return fmt.Errorf("%.60q cannot be the name of a burst target; use up to %d lower-case letters, digits and dashes", s.Name, maxName)
	}
	for _, choice := range []struct {
		what  string
		value *string
		of    []string
	}{
		{"network", &s.Network, Networks}, {"pod-security", &s.Security, Securities}, {"order", &s.Order, Orders}, {"price", &s.Price, Prices}, {"arch", &s.Arch, Architectures},
	} {
		if *choice.value == "" {
			*choice.value = choice.of[0]
		}
		if !slices.Contains(choice.of, *choice.value) {
			return fmt.Errorf("%s %.40q is not known; use one of %s", choice.what, *choice.value, strings.Join(choice.of, ", "))
		}
	}
	if s.Namespace != "" {
		if faults := validation.IsDNS1123Label(s.Namespace); len(faults) > 0 {
			return fmt.Errorf("%.80q cannot be the name of a namespace: %s", s.Namespace, faults[0])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Limits)) {
		q := s.Limits[name]
		if q.Sign() < 0 {
			return fmt.Errorf("limit %s=%s is less than nothing; give a positive amount", name, q.String())
		}
		if faults := validation.IsQualifiedName(string(name)); len(faults) > 0 {
			return fmt.Errorf("%.60q is not the name of a resource; use cpu, memory, pods, ephemeral-storage or the like", name)
		}
	}
	for key, value := range s.Labels {
		if faults := append(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)...); len(faults) > 0 {
			return fmt.Errorf("label %.60q=%.60q is none: %s", key, value, faults[0])
		}
		if strings.HasPrefix(key, "rivulet.dev/") {
			return fmt.Errorf("label %s is Rivulet's own; choose another", key)
		}
	}
	return nil
}

// Limits parses "cpu=8,memory=16Gi,pods=40".
func Limits(text string) (corev1.ResourceList, error) {
	out := corev1.ResourceList{}
	for entry := range strings.SplitSeq(text, ",") {
		entry = strings.TrimSpace(entry)
		if entry == "" {
			continue
		}
		name, amount, ok := strings.Cut(entry, "=")
		if !ok || name == "" {
			return nil, fmt.Errorf("limit %.60q is not understood; write it like cpu=8,memory=16Gi,pods=40", entry)
		}
		q, err := resource.ParseQuantity(amount)
		if err != nil {
			return nil, fmt.Errorf("limit %s=%.40s is no amount; write it like cpu=8,memory=16Gi,pods=40", name, amount)
		}
		if _, twice := out[corev1.ResourceName(name)]; twice {
			return nil, fmt.Errorf("limit %s is given twice; give it once", name)
		}
		out[corev1.ResourceName(name)] = q
	}
	return out, nil
}
