package class

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"rivulet/test/harness/await"
	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
)

// TestALessonBegins has all virtual clusters of a class asked at the same moment, while they sleep: six of them, or the
// thirty of a course with LONG=1. Nobody is refused, the last has its answer in time, and the host's API goes on.
func TestALessonBegins(t *testing.T) {
	class, limit := 6, 20*time.Second
	if labtest.Long() {
		class, limit = 30, 45*time.Second
	}
	ctx := suite.Bounded(t, 15*time.Minute)
	a := suite.Devices["a"]
	var names []string
	begun := time.Now()
	for i := range class {
		name := fmt.Sprintf("s%02d", i+1)
		names = append(names, name)
		labtest.CleanUp(t, func(ctx context.Context) {
			labtest.On(t, ctx, a, "rivulet", "vcluster", "delete", name, "--yes", "--force")
		})
		labtest.Must(t, ctx, a, "rivulet", "vcluster", "create", name, "--sleep", "30s")
		labtest.Must(t, ctx, a, "rivulet", "vcluster", "connect", name, "--kubeconfig", "/root/"+name+".yaml")
	}
	t.Logf("%d made in %s", class, time.Since(begun).Round(100*time.Millisecond))
	await.NoError(t, ctx, 4*time.Minute, "all are asleep", func() error {
		var list []struct {
			Name, State string
		}
		if err := json.Unmarshal([]byte(labtest.Must(t, ctx, a, "rivulet", "vcluster", "list", "-o", "json")), &list); err != nil {
			return err
		}
		for _, v := range list {
			if v.State != "Asleep" && slices.Contains(names, v.Name) {
				return fmt.Errorf("%s is %s", v.Name, v.State)
			}
		}
		return nil
	})

	host := client(t, a, "/var/lib/rivulet/kubeconfig")
	looking, stop := context.WithCancel(ctx)
	silent := make(chan time.Duration, 1)
	go func() {
		tick, worst := time.NewTicker(100*time.Millisecond), time.Duration(0)
		defer tick.Stop()
		for looking.Err() == nil {
			asked := time.Now()
			if _, err := host.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx); err != nil {
				t.Errorf("the host's API: %v", err)
			}
			worst = max(worst, time.Since(asked))
			select {
			case <-tick.C:
			case <-looking.Done():
			}
		}
		silent <- worst
	}()

	clients := map[string]kubernetes.Interface{}
	for _, name := range names {
		clients[name] = client(t, a, "/root/"+name+".yaml")
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var took []time.Duration
	asked := time.Now()
	for _, name := range names {
		wg.Go(func() {
			_, err := clients[name].CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
			mu.Lock()
			defer mu.Unlock()
			took = append(took, time.Since(asked))
			if err != nil {
				t.Errorf("%s has no answer after %s: %v", name, time.Since(asked).Round(100*time.Millisecond), err)
			}
		})
	}
	wg.Wait()
	stop()
	slices.Sort(took)
	worst := <-silent
	t.Logf("%d asked at once: the first has its answer after %s, the middle one after %s, the last after %s; the host's API was silent for %s at most", class,
		took[0].Round(10*time.Millisecond), took[class/2].Round(10*time.Millisecond), took[class-1].Round(10*time.Millisecond), worst.Round(10*time.Millisecond))
	if last := took[class-1]; last > limit {
		t.Errorf("the last waits %s, promised are %s", last, limit)
	}
	if worst > 2*time.Second {
		t.Errorf("the host's API was silent for %s, promised are 2 s", worst)
	}
	if out := labtest.Must(t, ctx, a, "rivulet", "vcluster", "list"); strings.Contains(out, "Failed") {
		t.Errorf("one has failed:\n%s", out)
	}
}

// client asks as a file of the device says.
func client(t *testing.T, d *lab.Device, file string) kubernetes.Interface {
	t.Helper()
	cfg, err := clientcmd.BuildConfigFromFlags("", d.Path(file))
	if err != nil {
		t.Fatal(err)
	}
	cfg.Dial, cfg.Timeout = d.Dial, 3*time.Minute
	c, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}
