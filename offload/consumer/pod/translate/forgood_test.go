package translate

import (
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/types"
)

// A Job that has begun is not taken back, whatever the target says now.
func TestWhatHasBegunIsNotTakenBack(t *testing.T) {
	for name, st := range map[string]batchv1.JobStatus{"a pod": {Active: 1}, "one that has ended": {Failed: 1}, "its end": {Conditions: []batchv1.JobCondition{{Type: batchv1.JobComplete}}},
		"one that is being counted": {UncountedTerminatedPods: &batchv1.UncountedTerminatedPods{Succeeded: []types.UID{"x"}}}} {
		if !HasRun(Wrapper{Job: &batchv1.Job{Status: st}}) {
			t.Errorf("%s: it has not", name)
		}
	}
	if HasRun(Wrapper{Job: &batchv1.Job{}}) {
		t.Error("a new one: it has")
	}
}
