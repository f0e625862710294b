//go:build !race

package clusterset

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// What a cluster sends is what its peers take: whatever it exports, its line is short enough, and nothing in it is refused.
// One goroutine encodes many megabytes, for which the race detector only takes time.
func TestRoom(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var r room
		var sent []Export
		text := strings.Repeat("x", rapid.IntRange(1, maxValue).Draw(t, "annotation"))
		endpoints := slices.Repeat([]Endpoint{{Address: netip.MustParseAddr("10.42.100.100"), Ready: true, Serving: true}}, rapid.IntRange(1, 200).Draw(t, "endpoints"))
		for i := range maxExports + 10 {
			e := Export{Namespace: "shop", Name: fmt.Sprint("web-", i), Ports: []mcs.ServicePort{{Protocol: corev1.ProtocolTCP, Port: 80}}, Annotations: map[string]string{},
				Slices: []Slice{{Endpoints: endpoints}}}
			for a := range maxMeta {
				e.Annotations[fmt.Sprint("a", a)] = text
			}
			if r.take(e) {
				sent = append(sent, e)
			}
		}
		if len(sent) == 0 || len(encode(sent)) > maxLine {
			t.Fatalf("%d exports in %d bytes", len(sent), len(encode(sent)))
		}
		if valid, err := checked(sent); err != nil || len(valid) != len(sent) {
			t.Fatalf("%d of %d are taken: %v", len(valid), len(sent), err)
		}
	})
}
