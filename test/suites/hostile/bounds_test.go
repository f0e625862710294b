package hostile

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/test/harness/await"
	"rivulet/test/harness/labtest"
)

// While the owner's tools delete and change the policies that bound consumers, one that tries without pause
// gets nothing that they refuse; when they cannot be made again it has no rights at all, and the owner is told.
func TestNobodyIsUnbounded(t *testing.T) {
	ctx := suite.Bounded(t, 5*time.Minute)
	p := consumer(t, ctx, "mallory", "10.77.0.73")
	twin := p.Twin(ctx, "lab")
	object := func(spec string) string {
		return `{"metadata":{"generateName":"x-"},"spec":{"containers":[{"name":"c","image":"i.example/i"}],` + spec + `}}`
	}
	cfg, err := p.Config(ctx)
	if err != nil {
		t.Fatal(err)
	}
	client := p.Client()
	defer client.CloseIdleConnections()
	tries, stop := context.WithCancel(ctx)
	var trying sync.WaitGroup
	defer func() { stop(); trying.Wait() }()
	refused := map[string]*atomic.Int32{} // by a policy
	for what, try := range map[string][2]string{
		"a token":      {"pods", object(`"automountServiceAccountToken":true`)},
		"a node":       {"pods", object(`"nodeName":"a"`)},
		"a volume":     {"pods", object(`"volumes":[{"name":"v","nfs":{"server":"10.77.0.12","path":"/"}}]`)},
		"precedence":   {"pods", object(`"priorityClassName":"system-node-critical"`)},
		"a Secret":     {"secrets", `{"metadata":{"generateName":"x-","annotations":{"kubernetes.io/service-account.name":"default"}},"type":"kubernetes.io/service-account-token"}`},
		"an address":   {"services", `{"metadata":{"generateName":"x-"},"spec":{"externalIPs":["10.77.0.12"],"ports":[{"port":80}]}}`},
		"a finalizer":  {"configmaps", `{"metadata":{"generateName":"x-","finalizers":["example.com/held"]}}`},
		"a host's web": {"pods", `{"metadata":{"generateName":"x-"},"spec":{"containers":[{"name":"c","image":"nas.local/i"}]}}`},
	} {
		refused[what] = &atomic.Int32{}
		trying.Go(func() {
			for range time.Tick(20 * time.Millisecond) {
				if tries.Err() != nil {
					return
				}
				r, _ := http.NewRequestWithContext(tries, http.MethodPost, cfg.Host+"/api/v1/namespaces/"+twin+"/"+try[0], strings.NewReader(try[1]))
				r.Header.Set("Content-Type", "application/json")
				response, err := client.Do(r)
				if err != nil {
					continue // it counts for nothing
				}
				text, err := io.ReadAll(response.Body)
				response.Body.Close()
				switch {
				case response.StatusCode < 300:
					t.Errorf("%s was let in", what)
				case err == nil && bytes.Contains(text, []byte("ValidatingAdmissionPolicy")):
					refused[what].Add(1)
				}
			}
		})
	}
	c := p.Kubernetes(ctx)
	good := func() error {
		_, err := c.CoreV1().Pods(twin).Create(ctx, pod("good"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	const kinds = "validatingadmissionpolicies,validatingadmissionpolicybindings,mutatingadmissionpolicies,mutatingadmissionpolicybindings"
	// kubectl would wait for ever for one that is made again between its two reads.
	labtest.Must(t, ctx, victim, "rivulet", "kubectl", "delete", "--wait=false", kinds, "-l", "app.kubernetes.io/managed-by=rivulet")
	await.NoError(t, ctx, 30*time.Second, "a good pod is let in again", good)
	for object, change := range map[string]string{
		"validatingadmissionpolicy/rivulet-twin-pods":            `{"spec":{"failurePolicy":"Ignore","validations":[{"expression":"true"}]}}`,
		"validatingadmissionpolicybinding/rivulet-twin-services": `{"spec":{"validationActions":["Audit"]}}`,
		"validatingadmissionpolicy/rivulet-twin-secrets":         `{"spec":{"matchConditions":[{"name":"never","expression":"false"}]}}`,
	} {
		labtest.Must(t, ctx, victim, "rivulet", "kubectl", "patch", object, "--type=merge", "-p", change)
		await.NoError(t, ctx, 30*time.Second, "a good pod is let in again", good)
		if out := labtest.Must(t, ctx, victim, "rivulet", "kubectl", "get", object, "-o", "json"); strings.Contains(out, `"Audit"`) || strings.Contains(out, `"never"`) || strings.Contains(out, `"Ignore"`) {
			t.Errorf("%s is as it was changed: %s", object, out)
		}
	}

	// One that goes, and is held by somebody else: it can be neither kept nor made anew.
	const held = "validatingadmissionpolicy/rivulet-twin-images"
	labtest.Must(t, ctx, victim, "rivulet", "kubectl", "patch", held, "--type=merge", "-p", `{"metadata":{"finalizers":["example.com/held","rivulet.dev/in-force"]}}`)
	release := func(ctx context.Context) {
		_, _ = victim.Kubectl(ctx, "patch", held, "--type=merge", "-p", `{"metadata":{"finalizers":null}}`)
	}
	labtest.CleanUp(t, release)
	labtest.Must(t, ctx, victim, "rivulet", "kubectl", "delete", held, "--wait=false")
	await.NoError(t, ctx, 30*time.Second, "the owner is told", func() error {
		for _, h := range labtest.Status(t, ctx, victim).Health {
			if h.Subject == "bounds of consumers" && strings.Contains(h.Text, "rivulet-twin-images") && h.Cure != "" {
				return nil
			}
		}
		return fmt.Errorf("%v", labtest.Status(t, ctx, victim).Health)
	})
	if r, err := p.Do(ctx, http.MethodGet, "/k8s/api/v1/namespaces/"+twin+"/pods", nil, nil); err != nil || r.Status != http.StatusServiceUnavailable {
		t.Errorf("the consumer is answered %v %v, want 503", r, err)
	}
	release(ctx)
	await.NoError(t, ctx, 30*time.Second, "a good pod is let in again", good)
	for what, n := range refused {
		// After all that was done to the policies, and not only before it.
		before := n.Load()
		await.True(t, 30*time.Second, what+" is refused by a policy", func() bool { return n.Load() > before })
	}
	for _, h := range labtest.Status(t, ctx, victim).Health {
		if h.Subject == "bounds of consumers" {
			t.Errorf("all is in force, and the owner is told %v", h)
		}
	}
}
