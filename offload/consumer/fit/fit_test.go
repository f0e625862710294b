package fit

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"pgregory.net/rapid"
)

func TestKeysAreNeverTheSame(t *testing.T) {
	image := rapid.StringMatching(`[a-z0-9._/:@-]{1,12}`)
	rapid.Check(t, func(t *rapid.T) {
		a, b := image.Draw(t, "a"), image.Draw(t, "b")
		if (Key(a) == Key(b)) != (a == b) || strings.ContainsAny(Key(a), "/:@") || !strings.HasPrefix(a, "@") && Key(a) == Key(ofOwner+b) {
			t.Fatalf("%q is %q, %q is %q", a, Key(a), b, Key(b))
		}
	})
}

func TestWhatIsLearntIsForgotten(t *testing.T) {
	client := fake.NewClientset()
	m := New(client, slog.New(slog.DiscardHandler))
	now := time.Now()
	known := func() map[string]string {
		t.Helper()
		c, err := client.CoreV1().ConfigMaps(Namespace).Get(t.Context(), Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return c.Data
	}
	learn := func(image, arch string, at time.Time) {
		t.Helper()
		if err := m.Learn(t.Context(), image, arch, at); err != nil {
			t.Fatal(err)
		}
	}
	learn("example.org/a:1", "arm64", now)
	learn("example.org/a:1", "amd64", now)
	writes := len(client.Actions())
	learn("example.org/a:1", "arm64", now.Add(time.Minute))
	for _, a := range client.Actions()[writes:] {
		if a.GetVerb() != "get" {
			t.Errorf("what was known was written again: %v", a)
		}
	}
	if got := known()["example.org_sa_c1"]; got != "amd64,arm64" {
		t.Errorf("%q in %v", got, known())
	}
	learn("b", "arm64", now.Add(Life+time.Minute))
	if got := known(); len(got) != 1 || got["b"] != "arm64" {
		t.Errorf("after its life: %v", got)
	}
	for i := range most + 5 {
		learn(fmt.Sprint("many", i), "arm64", now.Add(Life+time.Minute).Add(time.Duration(i)*time.Second))
	}
	got := known()
	if _, oldest := got["b"]; len(got) != most || oldest || got[fmt.Sprint("many", most+4)] == "" {
		t.Errorf("%d are remembered, the oldest is among them: %v", len(got), oldest)
	}
	if err := m.Learn(t.Context(), strings.Repeat("x", 300), "arm64", now); err == nil {
		t.Error("a name that does not fit was taken")
	}
}

// What home knows is learnt by every name that a pod may use, and of many images no more
// than half of what may be remembered.
func TestWhatHomeKnowsIsForeseen(t *testing.T) {
	have := map[string][]string{"docker.io/library/a:latest": {"amd64"}, "docker.io/o/b:1": {"amd64"}, "example.org/c:latest": {"arm64"}, "d:1": {"amd64", "arm64"},
		"docker.io/library/e@sha256:1": {"arm"}}
	got := Lacking(have, []string{"arm64", "amd64", ""})
	want := map[string][]string{"docker.io/library/e@sha256:1": {"amd64", "arm64"}, "library/e@sha256:1": {"amd64", "arm64"}, "e@sha256:1": {"amd64", "arm64"},
		"docker.io/o/b:1": {"arm64"}, "o/b:1": {"arm64"}, "example.org/c:latest": {"amd64"}, "example.org/c": {"amd64"}}
	for _, name := range []string{"docker.io/library/a:latest", "library/a:latest", "a:latest", "docker.io/library/a", "library/a", "a"} {
		want[name] = []string{"arm64"}
	}
	if !maps.EqualFunc(got, want, slices.Equal) {
		t.Errorf("%v, want %v", got, want)
	}
	for i := range 2 * most {
		have[fmt.Sprintf("docker.io/many/x%d:1", i)] = []string{"amd64"}
	}
	if got := len(Lacking(have, []string{"arm64"})); got > foreseen || got < foreseen-6 {
		t.Errorf("%d names of many", got)
	}
}

// Where all run on home's architecture home is not asked; elsewhere a change is learnt,
// and what is known already is not written again.
func TestHomeIsAskedWhereItMatters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		m := New(client, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		var architectures atomic.Value
		architectures.Store([]string{"amd64"})
		var asked atomic.Int32
		go func() {
			defer close(done)
			_ = m.Foresee(ctx, "amd64", func() []string { return architectures.Load().([]string) }, func() (map[string][]string, error) {
				asked.Add(1)
				return map[string][]string{"a:1": {"amd64"}}, nil
			})
		}()
		pass := func(d time.Duration) {
			time.Sleep(d) // of the bubble
			synctest.Wait()
		}
		pass(time.Minute)
		if asked.Load() != 0 || len(client.Actions()) != 0 {
			t.Errorf("asked %d times, %v", asked.Load(), client.Actions())
		}
		architectures.Store([]string{"amd64", "arm64"})
		pass(time.Minute)
		c, err := client.CoreV1().ConfigMaps(Namespace).Get(ctx, Name, metav1.GetOptions{})
		if err != nil || c.Data["a_c1"] != "arm64" || asked.Load() == 0 {
			t.Errorf("%v %v, asked %d times", c, err, asked.Load())
		}
		before := len(client.Actions())
		pass(time.Minute)
		if after := len(client.Actions()); after != before {
			t.Errorf("%v", client.Actions()[before:])
		}
		cancel()
		<-done
	})
}

func TestWhatAPodIsKeptOff(t *testing.T) {
	data := map[string]string{Key("lab/app:1"): "amd64,riscv64", Key("tools"): "arm64", Key(ofOwner + "o1"): "b,c"}
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{{UID: "o1"}}},
		Spec: corev1.PodSpec{InitContainers: []corev1.Container{{Image: "tools"}}, Containers: []corev1.Container{{Image: "lab/app:1"}, {Image: "other"}}}}
	images, targets := KeptOff(data, p)
	if want := map[string]string{"amd64": "lab/app:1", "riscv64": "lab/app:1", "arm64": "tools"}; !maps.Equal(images, want) || !slices.Equal(targets, []string{"b", "c"}) {
		t.Errorf("%v %v", images, targets)
	}
	if images, targets := KeptOff(data, &corev1.Pod{}); len(images)+len(targets) > 0 {
		t.Errorf("%v %v", images, targets)
	}
}
