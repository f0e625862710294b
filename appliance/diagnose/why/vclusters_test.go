package why

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/offload"
	"rivulet/offload/policy"
	"rivulet/offload/provider/tenancy"
)

// Pods of virtual clusters of this device have their owner and the names inside, if these are names; pods of peers, and of
// peers' virtual clusters, are nobody's here.
func TestWhosePodItIs(t *testing.T) {
	all := VClustersOf([]offload.Consumer{
		{Consumer: tenancy.Consumer{ID: "anna", Name: "db-anna"}, VCluster: true, Course: "default/db"},
		{Consumer: tenancy.Consumer{ID: "renamed", Name: "carl"}, VCluster: true, Course: "default/db"},
		{Consumer: tenancy.Consumer{ID: "test", Name: "test"}, VCluster: true},
		{Consumer: tenancy.Consumer{ID: "peer", Name: "db-anna"}, Peer: true},
	})
	for _, c := range []struct{ origin, namespace, pod, want, argument string }{
		{"anna", "default", "web-0", "anna (course db) default/web-0", "db-anna/default/web-0"},
		{"renamed", "default", "web-0", "carl (course db) default/web-0", "carl/default/web-0"},
		{"test", "lab", "a.b", "virtual cluster test lab/a.b", "test/lab/a.b"},
		{"test", "lab", "web-0; rm -r /", "virtual cluster test twin/rs-1", "test/twin/rs-1"},
		{"test", "lab/x", "web-0", "virtual cluster test twin/rs-1", "test/twin/rs-1"},
		{"test", "", "", "virtual cluster test twin/rs-1", "test/twin/rs-1"},
		{"peer", "default", "web-0", "", ""},
		{"", "default", "web-0", "", ""},
	} {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "twin", Name: "rs-1", Annotations: map[string]string{policy.HomeNamespaceAnnotation: c.namespace, policy.HomePodAnnotation: c.pod}}}
		if c.origin != "" {
			p.Labels = map[string]string{policy.OriginLabel: c.origin}
		}
		o := all.Of(p)
		if o == nil {
			if c.want != "" {
				t.Errorf("%+v is nobody's", c)
			}
			continue
		}
		if o.String() != c.want || o.Argument() != c.argument {
			t.Errorf("%+v: %s, %s", c, o, o.Argument())
		}
	}
}
