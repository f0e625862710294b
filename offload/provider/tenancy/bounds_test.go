package tenancy

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/ptr"

	"rivulet/offload/policy"
	"rivulet/test/harness/await"
)

// fault answers requests of the Tenancy in the API server's place, and notes the others.
type fault struct {
	mu      sync.Mutex
	instead func(*http.Request) (int, string)
	noted   []string
}

func (f *fault) set(instead func(*http.Request) (int, string)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.instead = instead
}

// noBindings refuses to store bindings of policies.
func noBindings(r *http.Request) (int, string) {
	if r.Method != http.MethodGet && strings.Contains(r.URL.Path, "/validatingadmissionpolicybindings") {
		return http.StatusForbidden, "no bindings today"
	}
	return 0, ""
}

// isObservation reports whether a request is the one that has to be refused.
func isObservation(r *http.Request) bool {
	return r.Method == http.MethodPost && r.URL.Query().Has("dryRun") && strings.HasSuffix(r.URL.Path, "/kube-system/configmaps")
}

// asleep stores policies, but acts on none.
func asleep(r *http.Request) (int, string) {
	if isObservation(r) {
		return http.StatusCreated, ""
	}
	return 0, ""
}

func (f *fault) wrap(next http.RoundTripper) http.RoundTripper {
	return transport(func(r *http.Request) (*http.Response, error) {
		f.mu.Lock()
		instead := f.instead
		f.mu.Unlock()
		if instead != nil {
			if code, text := instead(r); code != 0 {
				body := fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","message":%q,"code":%d}`, text, code)
				if code < 300 {
					body = `{"kind":"ConfigMap","apiVersion":"v1"}`
				}
				return &http.Response{StatusCode: code, Request: r, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body))}, nil
			}
		}
		response, err := next.RoundTrip(r)
		if err == nil && r.Method != http.MethodGet {
			f.mu.Lock()
			f.noted = append(f.noted, fmt.Sprint(response.StatusCode, " ", r.Method, " ", r.URL.Path, " ", isObservation(r)))
			f.mu.Unlock()
		}
		return response, err
	})
}

// nothingBeforeItIsBounded is the first start of a provider whose API server refuses a part of what bounds
// consumers, and then does not act on it: there is no role, no twin and no request that passes, and the owner is told.
func nothingBeforeItIsBounded(t *testing.T, p *provider) {
	t.Helper()
	nothing := func(told ...string) {
		t.Helper()
		await.True(t, time.Minute, "the owner is told "+told[0], func() bool {
			err := p.Problem()
			return err != nil && strings.Contains(err.Error(), told[0])
		})
		if text := p.Problem().Error(); !strings.Contains(text, told[1]) || !strings.Contains(text, "; ") {
			t.Errorf("the owner is told %q, want %q and a cure", text, told[1])
		}
		if code, body := p.ask(t, alice, http.MethodPut, "/v1/namespaces/early"); code != http.StatusServiceUnavailable || body["code"] != "bounds-pending" || body["cure"] == "" {
			t.Errorf("a twin is asked for: %d %v, want it refused", code, body)
		}
		if code, body := p.ask(t, alice, http.MethodGet, prefix+"/api/v1/namespaces/default/pods"); code != http.StatusServiceUnavailable || !strings.Contains(fmt.Sprint(body["message"]), "not in force") {
			t.Errorf("the API is asked: %d %v, want it refused", code, body)
		}
		if _, err := p.admin.RbacV1().ClusterRoles().Get(t.Context(), Role, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("the role: %v, want none", err)
		}
	}
	nothing("no bindings today", "validatingadmissionpolicybindings/")
	p.fault.set(asleep)
	nothing("does not act on its admission policies", "rivulet-observed")
	p.fault.set(nil)
	await.True(t, time.Minute, "consumers have rights", func() bool { return p.policies.InForce() && p.Problem() == nil })

	p.fault.mu.Lock()
	defer p.fault.mu.Unlock()
	first := func(line string) int {
		return slices.IndexFunc(p.fault.noted, func(s string) bool { return strings.Contains(s, line) })
	}
	last := 0
	for i, s := range p.fault.noted {
		if strings.Contains(s, "/admissionregistration.k8s.io/") {
			last = i
		}
	}
	refused, role := first("422 POST /api/v1/namespaces/kube-system/configmaps true"), first("/clusterroles/"+Role)
	if last == 0 || refused < last || role < refused {
		t.Errorf("the last policy was written as request %d, observed in force as %d, the role as %d:\n%s", last, refused, role, strings.Join(p.fault.noted, "\n"))
	}
}

// attempts are what policies refuse a consumer, by a body for the twin's collection.
func attempts(t *testing.T) map[string][2]string {
	t.Helper()
	pod := func(spec string) [2]string {
		return [2]string{"/api/v1/namespaces/%s/pods", `{"metadata":{"generateName":"x-"},"spec":{"containers":[{"name":"c","image":"i"}],` + spec + `}}`}
	}
	return map[string][2]string{
		"a service account's token": pod(`"automountServiceAccountToken":true`),
		"a node":                    pod(`"nodeName":"n"`),
		"a volume of the network":   pod(`"volumes":[{"name":"v","nfs":{"server":"192.0.2.1","path":"/"}}]`),
		"precedence":                pod(`"priorityClassName":"system-node-critical"`),
		"no node of others":         pod(`"affinity":{"podAntiAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":[{"topologyKey":"kubernetes.io/hostname","namespaceSelector":{},"labelSelector":{}}]}}`),
		"a free volume of the owner's": {"/api/v1/namespaces/%s/persistentvolumeclaims",
			`{"metadata":{"generateName":"x-"},"spec":{"storageClassName":"manual","accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Mi"}}}}`},
		"pods that a Service chooses": {"/api/v1/namespaces/%s/services", `{"metadata":{"generateName":"x-"},"spec":{"selector":{"a":"b"},"ports":[{"port":80}]}}`},
		"endpoints without number":    {"/apis/discovery.k8s.io/v1/namespaces/%s/endpointslices", largeSlice(101, 10)},
		"a token Secret": {"/api/v1/namespaces/%s/secrets",
			`{"metadata":{"generateName":"x-","annotations":{"kubernetes.io/service-account.name":"default"}},"type":"kubernetes.io/service-account-token"}`},
		"an address of the LAN": {"/api/v1/namespaces/%s/services", `{"metadata":{"generateName":"x-"},"spec":{"externalIPs":["192.0.2.1"],"ports":[{"port":80}]}}`},
	}
}

// told is what was told since forget.
type told struct {
	mu    sync.Mutex
	texts []string
}

func (l *told) note(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil && (len(l.texts) == 0 || l.texts[len(l.texts)-1] != err.Error()) {
		l.texts = append(l.texts, err.Error())
	}
}

func (l *told) forget() { l.mu.Lock(); defer l.mu.Unlock(); l.texts = nil }

// have is an error with all of it if nothing told is so.
func (l *told) have(so func(string) bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if slices.ContainsFunc(l.texts, so) {
		return nil
	}
	return fmt.Errorf("told was %q", l.texts)
}

// Whoever deletes or changes what bounds consumers, one by one or by its label: no request of a consumer that tries
// twenty times a second finds a gap, nor do controllers in what it wrote before; all is made again, and consumers have their rights again.
func testPoliciesAreKept(t *testing.T, p *provider) {
	ctx := t.Context()
	twin := p.twinOf(t, carol, "bounded")
	c, _ := p.consumer(t, carol, nil)
	objects := dynamic.NewForConfigOrDie(p.server.Config)
	policies, bindings := map[string]schema.GroupVersionResource{}, map[string]schema.GroupVersionResource{}
	for prefix, version := range map[string]string{"validating": "v1", "mutating": "v1beta1"} {
		group := schema.GroupVersion{Group: "admissionregistration.k8s.io", Version: version}
		policies[prefix], bindings[prefix] = group.WithResource(prefix+"admissionpolicies"), group.WithResource(prefix+"admissionpolicybindings")
	}

	ctxTries, stop := context.WithCancel(ctx)
	var trying sync.WaitGroup
	defer func() { stop(); trying.Wait() }()
	refused := map[string]*atomic.Int32{}
	tried := map[string]*atomic.Int32{}
	for what, try := range attempts(t) {
		refused[what], tried[what] = &atomic.Int32{}, &atomic.Int32{}
		trying.Go(func() {
			for range time.Tick(50 * time.Millisecond) {
				if ctxTries.Err() != nil {
					return
				}
				r, _ := http.NewRequestWithContext(ctxTries, http.MethodPost, p.url+prefix+fmt.Sprintf(try[0], twin), strings.NewReader(try[1]))
				r.Header.Set(who, string(carol))
				r.Header.Set("Content-Type", "application/json")
				response, err := http.DefaultClient.Do(r)
				if err != nil {
					continue // the end
				}
				text, err := io.ReadAll(response.Body)
				response.Body.Close()
				if err != nil {
					continue
				}
				tried[what].Add(1)
				switch {
				case response.StatusCode < 300:
					t.Errorf("%s was let in: %.300s", what, text)
				case response.StatusCode == http.StatusUnprocessableEntity || response.StatusCode == http.StatusForbidden:
					if !bytes.Contains(text, []byte("ValidatingAdmissionPolicy")) {
						t.Errorf("%s: %.300s, want it refused by a policy", what, text)
					}
					refused[what].Add(1)
				}
			}
		})
	}
	// What is told is put right soon: somebody looks all the time.
	var problems told
	watching, watched := context.WithCancel(ctx)
	defer watched()
	trying.Go(func() {
		for range time.Tick(10 * time.Millisecond) {
			if watching.Err() != nil {
				return
			}
			problems.note(p.Problem())
		}
	})
	// Controllers try again what a consumer wrote before, and at once when it is touched.
	for name, change := range map[string]func(*corev1.PodSpec){
		"set-token": func(s *corev1.PodSpec) { s.AutomountServiceAccountToken = ptr.To(true) }, "set-node": func(s *corev1.PodSpec) { s.NodeName = "n" },
	} {
		if _, err := c.AppsV1().ReplicaSets(twin).Create(ctx, set(name, 1, "", change), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		trying.Go(func() {
			for n := range time.Tick(50 * time.Millisecond) {
				if ctxTries.Err() != nil {
					return
				}
				_, _ = p.admin.AppsV1().ReplicaSets(twin).Patch(ctxTries, name, types.MergePatchType, []byte(fmt.Sprintf(`{"metadata":{"annotations":{"n":"%d"}}}`, n.UnixNano())), metav1.PatchOptions{})
			}
		})
	}
	good := func() error {
		_, err := c.CoreV1().Pods(twin).Create(ctx, bare("good", nil), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	await.NoError(t, ctx, time.Minute, "the twin has its quota", good)
	before := p.ofBounds(t, objects, policies, bindings)
	kept := func(what string) {
		t.Helper()
		last := ""
		await.True(t, time.Minute, what+": all is as before", func() bool {
			if !p.policies.InForce() || p.Problem() != nil {
				return false
			}
			now := p.ofBounds(t, objects, policies, bindings)
			for name, o := range before {
				if is := now[name]; is == nil || is.GetDeletionTimestamp() != nil || !equality.Semantic.DeepEqual(is.Object["spec"], o.Object["spec"]) {
					last = name
					return false
				}
			}
			return len(now) == len(before)
		})
		if err := good(); err != nil {
			t.Errorf("%s, and all is as before, %s came last: %v", what, last, err)
		}
		problems.forget()
	}
	isTold := func(what string, words ...string) {
		t.Helper()
		await.NoError(t, ctx, time.Minute, what+" is told", func() error {
			return problems.have(func(text string) bool {
				return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(text, w) })
			})
		})
	}

	// By the label, as a prune does.
	for _, kind := range []schema.GroupVersionResource{bindings["validating"], policies["validating"], bindings["mutating"], policies["mutating"]} {
		if err := objects.Resource(kind).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "app.kubernetes.io/managed-by=rivulet"}); err != nil {
			t.Fatal(err)
		}
	}
	isTold("that all are deleted", "was deleted")
	kept("all deleted by label")

	// One of each kind by itself, then all others, changed so that they bound nothing.
	loose := map[string]string{
		policies["validating"].Resource: `{"spec":{"failurePolicy":"Ignore","validations":[{"expression":"true"}],"matchConditions":[{"name":"never","expression":"false"}]}}`,
		bindings["validating"].Resource: `{"spec":{"validationActions":["Audit"]}}`,
		policies["mutating"].Resource:   `{"spec":{"failurePolicy":"Ignore","matchConditions":[{"name":"never","expression":"false"}]}}`,
		bindings["mutating"].Resource:   `{"spec":{"policyName":"nothing"}}`,
	}
	client := func(name string, o *unstructured.Unstructured) dynamic.ResourceInterface {
		kind, _, _ := strings.Cut(name, "/")
		return objects.Resource(o.GroupVersionKind().GroupVersion().WithResource(kind))
	}
	loosen := func(name string) {
		t.Helper()
		kind, _, _ := strings.Cut(name, "/")
		o := before[name]
		if _, err := client(name, o).Patch(ctx, o.GetName(), types.MergePatchType, []byte(loose[kind]), metav1.PatchOptions{FieldManager: "mallory"}); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	alone, rest := map[string]string{}, []string(nil) // by kind one, which differs from run to run
	for name := range before {
		if strings.HasSuffix(name, "-spare") {
			continue
		}
		if kind, _, _ := strings.Cut(name, "/"); alone[kind] == "" {
			alone[kind] = name
		} else {
			rest = append(rest, name)
		}
	}
	for _, name := range alone {
		loosen(name)
		isTold("that "+name+" is changed", name+" was changed by mallory", "; ")
		kept(name + " changed")
	}
	for _, name := range rest {
		loosen(name)
	}
	isTold("that all others are changed", " was changed by mallory")
	kept("all others changed")
	for name, o := range before {
		if err := client(name, o).Delete(ctx, o.GetName(), metav1.DeleteOptions{}); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	kept("each deleted")
	stop()

	// Where what was changed cannot be put back, the bounds hold all the same, and consumers have no rights.
	for name, edit := range map[string]struct{ change, pod, words string }{ // a change, and how one sees that the API server acts on it
		"validatingadmissionpolicies/rivulet-twin-pods": {`{"spec":{"validations":[{"expression":"object.metadata.name != 'edited'","message":"it is edited"}]}}`, "edited", "it is edited"},
		"mutatingadmissionpolicybindings/rivulet-twin":  {loose[bindings["mutating"].Resource], "plain", "completes pods"},
	} {
		p.fault.set(func(r *http.Request) (int, string) {
			if r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "/"+name) {
				return http.StatusForbidden, "no policies today"
			}
			return 0, ""
		})
		if _, err := client(name, before[name]).Patch(ctx, before[name].GetName(), types.MergePatchType, []byte(edit.change), metav1.PatchOptions{FieldManager: "mallory"}); err != nil {
			t.Fatal(err)
		}
		try := func(name, node string) (*corev1.Pod, error) {
			return p.admin.CoreV1().Pods(twin).Create(ctx, bare(name, func(p *corev1.Pod) { p.Spec.NodeName = node }), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		}
		await.Empty(t, time.Minute, name+" acts as changed", func(context.Context) string {
			made, err := try(edit.pod, "")
			if err == nil && made.Spec.SecurityContext.SeccompProfile == nil {
				t.Errorf("with %s changed a pod is let in: %v", name, made.Spec)
			}
			if err == nil || !strings.Contains(err.Error(), edit.words) {
				return fmt.Sprint(err)
			}
			return ""
		})
		if _, err := try("x", "n"); err == nil {
			t.Errorf("with %s changed a pod with a node's name is let in", name)
		}
		isTold("what cannot be put back", name, "no policies today", "; ")
		if code, _ := p.ask(t, carol, http.MethodGet, prefix+"/api/v1/namespaces/"+twin+"/pods"); code != http.StatusServiceUnavailable {
			t.Errorf("with %s changed the consumer is answered %d, want 503", name, code)
		}
		p.fault.set(nil)
		kept(name + " put back")
	}

	for what := range tried {
		t.Logf("%s: tried %d times, refused by a policy %d times", what, tried[what].Load(), refused[what].Load())
		if refused[what].Load() == 0 {
			t.Errorf("%s was never refused by a policy", what)
		}
	}
	for what, list := range map[string]func() (int, error){
		"pods": func() (int, error) {
			l, err := p.admin.CoreV1().Pods(twin).List(ctx, metav1.ListOptions{})
			return len(l.Items), err
		},
		"Secrets": func() (int, error) {
			l, err := p.admin.CoreV1().Secrets(twin).List(ctx, metav1.ListOptions{})
			return len(l.Items), err
		},
		"Services": func() (int, error) {
			l, err := p.admin.CoreV1().Services(twin).List(ctx, metav1.ListOptions{})
			return len(l.Items), err
		},
	} {
		if n, err := list(); n != 0 || err != nil {
			t.Errorf("%d %s in the twin, %v", n, what, err)
		}
	}
}

// A twin without the labels that policies and Pod Security go by lets nothing in, and they come back by themselves.
func testLabelsOfTwins(t *testing.T, p *provider) {
	ctx := t.Context()
	twin := p.twinOf(t, carol, "labels")
	label := func(name, value string) {
		t.Helper()
		if _, err := p.admin.CoreV1().Namespaces().Patch(ctx, twin, types.MergePatchType, []byte(fmt.Sprintf(`{"metadata":{"labels":{%q:%s}}}`, name, value)), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	answers := func(want int) {
		t.Helper()
		await.Empty(t, time.Minute, fmt.Sprint("the consumer is answered ", want), func(context.Context) string {
			if code, body := p.ask(t, carol, http.MethodGet, prefix+"/api/v1/namespaces/"+twin+"/pods"); code != want {
				return fmt.Sprint(code, body)
			}
			return ""
		})
	}
	answers(http.StatusOK)
	p.fault.set(func(r *http.Request) (int, string) {
		if r.Method == http.MethodPut && r.URL.Path == "/api/v1/namespaces/"+twin {
			return http.StatusForbidden, "no labels today"
		}
		return 0, ""
	})
	defer p.fault.set(nil)
	label("pod-security.kubernetes.io/enforce", "null")
	answers(http.StatusServiceUnavailable)
	for what, change := range map[string]corev1.SecurityContext{
		"privileged": {Privileged: ptr.To(true)}, "SYS_ADMIN": {Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"SYS_ADMIN"}}},
	} { // as a controller would make it of what there was before
		_, err := p.admin.CoreV1().Pods(twin).Create(ctx, bare("x", func(p *corev1.Pod) { p.Spec.Containers[0].SecurityContext = &change }), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil || !strings.Contains(err.Error(), "rivulet-twin-pods") {
			t.Errorf("%s without the label: %v, want it refused", what, err)
		}
	}
	p.fault.set(nil)
	answers(http.StatusOK)
	if ns, err := p.admin.CoreV1().Namespaces().Get(ctx, twin, metav1.GetOptions{}); err != nil || ns.Labels["pod-security.kubernetes.io/enforce"] != "baseline" {
		t.Errorf("the label is not back: %v %v", ns.Labels, err)
	}
	label(policy.OriginLabel, "null") // it is the owner's now, and its binding is there still
	answers(http.StatusForbidden)
	label(policy.OriginLabel, `"`+string(carol)+`"`)
	answers(http.StatusOK)
}

// ofBounds are the policies and bindings of bounds that there are, by resource and name.
func (p *provider) ofBounds(t *testing.T, client dynamic.Interface, kinds ...map[string]schema.GroupVersionResource) map[string]*unstructured.Unstructured {
	t.Helper()
	out := map[string]*unstructured.Unstructured{}
	for _, some := range kinds {
		for _, kind := range some {
			list, err := client.Resource(kind).List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for i := range list.Items {
				if o := &list.Items[i]; strings.HasPrefix(o.GetName(), "rivulet-twin") {
					out[kind.Resource+"/"+o.GetName()] = o
				}
			}
		}
	}
	return out
}
