//go:build !race

package prometheus

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"pgregory.net/rapid"
)

// Whatever a peer sends at each scrape, its series are few, and every line is one. One goroutine computes, for which
// the race detector only takes time.
func TestAHostilePeerMakesNoSeries(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		st, v := full()
		s := source(st, v)
		s.Supervisor = &reported{st: &st}
		parser := expfmt.NewTextParser(model.UTF8Validation)
		series, size := map[string]bool{}, 0
		const scrapes = 30
		for i := range scrapes {
			st.Peers[0].Name = rapid.String().Draw(rt, "name") + strings.Repeat("ü", rapid.IntRange(0, 300).Draw(rt, "long"))
			st.Peers[0].Version, st.Peers[0].KubeVersion = rapid.String().Draw(rt, "version"), rapid.String().Draw(rt, "kubernetes")
			st.VirtualNodes[0].OS, st.VirtualNodes[0].Architecture = rapid.String().Draw(rt, "os"), rapid.String().Draw(rt, "arch")
			st.VirtualNodes[0].Allocatable[corev1.ResourceName(rapid.String().Draw(rt, "resource"))] = resource.MustParse("1")
			st.Tunnel.Peers[0].Paths[0].Addr = netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), uint16(i))
			st.Tunnel.Peers[0].Paths[0].Via = rapid.String().Draw(rt, "via")
			text := render(t, s, then.Add(time.Duration(i)*time.Minute))
			if _, err := parser.TextToMetricFamilies(strings.NewReader(text)); err != nil {
				rt.Fatalf("%v:\n%s", err, text)
			}
			size = 0
			for _, line := range strings.Split(text, "\n") {
				if name, _, ok := strings.Cut(line, "} "); ok && !strings.HasPrefix(line, "#") {
					series[name] = true
					size++
				}
			}
		}
		if len(series) > size+5 {
			rt.Fatalf("%d scrapes of %d series made %d", scrapes, size, len(series))
		}
	})
}
