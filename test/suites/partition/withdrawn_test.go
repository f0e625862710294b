package partition

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"rivulet/test/harness/await"
	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
	"rivulet/test/harness/mainjob"
)

// asked is one request through the Service.
type asked struct {
	at  time.Time
	err error
}

// asking sends requests through a Service's address at home until stop is called, which
// returns them all.
func asking(t *testing.T, ctx context.Context, d *lab.Device, address string) (stop func() []asked) {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	client := d.HTTP()
	client.Timeout = 5 * time.Second
	var mu sync.Mutex
	var all []asked
	var busy sync.WaitGroup
	for range 4 {
		busy.Go(func() {
			for ctx.Err() == nil {
				at := time.Now()
				resp, err := client.Get("http://" + address + "/")
				if err == nil {
					_, err = io.Copy(io.Discard, resp.Body)
					_ = resp.Body.Close()
					if resp.StatusCode != http.StatusOK {
						err = errors.New(resp.Status)
					}
				}
				mu.Lock()
				all = append(all, asked{at, err})
				mu.Unlock()
				select {
				case <-ctx.Done():
				case <-time.After(10 * time.Millisecond): // some hundred a second are enough
				}
			}
		})
	}
	return func() []asked {
		cancel()
		busy.Wait()
		return all
	}
}

// A provider lends nothing any more, by each of the ways, while a Service with replicas at
// home and away is asked all the time.
func TestWithdrawn(t *testing.T) {
	ctx := suite.Bounded(t, 10*time.Minute)
	a, b := begin(t, ctx)
	home := client(t, ctx, a)
	// Two Deployments under one Service: who runs where is no matter of luck.
	var items []string
	for name, where := range map[string]string{"here": `"nodeSelector":{"kubernetes.io/hostname":"a"}`,
		"there": `"affinity":{"nodeAffinity":{"preferredDuringSchedulingIgnoredDuringExecution":[{"weight":100,"preference":{"matchExpressions":[{"key":"kubernetes.io/hostname","operator":"In","values":["b"]}]}}]}}`} {
		items = append(items, fmt.Sprintf(`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":%[1]q,"namespace":"asked"},"spec":{"replicas":2,
			"selector":{"matchLabels":{"part":%[1]q}},"template":{"metadata":{"labels":{"part":%[1]q,"app":"asked"}},"spec":{%[2]s,"terminationGracePeriodSeconds":1,
			"containers":[{"name":"web","image":%[3]q,"ports":[{"containerPort":8080}],"resources":{"requests":{"cpu":"10m"}},
			"readinessProbe":{"httpGet":{"path":"/ready","port":8080},"periodSeconds":1}}]}}}}`, name, where, mainjob.Image))
	}
	apply(t, ctx, a, `{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"asked","labels":{"rivulet.dev/offload":"any"}}},
		{"apiVersion":"v1","kind":"Service","metadata":{"name":"asked","namespace":"asked"},"spec":{"selector":{"app":"asked"},"ports":[{"port":80,"targetPort":8080}]}},`+strings.Join(items, ",")+`]}`)
	labtest.CleanUp(t, func(ctx context.Context) { kubectl(t, ctx, a, "delete namespace asked --wait=false") })
	address := strings.TrimSpace(kubectl(t, ctx, a, "get service -n asked asked -o jsonpath={.spec.clusterIP}"))
	where := func() (at map[string]int, err error) {
		pods, err := list(ctx, home, "asked", "asked")
		at = map[string]int{}
		for i := range pods {
			if p := &pods[i]; running(p) {
				at[p.Spec.NodeName]++
			}
		}
		return at, err
	}
	spread := func(t *testing.T, limit time.Duration, what string, atA, atB int) {
		t.Helper()
		await.NoError(t, ctx, limit, what, func() error {
			at, err := where()
			if err == nil && (at["a"] != atA || at["b"] != atB) {
				err = fmt.Errorf("%v", at)
			}
			return err
		})
	}
	for _, way := range []struct {
		name       string
		does, undo [][]string
		// until is how long after the withdrawal requests may still fail: until home has
		// acknowledged it.
		until time.Duration
	}{
		{"provide off", [][]string{{"rivulet", "peer", "a", "--provide=off", "--yes"}}, [][]string{{"rivulet", "peer", "a", "--provide=on"}}, 0},
		{"unpeer", [][]string{{"rivulet", "unpeer", "a", "--yes"}}, [][]string{{"rivulet", "peer", "a"}}, 3 * time.Second},
	} {
		t.Run(way.name, func(t *testing.T) {
			await.NoError(t, ctx, 2*time.Minute, "b is ready at home", func() error {
				if ready, err := nodeReady(ctx, home); !ready || err != nil {
					return fmt.Errorf("%v %v", ready, err)
				}
				return nil
			})
			kubectl(t, ctx, a, "rollout restart -n asked deployment/there")
			spread(t, 2*time.Minute, "two run at home and two away", 2, 2)
			await.NoError(t, ctx, time.Minute, "those of before are gone", func() error {
				pods, err := list(ctx, home, "asked", "asked")
				if err == nil && len(pods) != 4 {
					err = fmt.Errorf("%d pods", len(pods))
				}
				return err
			})
			time.Sleep(3 * time.Second) // kube-proxy gathers changes for a second
			stop := asking(t, ctx, a, address)
			time.Sleep(3 * time.Second) // of requests that reach both
			begun := time.Now()
			for _, args := range way.does {
				labtest.Must(t, ctx, b, args...)
			}
			told := time.Since(begun)
			await.NoError(t, ctx, 10*time.Second, "no pod away is ready at home", func() error {
				at, err := where()
				if at["b"] > 0 {
					err = fmt.Errorf("%v", at)
				}
				return err
			})
			unready := time.Since(begun)
			spread(t, time.Minute, "four run at home", 4, 0)
			replaced := time.Since(begun)
			await.NoError(t, ctx, 3*time.Minute, "the virtual node is gone", func() error { return noNode(ctx, t, a) })
			gone := time.Since(begun)
			all := stop()
			before, early, late := 0, 0, 0
			var last time.Duration
			for _, r := range all {
				switch {
				case r.err == nil:
					continue
				case r.at.Before(begun):
					before++
				case r.at.Sub(begun) <= way.until:
					early++
				default:
					late++
				}
				last = max(last, r.at.Sub(begun))
				t.Logf("after %s: %v", r.at.Sub(begun), r.err)
			}
			t.Logf("%d requests: %d failed before, %d in the first %s, %d later, the last after %s; the command took %s, pods were not ready after %s, replaced after %s, the node gone after %s",
				len(all), before, early, way.until, late, last, told, unready, replaced, gone)
			if before > 0 || late > 0 {
				t.Errorf("requests failed: %d before, %d after home had been told", before, late)
			}
			for _, args := range way.undo {
				labtest.Must(t, ctx, b, args...)
			}
			peered(t, ctx)
		})
	}
}

func noNode(ctx context.Context, t *testing.T, a *lab.Device) error {
	var nodes corev1.NodeList
	if err := json.Unmarshal([]byte(kubectl(t, ctx, a, "get nodes -o json")), &nodes); err != nil {
		return err
	}
	for _, n := range nodes.Items {
		if n.Name == "b" {
			return errors.New("it is there")
		}
	}
	return nil
}
