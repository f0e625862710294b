package tenancy

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
)

// TestAWaitingJobIsNudgedWhateverItsAge: how long a Job waits is counted here. Its creation is by the API server's clock,
// which was ahead, or was set since.
func TestAWaitingJobIsNudgedWhateverItsAge(t *testing.T) {
	for what, age := range map[string]time.Duration{"old": time.Hour, "new": 0, "of the future": -time.Hour} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "t", Name: "j", UID: "1", CreationTimestamp: metav1.NewTime(time.Now().Add(-age))}}
				client := fake.NewClientset(job)
				factory := informers.NewSharedInformerFactory(client, 0)
				tenancy := &Tenancy{Config: Config{Log: slog.New(slog.DiscardHandler)}, client: client, sets: factory.Apps().V1().ReplicaSets(), jobs: factory.Batch().V1().Jobs()}
				if err := tenancy.jobs.Informer().GetStore().Add(job); err != nil {
					t.Fatal(err)
				}
				twins, nudged := map[string]account{"t": {hard: amounts{}, used: amounts{}}}, map[types.UID]time.Time{}
				nudges := func(want int) {
					t.Helper()
					client.ClearActions()
					if again := tenancy.nudge(t.Context(), twins, nudged); !again {
						t.Error("the Job is not looked at again")
					}
					if got := len(client.Actions()); got != want {
						t.Errorf("%d nudges, want %d", got, want)
					}
				}
				nudges(0) // its first attempt
				time.Sleep(nudgeEvery)
				nudges(1)
				nudges(0)
				time.Sleep(nudgeEvery)
				nudges(1)
			})
		})
	}
}
