// Package services tests, on three devices of a lab with the real binary, Services shared with peers: the names and
// addresses of an import, whose endpoints get its traffic, and how sharing ends. The tests share the devices.
package services

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"rivulet/appliance/addons/clusterset"
	"rivulet/test/harness/await"
	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
	"rivulet/test/harness/mainjob"
)

var suite = labtest.Suite{Prepare: func(ctx context.Context, s *labtest.Suite) error {
	for _, d := range s.All() {
		if err := share(ctx, d, "all"); err != nil { // neighbours on a LAN share nothing by themselves
			return err
		}
	}
	return labtest.PeeredWithImage(ctx, s)
}}

func TestMain(m *testing.M) { suite.Main(m, "services", lab.Options{Devices: 3}) }

// share sets with which peers a device shares Services, while it runs.
func share(ctx context.Context, d *lab.Device, with string) error {
	if err := d.WaitReady(ctx); err != nil {
		return err
	}
	_, err := d.Run(ctx, "sh", "-c", "mkdir -p /etc/rivulet && echo 'services: {import: "+with+"}' > /etc/rivulet/config.yaml && rivulet config reload")
	return err
}

const (
	namespace = `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":%q}}`
	export    = `{"apiVersion":"multicluster.x-k8s.io/v1beta1","kind":"ServiceExport","metadata":{"name":"web","namespace":%q}}`
	web       = `{"apiVersion":"v1","kind":"List","items":[
{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web","namespace":%[1]q},"spec":{"selector":{"matchLabels":{"app":"web"}},"template":{"metadata":{"labels":{"app":"web"}},
 "spec":{"terminationGracePeriodSeconds":1,"containers":[{"name":"web","image":%[2]q,"readinessProbe":{"httpGet":{"path":"/ready","port":8080},"periodSeconds":1},"resources":{"requests":{"cpu":"10m","memory":"8Mi"}}}]}}}},
{"apiVersion":"v1","kind":"Service","metadata":{"name":"web","namespace":%[1]q},"spec":{"selector":{"app":"web"},"ports":[{"name":"http","port":%[3]d,"targetPort":8080}]}}]}`
	client = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"client","namespace":%q},"spec":{"terminationGracePeriodSeconds":1,"containers":[{"name":"c","image":%q,"command":["/bin/busybox","sleep","3600"]}]}}`
)

func apply(t *testing.T, ctx context.Context, d *lab.Device, objects ...string) {
	t.Helper()
	for _, o := range objects {
		cmd, err := d.Command(ctx, "rivulet", "kubectl", "apply", "-f", "-")
		if err != nil {
			t.Fatal(err)
		}
		cmd.Stdin = strings.NewReader(o)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
}

// room makes the namespace on all devices, with a client on a, and removes it in the end.
func room(t *testing.T, ctx context.Context, name string) {
	t.Helper()
	for _, d := range suite.All() {
		apply(t, ctx, d, fmt.Sprintf(namespace, name))
		labtest.CleanUp(t, func(ctx context.Context) {
			d.Kubectl(ctx, "delete", "namespace", name, "--wait=false", "--ignore-not-found") //nolint:errcheck // the lab ends
		})
	}
	apply(t, ctx, suite.Devices["a"], fmt.Sprintf(client, name, mainjob.Image))
}

// answers are the pods that answer ten requests of the client on a, at the name of the import.
func answers(ctx context.Context, ns string) (pods []string, err error) {
	out, err := suite.Devices["a"].Kubectl(ctx, "-n", ns, "exec", "client", "--", "web", "get", "-n", "10", "http://web."+ns+".svc.clusterset.local/")
	if err != nil {
		return nil, err
	}
	var count map[string]int
	err = json.Unmarshal([]byte(out), &count)
	return slices.Sorted(maps.Keys(count)), err
}

// pods are the names of a device's web pods.
func pods(t *testing.T, ctx context.Context, d *lab.Device, ns string) []string {
	t.Helper()
	return strings.Fields(labtest.Kubectl(t, ctx, d, "-n", ns, "get", "pods", "-l", "app=web", "-o", "jsonpath={.items[*].metadata.name}"))
}

// from waits until all answers are of pods of that device.
func from(t *testing.T, ctx context.Context, d *lab.Device, ns string, limit time.Duration) {
	t.Helper()
	await.NoError(t, ctx, limit, "answers of "+d.Name, func() error {
		got, err := answers(ctx, ns)
		if err != nil {
			return err
		}
		own := pods(t, ctx, d, ns)
		for _, pod := range got {
			if !slices.Contains(own, pod) {
				return fmt.Errorf("%s answered, not of %v", pod, own)
			}
		}
		return nil
	})
}

func shared(t *testing.T, ctx context.Context, d *lab.Device, service string) (s clusterset.Service, ok bool) {
	t.Helper()
	for _, s := range labtest.Status(t, ctx, d).ClusterSet.Services {
		if s.Namespace+"/"+s.Name == service {
			return s, true
		}
	}
	return s, false
}

// A Service that b and c export has an address at a. Its traffic goes to a's own pods while there are any, else to
// peers; a peer without power gets none after 12 s, and one whose pods end none at once. When nobody exports it, nothing
// is left of it.
func TestWhoAnswers(t *testing.T) {
	ctx := suite.Bounded(t, 8*time.Minute)
	const ns = "shop"
	a, b, c := suite.Devices["a"], suite.Devices["b"], suite.Devices["c"]
	room(t, ctx, ns)
	apply(t, ctx, b, fmt.Sprintf(web, ns, mainjob.Image, 80), fmt.Sprintf(export, ns))
	from(t, ctx, b, ns, time.Minute)
	if out := labtest.Must(t, ctx, a, "rivulet", "services"); !strings.Contains(out, "shop/web") || !strings.Contains(out, "b* 1/1") {
		t.Errorf("rivulet services: %s", out)
	}
	apply(t, ctx, c, fmt.Sprintf(web, ns, mainjob.Image, 80), fmt.Sprintf(export, ns))
	await.NoError(t, ctx, time.Minute, "both clusters", func() error {
		if s, ok := shared(t, ctx, a, "shop/web"); !ok || len(s.From) != 2 || s.From[0].Ready+s.From[1].Ready != 2 || len(s.Conflicts) > 0 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})

	apply(t, ctx, a, fmt.Sprintf(web, ns, mainjob.Image, 80), fmt.Sprintf(export, ns))
	from(t, ctx, a, ns, time.Minute)
	labtest.Kubectl(t, ctx, a, "-n", ns, "scale", "deployment", "web", "--replicas=0")
	await.NoError(t, ctx, 30*time.Second, "a peer answers", func() error {
		_, err := answers(ctx, ns)
		return err
	})

	labtest.Kubectl(t, ctx, c, "-n", ns, "scale", "deployment", "web", "--replicas=0")
	from(t, ctx, b, ns, 10*time.Second)
	labtest.Kubectl(t, ctx, c, "-n", ns, "scale", "deployment", "web", "--replicas=1")
	await.NoError(t, ctx, time.Minute, "c has a ready endpoint", func() error {
		if s, _ := shared(t, ctx, a, "shop/web"); !slices.ContainsFunc(s.From, func(f clusterset.Source) bool { return f.Name == "c" && f.Ready == 1 }) {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	labtest.Must(t, ctx, a, "rivulet", "cordon", "c")
	from(t, ctx, b, ns, 10*time.Second)
	labtest.Must(t, ctx, a, "rivulet", "uncordon", "c")
	labtest.Must(t, ctx, a, "rivulet", "cordon", "b")
	from(t, ctx, c, ns, 10*time.Second)
	labtest.Must(t, ctx, a, "rivulet", "uncordon", "b")
	if err := b.Kill(ctx, "power"); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	from(t, ctx, c, ns, 30*time.Second)
	// A request that was under way takes its limit of 5 s.
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("a cluster without power gets traffic for %s", took.Round(time.Second))
	} else {
		t.Logf("no traffic to a cluster without power after %s", took.Round(100*time.Millisecond))
	}
	if err := b.Start(ctx); err != nil {
		t.Fatal(err)
	}
	for _, d := range []*lab.Device{a, c} {
		labtest.Kubectl(t, ctx, d, "-n", ns, "delete", "serviceexport", "web")
	}
	await.NoError(t, ctx, 2*time.Minute, "b answers again", func() error {
		s, ok := shared(t, ctx, a, "shop/web")
		if !ok || len(s.From) != 1 || s.From[0].Ready != 1 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	from(t, ctx, b, ns, time.Minute)
	labtest.Kubectl(t, ctx, b, "-n", ns, "delete", "serviceexport", "web")
	await.NoError(t, ctx, 30*time.Second, "nothing is left at a", func() error {
		out, err := a.Kubectl(ctx, "-n", ns, "get", "serviceimports,services,endpointslices", "-l", clusterset.ObjectLabel, "-o", "name")
		if err == nil && out != "" {
			err = fmt.Errorf("%s", out)
		}
		return err
	})
}

// requests are how many of n requests of the client on a the pods of each device answer.
func requests(t *testing.T, ctx context.Context, ns string, n int, device map[string]string) map[string]int {
	t.Helper()
	began := time.Now()
	out := labtest.Kubectl(t, ctx, suite.Devices["a"], "-n", ns, "exec", "client", "--", "web", "get", "-n", fmt.Sprint(n), "http://web."+ns+".svc.clusterset.local/")
	var count map[string]int
	if err := json.Unmarshal([]byte(out), &count); err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	for pod, m := range count {
		got[device[pod]] += m
	}
	t.Logf("%d requests in %s: %v", n, time.Since(began).Round(100*time.Millisecond), got)
	return got
}

// within fails unless the answers are within five standard deviations of the shares: one test in a million fails by chance.
func within(t *testing.T, got map[string]int, shares map[string]float64) {
	t.Helper()
	n := 0
	for _, m := range got {
		n += m
	}
	for name, share := range shares {
		if mean := share * float64(n); math.Abs(float64(got[name])-mean) > 5*math.Sqrt(mean*(1-share)) {
			t.Errorf("%v of %d requests, want the shares %v", got, n, shares)
			return
		}
	}
}

// Of ten thousand requests a peer gets the share that the weights say, from a pod and from the device; changed weights
// count at once, and the share of a cluster without power goes to the others within 12 s.
func TestWeights(t *testing.T) {
	ctx := suite.Bounded(t, 9*time.Minute)
	const ns = "canary"
	a, b := suite.Devices["a"], suite.Devices["b"]
	room(t, ctx, ns)
	for _, d := range suite.All() {
		apply(t, ctx, d, fmt.Sprintf(web, ns, mainjob.Image, 80), fmt.Sprintf(export, ns))
	}
	labtest.Kubectl(t, ctx, a, "-n", ns, "scale", "deployment", "web", "--replicas=2")
	await.NoError(t, ctx, 2*time.Minute, "all clusters have ready pods", func() error {
		if s, _ := shared(t, ctx, a, ns+"/web"); len(s.From) != 3 || s.From[0].Ready+s.From[1].Ready+s.From[2].Ready != 4 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	from(t, ctx, a, ns, time.Minute)
	device := map[string]string{} // by pod
	for _, d := range suite.All() {
		for _, pod := range pods(t, ctx, d, ns) {
			device[pod] = d.Name
		}
	}
	weigh := func(weights string) {
		t.Helper()
		labtest.Kubectl(t, ctx, a, "-n", ns, "annotate", "--overwrite", "serviceimport", "web", clusterset.WeightsAnnotation+"="+weights)
	}
	shares := func(limit time.Duration, want map[string]float64) {
		t.Helper()
		await.NoError(t, ctx, limit, fmt.Sprintf("shares %v", want), func() error {
			s, _ := shared(t, ctx, a, ns+"/web")
			for _, f := range s.From {
				if math.Abs(f.Share-want[cmp.Or(f.Name, "a")]) > 1e-9 {
					return fmt.Errorf("%+v", s)
				}
			}
			return nil
		})
	}

	weigh("home=90,b=10")
	shares(5*time.Second, map[string]float64{"a": 0.9, "b": 0.1})
	within(t, requests(t, ctx, ns, 10_000, device), map[string]float64{"a": 0.9, "b": 0.1, "c": 0})
	if out := labtest.Must(t, ctx, a, "rivulet", "services"); !strings.Contains(out, "here* 2/2 90 %") || !strings.Contains(out, "b* 1/1 10 %") || !strings.Contains(out, "weights home=90,b=10") {
		t.Errorf("rivulet services: %s", out)
	}
	address := labtest.Kubectl(t, ctx, a, "-n", ns, "get", "serviceimport", "web", "-o", "jsonpath={.spec.ips[0]}")
	client, got := a.HTTP(), map[string]int{}
	for range 1000 {
		resp, err := client.Get("http://" + address + "/")
		if err != nil {
			t.Fatal(err)
		}
		var answer struct{ Pod string }
		if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		got[device[answer.Pod]]++
	}
	t.Logf("from the device: %v", got)
	within(t, got, map[string]float64{"a": 0.9, "b": 0.1, "c": 0})

	weigh("home=10,b=90")
	shares(5*time.Second, map[string]float64{"a": 0.1, "b": 0.9})
	within(t, requests(t, ctx, ns, 2000, device), map[string]float64{"a": 0.1, "b": 0.9, "c": 0})
	weigh("home=2,b=5,c=1")
	shares(5*time.Second, map[string]float64{"a": 0.25, "b": 0.625, "c": 0.125})
	within(t, requests(t, ctx, ns, 2000, device), map[string]float64{"a": 0.25, "b": 0.625, "c": 0.125})
	if err := b.Kill(ctx, "power"); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	shares(12*time.Second, map[string]float64{"a": 2. / 3, "c": 1. / 3})
	t.Logf("the share of a cluster without power is others' after %s", time.Since(began).Round(100*time.Millisecond))
	within(t, requests(t, ctx, ns, 2000, device), map[string]float64{"a": 2. / 3, "c": 1. / 3})

	weigh("home=all")
	await.NoError(t, ctx, 5*time.Second, "a fault with a cure", func() error {
		if out := labtest.Must(t, ctx, a, "rivulet", "services"); !strings.Contains(out, `"home=all" is no weight; write CLUSTER=NUMBER`) {
			return errors.New(out)
		}
		return nil
	})
	from(t, ctx, a, ns, 10*time.Second)
	labtest.Kubectl(t, ctx, a, "-n", ns, "delete", "serviceexport", "web")
	if err := b.Start(ctx); err != nil {
		t.Fatal(err)
	}
	await.NoError(t, ctx, 2*time.Minute, "b is back", func() error {
		s, ok := shared(t, ctx, a, ns+"/web")
		if !ok || len(s.From) != 2 || s.From[0].Ready+s.From[1].Ready != 2 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
}

// Exports that differ are in conflict, and every exporter is told; the one that was seen first decides where the Service is
// not exported. A peer that this cluster shares nothing with has no contribution, and gets none.
func TestConflictAndConsent(t *testing.T) {
	ctx := suite.Bounded(t, 6*time.Minute)
	const ns = "differ"
	a, b, c := suite.Devices["a"], suite.Devices["b"], suite.Devices["c"]
	room(t, ctx, ns)
	apply(t, ctx, b, fmt.Sprintf(web, ns, mainjob.Image, 80), fmt.Sprintf(export, ns))
	await.NoError(t, ctx, time.Minute, "an import", func() error {
		_, err := answers(ctx, ns)
		return err
	})
	apply(t, ctx, c, fmt.Sprintf(web, ns, mainjob.Image, 8000), fmt.Sprintf(export, ns))
	for _, d := range []*lab.Device{b, c} {
		await.NoError(t, ctx, time.Minute, "a conflict at "+d.Name, func() error {
			out, err := d.Kubectl(ctx, "-n", ns, "get", "serviceexport", "web", "-o", `jsonpath={.status.conditions[?(@.type=="Conflict")].reason}`)
			if err == nil && out != "PortConflict" {
				err = fmt.Errorf("reason %q", out)
			}
			return err
		})
	}
	from(t, ctx, b, ns, time.Minute)

	if err := share(ctx, b, "approved"); err != nil {
		t.Fatal(err)
	}
	await.NoError(t, ctx, 2*time.Minute, "b shares nothing", func() error {
		s, ok := shared(t, ctx, a, ns+"/web")
		if !ok || len(s.From) != 1 || s.From[0].Name != "c" || len(s.Conflicts) > 0 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	if out := labtest.Must(t, ctx, a, "rivulet", "services"); !strings.Contains(out, "peer b: it exports no Services to this cluster") {
		t.Errorf("rivulet services: %s", out)
	}
	await.NoError(t, ctx, time.Minute, "b has no import", func() error {
		out, err := b.Kubectl(ctx, "-n", ns, "get", "serviceimports", "-o", "jsonpath={.items[*].status.clusters[*].cluster}")
		if err == nil && len(strings.Fields(out)) != 1 {
			err = fmt.Errorf("clusters %q, want b's own", out)
		}
		return err
	})
}
