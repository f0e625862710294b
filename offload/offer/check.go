package offer

import (
	"encoding/json"
	"fmt"
	"regexp"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"

	"rivulet/fabric/peer"
	"rivulet/offload/foreign"
)

// Bounds of an offer. What this package sends is far below them.
const (
	// MaxPlatforms is the number of platforms of a target: Linux has fewer architectures that Kubernetes runs on.
	MaxPlatforms = 8
	maxResources = 64
	maxLabels    = 64   // of one platform
	maxTenants   = 8192 // addresses
	maxVersion   = 64   // bytes of the name of a version
	// maxAmount bounds each quantity: a thousandth of it still fits an int64 (1 PiB, 10^15 cores).
	maxAmount = 1 << 50
)

// word is the form of the names of operating systems and architectures.
var word = regexp.MustCompile(`^[a-z0-9]{1,16}$`)

// Decode parses a line of a provider's stream and checks it as a whole: the offer is used completely or not at all.
// Texts are made fit to be shown.
func Decode(line []byte) (o Offer, err error) {
	if err := foreign.Body("application/json", line); err != nil {
		return Offer{}, err
	}
	if err := json.Unmarshal(line, &o); err != nil {
		return Offer{}, err
	}
	peer.Clean(&o, peer.Text)
	return o, o.Check()
}

// Check returns an error if the offer is not one that a cluster can make. Each target's offers pass it before anything
// is done with them.
func (o Offer) Check() error {
	if len(o.Platforms) > MaxPlatforms {
		return fmt.Errorf("it has %d platforms, at most %d are possible", len(o.Platforms), MaxPlatforms)
	}
	for _, name := range []string{o.OS, o.Architecture} { // none while the target is silent or lends nothing
		if name != "" && !word.MatchString(name) {
			return fmt.Errorf("%.40q is no platform", o.Platform())
		}
	}
	if err := checkLent(o.Allocatable, o.Labels, o.KubeVersion, o.KernelVersion, o.Runtime); err != nil {
		return err
	}
	seen := map[Platform]bool{}
	for _, p := range o.Platforms {
		if !word.MatchString(p.OS) || !word.MatchString(p.Architecture) {
			return fmt.Errorf("%.40q is no platform", p.Platform)
		}
		if seen[p.Platform] {
			return fmt.Errorf("it has platform %s twice", p.Platform)
		}
		seen[p.Platform] = true
		if err := checkLent(p.Allocatable, p.Labels, p.KubeVersion, p.KernelVersion, p.Runtime); err != nil {
			return fmt.Errorf("platform %s: %w", p.Platform, err)
		}
	}
	if len(o.Tenants) > maxTenants || len(o.Neighbours) > MaxOf {
		return fmt.Errorf("it has %d addresses of pods and %d prefixes of peers, at most %d and %d are possible", len(o.Tenants), len(o.Neighbours), maxTenants, MaxOf)
	}
	for _, a := range o.Tenants {
		if !a.IsValid() || a.Zone() != "" {
			return fmt.Errorf("%s is no address of a pod", a)
		}
	}
	for id, prefix := range o.Neighbours {
		if !id.Valid() || !prefix.IsValid() || prefix != prefix.Masked() {
			return fmt.Errorf("%s is no prefix of pods", prefix)
		}
	}
	return nil
}

// checkLent checks what is the same in an offer and in one of its platforms.
func checkLent(all corev1.ResourceList, labels map[string]string, versions ...string) error {
	if len(all) > maxResources || len(labels) > maxLabels {
		return fmt.Errorf("it has %d resources and %d labels, at most %d and %d are possible", len(all), len(labels), maxResources, maxLabels)
	}
	for name, q := range all {
		if faults := validation.IsQualifiedName(string(name)); len(faults) > 0 {
			return fmt.Errorf("%.80q is no resource", name)
		}
		if err := foreign.Quantity(q); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if q.Sign() < 0 || q.Cmp(*resource.NewQuantity(maxAmount, resource.DecimalSI)) > 0 {
			return fmt.Errorf("%s is not between 0 and %d", name, int64(maxAmount))
		}
	}
	for key, value := range labels {
		if len(validation.IsQualifiedName(key))+len(validation.IsValidLabelValue(value)) > 0 {
			return fmt.Errorf("%.80q is no label", key+"="+value)
		}
	}
	for _, v := range versions {
		if len(v) > maxVersion {
			return fmt.Errorf("%.80q... is longer than the name of a version, %d bytes", v, maxVersion)
		}
	}
	return nil
}
