package policy_test

import (
	"context"
	"maps"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"rivulet/offload/policy"
	"rivulet/offload/target/external"
	"rivulet/test/apiserver"
	"rivulet/test/hollow"
)

// testSpread has the real scheduler spread replicas as their topologySpreadConstraints
// say: providers are nodes like others, and who demands a spread gets it, though burst
// would like home to be full first.
func testSpread(t *testing.T, server *apiserver.Server) {
	for _, c := range []struct {
		mode string
		want map[string]int
	}{
		{"remote", map[string]int{"peer": 3, "campus": 3}}, // home is none of its nodes
		{"burst", map[string]int{"home": 2, "peer": 2, "campus": 2}},
	} {
		t.Run(c.mode, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			nodes := three(t, external.OrderLast)
			kubelets, err := hollow.Register(ctx, server.Client, nodes...)
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan struct{})
			go func() { defer close(done); kubelets.Run(ctx) }()
			ns := "spread-" + c.mode
			namespace(t, server.Client, ns, map[string]string{policy.NamespaceLabel: c.mode})
			defer func() { vacate(t, server, ns); cancel(); <-done }()
			known(t, server, nodes)
			replicas(t, server, ns)
			if _, err := server.Client.AppsV1().Deployments(ns).Patch(ctx, "web", types.MergePatchType, []byte(`{"spec":{"template":{"spec":{"topologySpreadConstraints":[
				{"maxSkew":1,"topologyKey":"kubernetes.io/hostname","whenUnsatisfiable":"DoNotSchedule","labelSelector":{"matchLabels":{"app":"web"}}}]}}}}`), metav1.PatchOptions{}); err != nil {
				t.Fatal(err)
			}
			if got := placed(t, server, ns, 6); !maps.Equal(got, c.want) {
				t.Errorf("6 replicas are placed as %v, want %v", got, c.want)
			}
		})
	}
}
