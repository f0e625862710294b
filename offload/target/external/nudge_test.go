package external

import (
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"rivulet/offload/target/external/rewrite"
)

// TestAJobIsNudgedWhateverItsAge: the campus's clock may be ahead of home's.
func TestAJobIsNudgedWhateverItsAge(t *testing.T) {
	campus := fake.NewClientset()
	for name, age := range map[string]time.Duration{"old": time.Hour, "future": -time.Hour} {
		job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: name, CreationTimestamp: metav1.NewTime(time.Now().Add(-age)),
			Labels: map[string]string{rewrite.HomeLabel: "home", PartLabel: "x"}}}
		if _, err := campus.BatchV1().Jobs("lab").Create(t.Context(), job, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	target := &Target{cfg: Config{Cluster: "home", Settings: Settings{Namespace: "lab"}}, campus: campus}
	target.nudge(t.Context())
	for _, name := range []string{"old", "future"} {
		job, err := campus.BatchV1().Jobs("lab").Get(t.Context(), name, metav1.GetOptions{})
		if err != nil || job.Annotations[triedAnnotation] == "" {
			t.Errorf("%s: %v %v", name, job.Annotations, err)
		}
	}
}
