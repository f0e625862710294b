package fit

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	"pgregory.net/rapid"
)

func TestKeysAreNeverTheSame(t *testing.T) {
	image := rapid.StringMatching(`[a-z0-9._/:@-]{1,12}`)
	rapid.Check(t, func(t *rapid.T) {
		a, b := image.Draw(t, "a"), image.Draw(t, "b")
		if (Key(a) == Key(b)) != (a == b) || strings.ContainsAny(Key(a), "/:@") {
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
			t.Errorf("what was known was written again: %v", a.(k8stesting.Action))
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
