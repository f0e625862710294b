package peer

import (
	"fmt"
	"maps"
	"regexp"
	"strings"
	"time"
)

const (
	// MaxPrice is the highest price of a peer; 0, the default, is the lowest.
	MaxPrice = 9
	// maxLabels bounds the labels of one peer.
	maxLabels = 32
)

// Settings are what this cluster's operator sets of a peer; nil means no change. The peer learns of Consume and Provide
// only.
type Settings struct {
	// Consume and Provide switch directions: borrowing from the peer, and lending to it.
	Consume *bool `json:"consume,omitempty"`
	Provide *bool `json:"provide,omitempty"`
	// Price is from 0 to MaxPrice: namespaces that prefer the cheapest fill peers with a low one first.
	Price *int `json:"price,omitempty"`
	// Labels are set on the peer's virtual nodes; nil removes one.
	Labels map[string]*string `json:"labels,omitempty"`
}

// Empty reports whether nothing is to be changed.
func (s Settings) Empty() bool {
	return s.Consume == nil && s.Provide == nil && s.Price == nil && len(s.Labels) == 0
}

// Apply changes the record, or returns why the settings are not allowed, and changes nothing.
func (s Settings) Apply(r *Record) error {
	if s.Price != nil && (*s.Price < 0 || *s.Price > MaxPrice) {
		return fmt.Errorf("price %d is not allowed; use 0 (cheapest) to %d", *s.Price, MaxPrice)
	}
	labels := maps.Clone(r.Labels)
	for key, value := range s.Labels {
		if value == nil {
			delete(labels, key)
			continue
		}
		if err := checkLabel(key, *value); err != nil {
			return err
		}
		if labels == nil {
			labels = map[string]string{}
		}
		labels[key] = *value
	}
	if len(labels) > maxLabels {
		return fmt.Errorf("%d labels are too many; a peer has at most %d", len(labels), maxLabels)
	}
	if r.Labels = labels; len(labels) == 0 {
		r.Labels = nil
	}
	if s.Price != nil {
		r.Price = *s.Price
	}
	if s.Consume != nil {
		r.Roles.NoConsume = !*s.Consume
	}
	if s.Provide != nil {
		r.Roles.NoProvide = !*s.Provide
	}
	return nil
}

// Kubernetes' syntax of labels: a key's optional domain and its name, and a value, which may be empty.
var (
	labelDomain = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
	labelName   = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`)
)

// checkLabel refuses labels that Kubernetes does not take, and those whose meaning is Kubernetes' or Rivulet's. Zone and
// region are an operator's to set.
func checkLabel(key, value string) error {
	domain, name, qualified := strings.Cut(key, "/")
	if !qualified {
		name = key
	}
	if qualified && (len(domain) > 253 || !labelDomain.MatchString(domain)) || !labelName.MatchString(name) || value != "" && !labelName.MatchString(value) {
		return fmt.Errorf("label %.100q=%.100q is not allowed; name and value have at most 63 letters, digits, -, _ and ., and begin and end with a letter or digit", key, value)
	}
	if !qualified || domain == "topology.kubernetes.io" {
		return nil
	}
	for _, of := range []string{"kubernetes.io", "k8s.io", "k3s.io", "rivulet.dev"} {
		if domain == of || strings.HasSuffix(domain, "."+of) {
			return fmt.Errorf("label %s belongs to %s; use a key of your own, such as room or example.org/room", key, of)
		}
	}
	return nil
}

// MaxNearness is the nearness of a peer on the same cable.
const MaxNearness = 9

// nearer are the longest round trips of nearness 9, 8, ..., 1; everything beyond is 0.
var nearer = [MaxNearness]time.Duration{
	time.Millisecond, 2 * time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond, 20 * time.Millisecond,
	50 * time.Millisecond, 100 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond,
}

// Nearness is the class of a round trip, 0 (far) to MaxNearness.
func Nearness(rtt time.Duration) int {
	for i, most := range nearer {
		if rtt <= most {
			return MaxNearness - i
		}
	}
	return 0
}
