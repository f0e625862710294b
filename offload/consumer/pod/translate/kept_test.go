package translate

import (
	"maps"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"rivulet/offload/consumer/pod/translate/translatetest"
	"rivulet/offload/policy"
	"rivulet/offload/replacement"
)

// A record is the pod that the ReplicaSet would have made, and says whether two may run.
func TestRecord(t *testing.T) {
	for kind, want := range map[string]replacement.Mode{"ReplicaSet": replacement.AtOnce, "StatefulSet": replacement.AfterEnd, "DaemonSet": replacement.AfterEnd, "": replacement.AfterEnd} {
		home := translatetest.Web()
		home.OwnerReferences = nil
		if kind != "" {
			home.OwnerReferences = []metav1.OwnerReference{{Kind: kind, Name: "x", Controller: ptr.To(true)}}
		}
		w, err := Wrap(home, "home-id", "")
		if err != nil {
			t.Fatal(err)
		}
		p := AsRecord(w, home).Pod
		if p.Name != w.ReplicaSet.Name || !replacement.Kept(p) || p.Labels[policy.KeptLabel] != string(want) {
			t.Errorf("%s: %s %v %v", kind, p.Name, p.Labels, p.Finalizers)
		}
		template := w.ReplicaSet.Spec.Template
		labels, annotations := replacement.Transferred(p)
		for name, m := range map[string][2]map[string]string{"labels": {labels, template.Labels}, "annotations": {annotations, template.Annotations}} {
			got := maps.Clone(m[0])
			for key, value := range m[1] {
				if got[key] != value {
					t.Errorf("%s of home: %s is %q, want %q", name, key, got[key], value)
				}
				delete(got, key)
			}
			if len(got) != 1 { // what makes it a record
				t.Errorf("%s that are not home's: %v", name, got)
			}
		}
		if len(p.Spec.Containers) != len(template.Spec.Containers) || p.Spec.Hostname != template.Spec.Hostname {
			t.Errorf("%+v", p.Spec)
		}
	}
}
