package pod

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"rivulet/offload/consumer/pod/translate"
	"rivulet/offload/consumer/pod/twin"
	"rivulet/offload/policy"
	"rivulet/test/harness/await"
)

// twinless is a place that has nothing of home yet.
type twinless struct{ place }

func (twinless) Twins(context.Context) (map[string]string, error) { return nil, nil }
func (twinless) Gone(context.Context, string) (bool, error)       { return true, nil }

// seenLast is a mode whose Check says another.
type seenLast struct {
	mode
	t      *testing.T
	says   policy.When
	broken error
}

func (s *seenLast) Check(_ context.Context, namespace string) error {
	if namespace != "lab" {
		s.t.Errorf("asked for %s", namespace)
	}
	if s.broken == nil {
		s.When = s.says
	}
	return s.broken
}

// A pod is refused by what the API server says of its namespace, not by what was seen of it last.
func TestNotRefusedByHearsay(t *testing.T) {
	seen := &seenLast{t: t, mode: mode{policy.Off}, says: policy.Burst, broken: errors.New("the API server is away")}
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "web", UID: "u1"}, Spec: corev1.PodSpec{NodeName: "b"}}
	home := fake.NewClientset(p)
	c := controller(home, Config{Target: twinless{place{fake.NewClientset()}}, Namespaces: seen})
	refused := func() bool {
		t.Helper()
		p, err := home.CoreV1().Pods("lab").Get(t.Context(), "web", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return p.Status.Reason == translate.ReasonRefused && strings.Contains(p.Status.Message, "rivulet offload lab")
	}
	if err := c.unwanted(t.Context(), p); !errors.Is(err, seen.broken) || refused() {
		t.Errorf("while nobody knows: %v, refused %v", err, refused())
	}
	seen.broken = nil
	if err := c.unwanted(t.Context(), p); !errors.Is(err, errNotYet) || refused() {
		t.Errorf("the watch lags: %v, refused %v", err, refused())
	}
	seen.When, seen.says = policy.Off, policy.Off
	if err := c.unwanted(t.Context(), p); err != nil || !refused() {
		t.Errorf("a namespace that is not offloaded: %v, refused %v", err, refused())
	}
}

// After a restart only the target tells what was sent. A pod that runs there is known though what made it is gone, as in
// a twin that its owner deletes.
func TestAPodThatOutlivesItsWrapperWasSent(t *testing.T) {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "web", UID: "u1"}, Spec: corev1.PodSpec{NodeName: "b"}}
	c := controller(fake.NewClientset(p), Config{Target: place{fake.NewClientset()}})
	w := newShown(nil)
	w.pods.show(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "lab-a", Name: "web-x", Labels: map[string]string{policy.HomeUIDLabel: "u1"}}})
	c.twins.Ensure("lab", "lab-a", func() *twin.Twin { return w.twin })
	if !c.wasSent(p) {
		t.Error("it would be refused, and let go while it runs")
	}
}

// What was left in the twin of a namespace of which only the Services are away now is found by a new process, and removed.
func TestALeftoverInATwinThatIsKeptForServices(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "lab", UID: "u1"},
		Spec: corev1.PodSpec{NodeName: "b", RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "web", Image: "web"}}}}
	w, err := translate.Wrap(pod, "aid", "")
	if err != nil {
		t.Fatal(err)
	}
	w.Job.Namespace, w.Job.UID = "lab-a", "j1"
	away := fake.NewClientset(w.Job)
	deletesOnceWatched(away)
	ctl := controller(fake.NewClientset(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "lab"}}), Config{Target: place{away}, Namespaces: &mode{policy.Services}, NoHomeAPI: true})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = ctl.Run(ctx) }()
	defer func() { stop(); <-done }()
	await.True(t, 30*time.Second, "the Job is removed", func() bool {
		jobs, err := away.BatchV1().Jobs("lab-a").List(ctx, metav1.ListOptions{})
		return err == nil && len(jobs.Items) == 0
	})
}
