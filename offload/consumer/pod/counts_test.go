package pod

import (
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"rivulet/fabric/peer"
	"rivulet/offload/consumer/pod/translate"
)

var view = translate.View{Node: "b", HostIP: netip.MustParseAddr("100.127.1.1"), Home: func(a netip.Addr) (netip.Addr, bool) {
	return peer.Translate(a, netip.MustParsePrefix("10.42.0.0/16"), netip.MustParsePrefix("10.77.0.0/16"))
}}

// What has ended counts nowhere, nor what was refused; what waits does.
func TestCounts(t *testing.T) {
	for want, list := range map[bool][]corev1.PodStatus{
		true:  {{Phase: corev1.PodPending}, {Phase: corev1.PodRunning}, {Phase: corev1.PodUnknown}},
		false: {{Phase: corev1.PodSucceeded}, {Phase: corev1.PodFailed, Reason: "Evicted"}, {Phase: corev1.PodPending, Reason: translate.ReasonRefused}},
	} {
		for _, st := range list {
			if got := Counts(&corev1.Pod{Status: st}); got != want {
				t.Errorf("%s %s: %v", st.Phase, st.Reason, got)
			}
		}
	}
}
