package courses

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"

	"rivulet/appliance/machine/clock"
	"rivulet/appliance/vcluster/objects"
	"rivulet/fabric/changes"
	"rivulet/offload/foreign"
	"rivulet/offload/policy"
	"rivulet/test/harness/apiserver"
	"rivulet/test/harness/await"
)

func TestMembers(t *testing.T) {
	course := func(names []string, count int) *Course {
		return &Course{ObjectMeta: metav1.ObjectMeta{Name: "db"}, Spec: Spec{Names: names, Count: count}}
	}
	got, err := course([]string{"zoe", "ann"}, 2).members()
	if err != nil || strings.Join(got, " ") != "db-01 db-02 db-ann db-zoe" {
		t.Errorf("%v %v", got, err)
	}
	for _, c := range []struct {
		names []string
		count int
		want  string
	}{{[]string{"ann", "ann"}, 0, "twice"}, {[]string{"01"}, 1, "twice"}, {[]string{"Ann"}, 0, "no name"}, {[]string{strings.Repeat("a", 38)}, 0, "no name"}, {nil, 201, "too many"}} {
		if _, err := course(c.names, c.count).members(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v %d: %v, want %q", c.names, c.count, err, c.want)
		}
	}
}

func TestGroupsOfParents(t *testing.T) {
	cpu := func(n string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(n)}
	}
	all := map[string]*Course{}
	add := func(name, parent string, limit corev1.ResourceList) *Course {
		c := &Course{ObjectMeta: metav1.ObjectMeta{Namespace: "t", Name: name}, Spec: Spec{Parent: parent, Cap: limit}}
		all[c.key()] = c
		return c
	}
	add("department", "", cpu("8"))
	add("year", "department", nil)
	db := add("db", "year", cpu("2"))
	got, err := db.groups(all)
	if err != nil || len(got) != 3 || got[0].Name != "t/db" || got[1].Name != "t/year" || len(got[1].Cap) != 0 || got[2].Name != "t/department" || !got[2].Cap.Cpu().Equal(resource.MustParse("8")) {
		t.Errorf("%+v %v", got, err)
	}
	for name, c := range map[string]*Course{
		"circle": add("a", "a", nil), "there is no course": add("b", "none", nil),
		"no \"gold\"": add("c", "", corev1.ResourceList{"gold": resource.MustParse("1")}),
	} {
		if _, err := c.groups(all); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestPhases(t *testing.T) {
	end := time.Date(2027, 2, 15, 12, 0, 0, 0, time.UTC)
	c := &Course{Spec: Spec{Expires: &metav1.Time{Time: end}}}
	for _, s := range []struct {
		after time.Duration
		want  phase
	}{{-30 * 24 * time.Hour, running}, {-warning, expiring}, {-time.Second, expiring}, {0, expired}, {time.Hour, over}} {
		if got := c.phase(end.Add(s.after), time.Hour); got != s.want {
			t.Errorf("%s: %d, want %d", s.after, got, s.want)
		}
	}
	if got := (&Course{}).phase(end, time.Hour); got != running {
		t.Errorf("without an end: %d", got)
	}
}

// said is what a test says that the time is.
type said struct {
	mu  sync.Mutex
	now clock.Status
}

// set has NTP confirm the time, if that is plausible.
func (s *said) set(now time.Time, plausible bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = clock.Status{Now: now, Plausible: plausible, Synchronized: plausible, Reference: clock.FromNTP}
}
func (s *said) get() clock.Status { s.mu.Lock(); defer s.mu.Unlock(); return s.now }

// states are virtual clusters that are all the home cluster itself: what is done inside them is seen there.
type states struct {
	changes.Signal
	kubeconfig []byte
}

func (s *states) StatesChanged() (<-chan struct{}, func()) { return s.Changed() }
func (s *states) Kubeconfig(string) ([]byte, error)        { return s.kubeconfig, nil }

// shelf has the images of a device; the registry has one.
type shelf struct {
	mu       sync.Mutex
	registry string
	kept     []string
	groups   map[string][]string
}

func (s *shelf) Provide(_ context.Context, name string, groups []string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.groups[name] = groups
	if name != s.registry {
		return errors.New("no registry has it; bring it from a file")
	}
	if !slices.Contains(s.kept, name) {
		s.kept = append(s.kept, name)
	}
	return nil
}

func (s *shelf) Release(_ context.Context, but []string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept = slices.DeleteFunc(s.kept, func(name string) bool { return !slices.Contains(but, name) })
	return nil
}

func (s *shelf) given(name string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.groups[name]
}

func (s *shelf) has() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.kept, " ")
}

// The life of a course on a real API server, whose VirtualClusters the test says to be ready.
func TestCourse(t *testing.T) {
	server := apiserver.Start(t)
	ctx := t.Context()
	definition, err := os.ReadFile("../objects/crd.yaml")
	must(t, err)
	must(t, policy.Apply(ctx, server.Config, definition))
	c := server.Config
	kubeconfig, err := clientcmd.Write(clientcmdapi.Config{
		Clusters:  map[string]*clientcmdapi.Cluster{"x": {Server: c.Host, CertificateAuthority: c.CAFile, CertificateAuthorityData: c.CAData}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"x": {ClientCertificate: c.CertFile, ClientCertificateData: c.CertData, ClientKey: c.KeyFile, ClientKeyData: c.KeyData}},
		Contexts:  map[string]*clientcmdapi.Context{"x": {Cluster: "x", AuthInfo: "x"}}, CurrentContext: "x",
	})
	must(t, err)
	inside, now, images := &states{kubeconfig: kubeconfig}, &said{}, &shelf{registry: "postgres:17", groups: map[string][]string{}}
	now.set(time.Now(), true)
	within, stop := context.WithCancel(ctx)
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- Run(within, Config{API: server.Config, Clusters: inside, Images: images, Clock: now.get, Log: slog.New(slog.DiscardHandler)}, func() { close(ready) })
	}()
	defer func() { stop(); must(t, <-done) }()
	<-ready
	dyn, err := dynamic.NewForConfig(server.Config)
	must(t, err)
	courses, clusters := dyn.Resource(Resource).Namespace("default"), dyn.Resource(objects.Resource).Namespace("default")
	put := func(text string) {
		t.Helper()
		var o map[string]any
		must(t, yaml.Unmarshal([]byte(text), &o))
		u := &unstructured.Unstructured{Object: o}
		_, err := courses.Apply(ctx, u.GetName(), u, metav1.ApplyOptions{FieldManager: "user", Force: true})
		must(t, err)
	}
	is := func(what, kind string, status metav1.ConditionStatus, reason, text string) *Course {
		t.Helper()
		var c *Course
		await.NoError(t, ctx, time.Minute, what, func() error {
			inside.Notify()
			u, err := courses.Get(ctx, "db", metav1.GetOptions{})
			if err != nil {
				return err
			}
			if c, err = FromAPI(u); err != nil {
				return err
			}
			got := meta.FindStatusCondition(c.Status.Conditions, kind)
			if got == nil || c.Status.ObservedGeneration != u.GetGeneration() || got.Status != status || got.Reason != reason || !strings.Contains(got.Message, text) {
				return fmt.Errorf("%+v", c.Status)
			}
			return nil
		})
		return c
	}
	names := func() (out []string) {
		list, err := clusters.List(ctx, metav1.ListOptions{})
		must(t, err)
		for _, u := range list.Items {
			out = append(out, u.GetName())
		}
		slices.Sort(out)
		return out
	}
	state := func(name, state string) {
		t.Helper()
		status := metav1.ConditionFalse
		if state == "Awake" || state == "Asleep" {
			status = metav1.ConditionTrue
		}
		patch := fmt.Sprintf(`{"status":{"state":%q,"conditions":[{"type":"Ready","status":%q,"reason":%q,"message":"","lastTransitionTime":"2026-01-02T03:04:05Z"}]}}`, state, status, state)
		_, err := clusters.Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
		must(t, err)
	}
	field := func(name string, path ...string) any {
		t.Helper()
		u, err := clusters.Get(ctx, name, metav1.GetOptions{})
		must(t, err)
		v, _, _ := unstructured.NestedFieldNoCopy(u.Object, append([]string{"spec"}, path...)...)
		return v
	}

	end := time.Now().Add(30 * 24 * time.Hour).UTC().Truncate(time.Second)
	base := fmt.Sprintf(`
apiVersion: rivulet.dev/v1alpha1
kind: Course
metadata: {name: db}
spec:
  names: [ann, ben]
  cap: {cpu: "2"}
  template: {sleep: 15m, quota: {cpu: "1", pods: 5}}
  expires: %s
  keep: 1h
  manifests: |
    apiVersion: v1
    kind: Namespace
    metadata: {name: homework}
    ---
    apiVersion: v1
    kind: ConfigMap
    metadata: {name: task, namespace: homework}
    data: {text: solve it}
`, end.Format(time.RFC3339))
	put(base)
	is("both are made", Ready, metav1.ConditionFalse, "Starting", "0 of 2 members")
	if got := names(); strings.Join(got, " ") != "db-ann db-ben" {
		t.Fatalf("%v", got)
	}
	if sleep := field("db-ann", "sleep"); sleep != "15m" {
		t.Errorf("it sleeps after %v", sleep)
	}
	if groups, _ := field("db-ben", "groups").([]any); len(groups) != 1 || fmt.Sprint(groups[0]) != "map[cap:map[cpu:2] name:default/db]" {
		t.Errorf("%v", groups)
	}
	state("db-ann", "Awake")
	state("db-ben", "Asleep")
	is("both can be used", Ready, metav1.ConditionTrue, "Usable", "")
	await.NoError(t, ctx, time.Minute, "the manifests are applied inside", func() error {
		_, err := server.Client.CoreV1().ConfigMaps("homework").Get(ctx, "task", metav1.GetOptions{})
		return err
	})
	await.True(t, time.Minute, "that is noted, and not done again", func() bool {
		for _, name := range names() {
			u, err := clusters.Get(ctx, name, metav1.GetOptions{})
			if err != nil || u.GetAnnotations()[appliedAnnotation] == "" {
				return false
			}
		}
		return true
	})

	t.Run("its images are there before they are needed, and released", func(t *testing.T) {
		with := func(images string) { put(strings.Replace(base, "  keep: 1h", "  images: "+images+"\n  keep: 1h", 1)) }
		with("[postgres:17, none:1]")
		is("one is missing", ImagesReady, metav1.ConditionFalse, "ImagesMissing", "none:1: no registry has it; bring it from a file")
		if images.has() != "postgres:17" || !slices.Equal(images.given("postgres:17"), []string{"default/db"}) {
			t.Errorf("the device keeps %q, for %v", images.has(), images.given("postgres:17"))
		}
		with("[postgres:17]")
		is("all are there", ImagesReady, metav1.ConditionTrue, "ImagesThere", "1 images")
		put(base)
		await.True(t, time.Minute, "none is kept", func() bool { return images.has() == "" })
		await.True(t, time.Minute, "nothing is said of images", func() bool {
			u, err := courses.Get(ctx, "db", metav1.GetOptions{})
			must(t, err)
			c, err := FromAPI(u)
			must(t, err)
			return meta.FindStatusCondition(c.Status.Conditions, ImagesReady) == nil
		})
	})
	t.Run("what others change is put back", func(t *testing.T) {
		_, err := clusters.Patch(ctx, "db-ann", types.MergePatchType, []byte(`{"spec":{"sleep":"1h","memory":"1Gi"}}`), metav1.PatchOptions{})
		must(t, err)
		await.True(t, time.Minute, "the course's value", func() bool { inside.Notify(); return field("db-ann", "sleep") == "15m" })
		if memory := field("db-ann", "memory"); memory != "1Gi" {
			t.Errorf("what the course does not say became %v", memory)
		}
	})
	t.Run("a name that is taken off stays, one that is added is made, one that others have is an error", func(t *testing.T) {
		put(strings.Replace(base, "[ann, ben]", "[ann, carl]", 1))
		await.True(t, time.Minute, "carl is made", func() bool { return strings.Join(names(), " ") == "db-ann db-ben db-carl" })
		state("db-carl", "Awake")
		c := is("all three", Ready, metav1.ConditionTrue, "Usable", "")
		if strings.Join(c.Status.Unlisted, " ") != "db-ben" || c.Status.Members != 3 {
			t.Errorf("%+v", c.Status)
		}
		must(t, clusters.Delete(ctx, "db-ben", metav1.DeleteOptions{}))
		await.True(t, time.Minute, "it is not made again", func() bool {
			inside.Notify()
			u, err := courses.Get(ctx, "db", metav1.GetOptions{})
			must(t, err)
			c, err := FromAPI(u)
			return err == nil && c.Status.Members == 2 && len(c.Status.Unlisted) == 0
		})
		other := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "rivulet.dev/v1alpha1", "kind": objects.Kind, "metadata": map[string]any{"name": "db-dan"}}}
		_, err := clusters.Create(ctx, other, metav1.CreateOptions{})
		must(t, err)
		put(strings.Replace(base, "[ann, ben]", "[ann, carl, dan]", 1))
		is("dan is another's", Ready, metav1.ConditionFalse, "Failed", "not of this course")
		must(t, clusters.Delete(ctx, "db-dan", metav1.DeleteOptions{}))
		put(strings.Replace(base, "[ann, ben]", "[ann, carl]", 1))
		is("it is usable again", Ready, metav1.ConditionTrue, "Usable", "")
	})
	t.Run("what is invalid changes nothing", func(t *testing.T) {
		put(strings.Replace(base, "[ann, ben]", "[ann, ann]", 1))
		is("it is said", Ready, metav1.ConditionFalse, "Invalid", "twice")
		if got := names(); strings.Join(got, " ") != "db-ann db-carl" {
			t.Errorf("%v", got)
		}
		put(strings.Replace(base, "[ann, ben]", "[ann, carl]", 1))
		is("it is usable again", Ready, metav1.ConditionTrue, "Usable", "")
	})
	t.Run("the end", func(t *testing.T) {
		now.set(end.Add(2*time.Hour), false)
		inside.Notify()
		state("db-carl", "Asleep")
		now.set(end.Add(-time.Hour), true)
		is("it says so a week before", Expiring, metav1.ConditionTrue, "ExpiresSoon", "change spec.expires")
		warned := func() (n int) {
			list, err := server.Client.CoreV1().Events("default").List(ctx, metav1.ListOptions{FieldSelector: "reason=CourseExpires"})
			must(t, err)
			return len(list.Items)
		}
		await.True(t, time.Minute, "inside the one that is awake, too", func() bool { inside.Notify(); return warned() == 1 })
		state("db-carl", "Awake")
		await.True(t, time.Minute, "inside the other when it wakes", func() bool { inside.Notify(); return warned() == 2 })
		now.set(end, true)
		is("it is over", Expiring, metav1.ConditionTrue, "Expired", "are paused")
		await.True(t, time.Minute, "its members are paused", func() bool { return field("db-ann", "paused") == true && field("db-carl", "paused") == true })
		later := strings.Replace(strings.Replace(base, "[ann, ben]", "[ann, carl]", 1), end.Format(time.RFC3339), end.Add(30*24*time.Hour).Format(time.RFC3339), 1)
		put(later)
		is("it goes on", Expiring, metav1.ConditionFalse, "Running", "")
		await.True(t, time.Minute, "its members, too", func() bool { return field("db-ann", "paused") == nil })
		now.set(end.Add(30*24*time.Hour+time.Hour), true)
		is("its clock says that it is over, and it was not paused for an hour", Expiring, metav1.ConditionTrue, "Expired", "when rivulet has run for 1h0m0s with them paused")
		put(strings.Replace(later, "keep: 1h", "keep: 1s", 1))
		await.True(t, time.Minute, "it is deleted", func() bool {
			inside.Notify()
			_, err := courses.Get(ctx, "db", metav1.GetOptions{})
			return apierrors.IsNotFound(err)
		})
		await.True(t, time.Minute, "with its members", func() bool { return len(names()) == 0 })
	})
	if n := warnings(t, server); n > 0 {
		t.Errorf("%d events of failed applications", n)
	}
}

// warnings counts events of Courses that say that something inside failed.
func warnings(t *testing.T, server *apiserver.Server) (n int) {
	list, err := server.Client.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.kind=Course"})
	must(t, err)
	for _, e := range list.Items {
		if strings.Contains(e.Message, "inside ") {
			n++
		}
	}
	return n
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// hostile has the kubeconfig of a server that its administrator has taken over.
type hostile struct{ kubeconfig []byte }

func (hostile) StatesChanged() (<-chan struct{}, func()) { return nil, func() {} }
func (h hostile) Kubeconfig(string) ([]byte, error)      { return h.kubeconfig, nil }

// A member's administrator decides what its API server answers: it costs the device a bounded part of its memory, and
// leads to nothing else. Nothing counts as done.
func TestAMemberThatLies(t *testing.T) {
	var hits, sent atomic.Int64
	victim := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { hits.Add(1) }))
	defer victim.Close()
	for what, answer := range map[string]http.HandlerFunc{
		"without an end": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			for block := []byte(strings.Repeat("[", 64<<10)); ; {
				n, err := w.Write(block)
				if sent.Add(int64(n)); err != nil {
					return
				}
			}
		},
		"compressed": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			fmt.Fprint(w, "{}")
		},
		"pointing to the device": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, victim.URL, http.StatusTemporaryRedirect)
		},
	} {
		server := httptest.NewTLSServer(answer)
		t.Cleanup(server.Close)
		t.Cleanup(server.CloseClientConnections)
		file := clientcmdapi.NewConfig()
		file.Clusters["x"] = &clientcmdapi.Cluster{Server: server.URL, CertificateAuthorityData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})}
		file.AuthInfos["x"], file.Contexts["x"] = &clientcmdapi.AuthInfo{Token: "t"}, &clientcmdapi.Context{Cluster: "x", AuthInfo: "x"}
		file.CurrentContext = "x"
		raw, err := clientcmd.Write(*file)
		if err != nil {
			t.Fatal(err)
		}
		c := &controller{Config: Config{Clusters: hostile{raw}}}
		course := &Course{ObjectMeta: metav1.ObjectMeta{Name: "db"}, Spec: Spec{Expires: &metav1.Time{Time: time.Now()},
			Manifests: "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n"}}
		for _, manifests := range []bool{true, false} {
			sent.Store(0)
			done := map[string]any{}
			if err := c.do(t.Context(), "db-ann", course, manifests, !manifests, done); err == nil || len(done) > 0 {
				t.Errorf("%s: %v, done is %v", what, err, done)
			} else if !strings.Contains(err.Error(), "the answer of virtual cluster db-ann is not understood") {
				t.Errorf("%s: %v", what, err)
			}
			if n := sent.Load(); n > 5*foreign.MaxAnswer+16<<20 { // discovery asks several times
				t.Errorf("%s: %d bytes were taken", what, n)
			}
		}
	}
	if n := hits.Load(); n > 0 {
		t.Errorf("%d requests went to the device", n)
	}
}
