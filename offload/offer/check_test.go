package offer

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"rivulet/fabric/peer"
)

// whole is an offer with everything that one can have.
func whole() Offer {
	p := func(arch string) PlatformOffer {
		return PlatformOffer{Platform: Platform{"linux", arch}, Ready: true, KubeVersion: "v1.35.1+k3s1", KernelVersion: "6.12.34+rpt-rpi-2712", OSImage: "Debian GNU/Linux 13 (trixie)", Runtime: "containerd://2.1.5-k3s1",
			Allocatable: corev1.ResourceList{"cpu": resource.MustParse("3500m"), "memory": resource.MustParse("7Gi"), "pods": resource.MustParse("110"), "nvidia.com/gpu": resource.MustParse("1")},
			Labels:      map[string]string{corev1.LabelTopologyZone: "attic", "ssd": "", "feature.node.kubernetes.io/usb": "true"}}
	}
	o := Offer{Ready: true, Platforms: []PlatformOffer{p("arm64"), p("amd64")}, Keeps: true,
		Tenants:    []netip.Addr{netip.MustParseAddr("10.42.1.2")},
		Neighbours: map[peer.ID]netip.Prefix{peer.Hosted("a", "b"): netip.MustParsePrefix("10.78.0.0/16")}}
	return o.withFirst()
}

// An offer is used completely or not at all.
func TestWhatIsNoOffer(t *testing.T) {
	for what, fine := range map[string]Offer{"a whole one": whole(), "one of several": whole().Split()[1], "silence": {Reason: "the engine starts"},
		"nothing lent": {Withdrawn: true, Reason: "a lends nothing"}, "no platforms told": {Ready: true, OS: "linux", Architecture: "amd64"}} {
		line, err := json.Marshal(fine)
		if err == nil {
			_, err = Decode(line)
		}
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	many := func(n int) map[string]string {
		out := map[string]string{}
		for i := range n {
			out[fmt.Sprint("l", i)] = ""
		}
		return out
	}
	for what, change := range map[string]func(*Offer){
		"a long architecture": func(o *Offer) { o.Platforms[1].Architecture = strings.Repeat("a", 63) },
		"no architecture":     func(o *Offer) { o.Platforms[1].Architecture = "" },
		"no system":           func(o *Offer) { o.Platforms[1].OS = "" },
		"a strange system":    func(o *Offer) { o.Platforms[1].OS = "li/nux" },
		"a strange own one":   func(o *Offer) { o.Architecture = "../x" },
		"a platform twice":    func(o *Offer) { o.Platforms[1].Platform = o.Platforms[0].Platform },
		"too many platforms":  func(o *Offer) { o.Platforms = make([]PlatformOffer, MaxPlatforms+1) },
		"less than nothing":   func(o *Offer) { o.Allocatable["cpu"] = resource.MustParse("-1") },
		"more than there is":  func(o *Offer) { o.Platforms[1].Allocatable["memory"] = resource.MustParse("1Ei") },
		"a giant exponent":    func(o *Offer) { o.Platforms[1].Allocatable["cpu"] = resource.MustParse("1e900") },
		"a tiny exponent": func(o *Offer) {
			o.Platforms[1].Allocatable["cpu"] = resource.MustParse("0.123456789123456789123456789123456789e20")
		},
		"no name of a resource":   func(o *Offer) { o.Platforms[1].Allocatable["a b"] = resource.MustParse("1") },
		"no key of a label":       func(o *Offer) { o.Platforms[1].Labels["a b"] = "" },
		"no value of a label":     func(o *Offer) { o.Labels["a"] = strings.Repeat("a", 64) },
		"too many labels":         func(o *Offer) { o.Labels = many(maxLabels + 1) },
		"a long version":          func(o *Offer) { o.KubeVersion = strings.Repeat("1", 65) },
		"a long version of one":   func(o *Offer) { o.Platforms[1].Runtime = strings.Repeat("1", 65) },
		"no address":              func(o *Offer) { o.Tenants[0] = netip.Addr{} },
		"an address with a zone":  func(o *Offer) { o.Tenants[0] = netip.MustParseAddr("fe80::1%eth0") },
		"too many addresses":      func(o *Offer) { o.Tenants = make([]netip.Addr, maxTenants+1) },
		"no prefix":               func(o *Offer) { o.Neighbours[peer.Hosted("c", "d")] = netip.Prefix{} },
		"a prefix with more bits": func(o *Offer) { o.Neighbours[peer.Hosted("c", "d")] = netip.MustParsePrefix("10.1.2.3/16") },
		"no peer":                 func(o *Offer) { o.Neighbours["c"] = netip.MustParsePrefix("10.1.0.0/16") },
	} {
		o := whole()
		o.Labels, o.Allocatable = map[string]string{}, corev1.ResourceList{}
		if change(&o); o.Check() == nil {
			t.Errorf("%s passes", what)
		}
	}
	for what, line := range map[string]string{"a number that is too long to parse": `{"ready":true,"allocatable":{"cpu":"1e999999999"}}`, "below": `{"allocatable":{"cpu":1e-999999999}}`,
		"no JSON": `ready`, "another type": `{"ready":1}`} {
		if _, err := Decode([]byte(line)); err == nil {
			t.Errorf("%s passes", what)
		}
	}
}

// FuzzDecode: an offer that passes can be divided, written and read again.
func FuzzDecode(f *testing.F) {
	line, err := json.Marshal(whole())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(line)
	f.Add([]byte(`{"ready":true,"architecture":"arm64"}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		o, err := Decode(line)
		if err != nil {
			return
		}
		if n := len(o.Split()); n > MaxPlatforms {
			t.Fatalf("%d platforms", n)
		}
		for _, one := range o.Split() {
			if err := one.Check(); err != nil {
				t.Fatalf("a part of what passes does not: %v", err)
			}
		}
		if again, err := json.Marshal(o); err != nil {
			t.Fatal(err)
		} else if _, err := Decode(again); err != nil {
			t.Fatalf("%s: %v", again, err)
		}
	})
}
