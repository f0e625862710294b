package pod

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"

	"rivulet/offload/consumer/pod/translate/translatetest"
	"rivulet/offload/policy"
)

func TestALastingErrorIsNewsOnce(t *testing.T) {
	var c complaints
	k, begun := types.NamespacedName{Namespace: "lab", Name: "web"}, time.Now()
	logged := 0
	for i := range 64 {
		if c.isNews(k, "no room", begun.Add(time.Duration(i)*10*time.Second)) {
			logged++
		}
	}
	if logged != 1 {
		t.Errorf("the same error 64 times is logged %d times", logged)
	}
	if !c.isNews(k, "another", begun) || c.isNews(k, "a third", begun.Add(firstPause-1)) || !c.isNews(k, "a third", begun.Add(firstPause)) {
		t.Error("what changes is news, after a pause")
	}
	logged = 0
	for i := range 3600 {
		if c.isNews(k, fmt.Sprint("from port ", i), begun.Add(time.Minute+time.Duration(i)*time.Second)) {
			logged++
		}
	}
	if logged < 5 || logged > 12 {
		t.Errorf("an error that is another each second is logged %d times in an hour", logged)
	}
	c.over(k)
	if !c.isNews(k, "no room", begun) || len(c.all) != 1 {
		t.Error("after the end it is news again")
	}
}

// twinRefused is a target that makes no twins.
type twinRefused struct{ place }

func (twinRefused) Namespace(context.Context, string) (string, error) {
	return "", errors.New("no twin; ask the owner of b")
}

// A pod that is never in step is tried for ever, and logged once.
func TestAPodThatIsNotInStepIsLoggedOnce(t *testing.T) {
	home := translatetest.Web()
	var log bytes.Buffer
	c := New(Config{Home: Home{Client: fake.NewClientset(home), ID: "home-id"}, Target: twinRefused{place{fake.NewClientset()}},
		Namespaces: &mode{policy.Remote}, Nodes: reachable{}, Log: slog.New(slog.NewTextHandler(&log, nil))})
	c.Serve("b")
	go c.atHome.Run(t.Context(), c.pods.events(c))
	if !cache.WaitForCacheSync(t.Context().Done(), c.pods.synced) {
		t.Fatal("no pods of home")
	}
	for range 64 {
		c.handle(t.Context(), keyOf(home))
	}
	if n := strings.Count(log.String(), "not in step"); n != 1 {
		t.Errorf("logged %d times:\n%s", n, log.String())
	}
	if n := c.queue.NumRequeues(keyOf(home)); n != 64 {
		t.Errorf("tried again %d times", n)
	}
}
