package class

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"rivulet/appliance/vcluster"
	"rivulet/test/harness/await"
	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
	"rivulet/test/harness/mainjob"
)

const school = `
apiVersion: rivulet.dev/v1alpha1
kind: Course
metadata: {name: db}
spec:
  names: [ann, ben, carl]
  template: {quota: {cpu: 1, pods: 5}, sleep: 30m}
  cap: {cpu: 300m}
  manifests: |
    apiVersion: v1
    kind: ConfigMap
    metadata: {name: task}
    data: {text: solve it}
`

// TestACourse: a file makes clusters for three, who have what they share, sleep together, end together, and are deleted
// together.
func TestACourse(t *testing.T) {
	ctx := suite.Bounded(t, 8*time.Minute)
	a := suite.Devices["a"]
	labtest.CleanUp(t, func(ctx context.Context) {
		labtest.On(t, ctx, a, "rivulet", "course", "delete", "db", "--yes")
	})
	put := func(text string) labtest.Result {
		return labtest.On(t, ctx, a, "sh", "-c", `printf '%s' "$1" | rivulet vcluster create -f -`, "sh", text)
	}
	if r := put(strings.Replace(school, "carl]", "ann]", 1)); r.Code != 1 || !strings.Contains(r.ErrOut, "twice") {
		t.Fatalf("a name twice: %+v", r)
	}
	began := time.Now()
	if r := put(school); r.Code != 0 || r.Out != "course db can be used\n" {
		t.Fatalf("%+v", r)
	}
	t.Logf("three can be used after %s", time.Since(began).Round(100*time.Millisecond))
	all := []string{"db-ann", "db-ben", "db-carl"}
	for _, name := range all {
		await.NoError(t, ctx, time.Minute, "the task is in "+name, func() error {
			out, err := inside(ctx, name, "get", "configmap", "task", "-o", "jsonpath={.data.text}")
			if err == nil && out != "solve it" {
				err = fmt.Errorf("%q", out)
			}
			return err
		})
	}

	// Three pods of 100m fit, whoever has them.
	apply(t, ctx, "db-ann", strings.Replace(web, "selector:", "replicas: 2\n  selector:", 1))
	run := func(name string) int {
		out, err := inside(ctx, name, "get", "pods", "-o", `jsonpath={range .items[*]}{.status.phase}{"\n"}{end}`)
		if err != nil {
			return -1
		}
		return strings.Count(out, "Running")
	}
	await.True(t, time.Minute, "ann has two", func() bool { return run("db-ann") == 2 })
	apply(t, ctx, "db-ben", strings.Replace(web, "selector:", "replicas: 2\n  selector:", 1))
	await.True(t, time.Minute, "ben has one", func() bool { return run("db-ben") == 1 })
	await.NoError(t, ctx, time.Minute, "the other is told that the course is full", func() error {
		out, err := inside(ctx, "db-ben", "get", "events")
		if err == nil && !strings.Contains(out, "the course is full") {
			err = fmt.Errorf("%s", out)
		}
		return err
	})
	if n := run("db-ben"); n != 1 {
		t.Fatalf("ben has %d, the cap is passed", n)
	}
	if _, err := inside(ctx, "db-ann", "scale", "deployment", "web", "--replicas=1"); err != nil {
		t.Fatal(err)
	}
	await.True(t, time.Minute, "what ann gives up is ben's", func() bool { return run("db-ben") == 2 })

	t.Run("images are there before the lesson", func(t *testing.T) { lessonImages(t, ctx, a) })

	labtest.Must(t, ctx, a, "rivulet", "course", "kubeconfigs", "db", "--dir", "/tmp/class", "--role", "edit")
	if out := labtest.Must(t, ctx, a, "sh", "-c", "ls /tmp/class"); out != "db-ann.kubeconfig\ndb-ben.kubeconfig\ndb-carl.kubeconfig" {
		t.Errorf("%q", out)
	}
	states := func() string {
		var views []vcluster.View
		if err := json.Unmarshal([]byte(labtest.Must(t, ctx, a, "rivulet", "vcluster", "list", "-o", "json")), &views); err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, v := range views {
			out = append(out, string(v.State))
		}
		return strings.Join(out, " ")
	}
	began = time.Now()
	labtest.Must(t, ctx, a, "rivulet", "course", "sleep", "db")
	t.Logf("all sleep after %s", time.Since(began).Round(100*time.Millisecond))
	if got := states(); got != "Asleep Asleep Asleep" {
		t.Errorf("%s", got)
	}
	if n := len(strings.Fields(labtest.Must(t, ctx, a, "rivulet", "kubectl", "get", "pods", "-A", "-l", "app=web", "-o", "jsonpath={.items[*].metadata.name}"))); n != 3 {
		t.Errorf("%d pods go on, want 3", n)
	}

	end := func(at time.Time) {
		t.Helper()
		labtest.Must(t, ctx, a, "rivulet", "kubectl", "patch", "course", "db", "--type=merge", "-p", fmt.Sprintf(`{"spec":{"expires":%q}}`, at.UTC().Format(time.RFC3339)))
	}
	end(time.Now().Add(time.Hour))
	await.NoError(t, ctx, time.Minute, "the end is told", func() error {
		if out := labtest.On(t, ctx, a, "rivulet", "course", "list").Out; !strings.Contains(out, "its members are paused then") {
			return fmt.Errorf("%s", out)
		}
		return nil
	})
	end(time.Now())
	await.True(t, time.Minute, "all are paused", func() bool { return states() == "Paused Paused Paused" })
	end(time.Now().Add(24 * time.Hour))
	await.True(t, time.Minute, "all are resumed", func() bool { return states() == "Awake Awake Awake" })
	await.NoError(t, ctx, time.Minute, "the course can be used again", func() error {
		if r := labtest.On(t, ctx, a, "rivulet", "course", "status", "db"); r.Code != 0 || !strings.Contains(r.Out, "3, 3 can be used") {
			return fmt.Errorf("%+v", r)
		}
		return nil
	})
	await.NoError(t, ctx, 2*time.Minute, "what ann has had is counted", func() error {
		lines := strings.Split(labtest.Must(t, ctx, a, "rivulet", "course", "report", "db", "-o", "csv"), "\n")
		if len(lines) != 4 || !strings.HasPrefix(lines[1], "db-ann,") {
			t.Fatalf("%q", lines)
		}
		if cells := strings.Split(lines[1], ","); len(cells) != 6 || cells[2] == "0.00" {
			return fmt.Errorf("%q", lines[1])
		}
		return nil
	})
	began = time.Now()
	labtest.Must(t, ctx, a, "rivulet", "course", "delete", "db", "--yes")
	t.Logf("deleted in %s", time.Since(began).Round(100*time.Millisecond))
	if got := states(); got != "" {
		t.Errorf("%s are left", got)
	}
	await.True(t, time.Minute, "and their pods", func() bool {
		return labtest.Must(t, ctx, a, "rivulet", "kubectl", "get", "pods", "-A", "-l", "app=web", "-o", "name") == ""
	})
}

// lessonImages has the course bring two images, one of which no registry has. The other is kept and usable in the
// members as long as the course names it.
func lessonImages(t *testing.T, ctx context.Context, a *lab.Device) {
	const lesson, none = "school.example/lesson:1", "registry.invalid/none:1"
	ctr := func(args ...string) string {
		return labtest.Must(t, ctx, a, append([]string{"rivulet", "ctr", "-n", "k8s.io", "images"}, args...)...)
	}
	labels := func() string {
		for line := range strings.Lines(ctr("ls")) {
			if f := strings.Fields(line); len(f) > 2 && f[0] == lesson {
				return f[len(f)-1]
			}
		}
		t.Fatal("the image is gone")
		return ""
	}
	ctr("tag", mainjob.Image, lesson)
	ctr("label", lesson, "io.cri-containerd.pinned=", "rivulet.dev/share=", "io.cattle.k3s.pinned=")
	if had := labels(); strings.Contains(had, "pinned=pinned") || strings.Contains(had, "share=true") {
		t.Fatalf("the image has labels %s", had)
	}
	patch := func(images string) {
		labtest.Kubectl(t, ctx, a, "patch", "course", "db", "--type=merge", "-p", `{"spec":{"images":`+images+`}}`)
	}
	patch(fmt.Sprintf("[%q,%q]", lesson, none))
	await.NoError(t, ctx, time.Minute, "the course says what is missing", func() error {
		out, err := a.Kubectl(ctx, "get", "course", "db", "-o", `jsonpath={.status.conditions[?(@.type=="ImagesReady")].message}`)
		missing := strings.Contains(out, none+": it cannot be pulled") && strings.Contains(out, "rivulet image push FILE") ||
			strings.Contains(out, none+": less than 20 % of the disk are free") // on a machine whose disk is full
		if err == nil && (!missing || strings.Contains(out, lesson)) {
			err = fmt.Errorf("%s", out)
		}
		return err
	})
	if has := labels(); !strings.Contains(has, "io.cri-containerd.pinned=pinned") || !strings.Contains(has, "+default/db") || strings.Contains(has, "rivulet.dev/share=true") {
		t.Errorf("the image has labels %s", has)
	}
	if _, err := inside(ctx, "db-carl", "run", "lesson", "--image="+lesson, "--image-pull-policy=IfNotPresent", "--restart=Never"); err != nil {
		t.Fatal(err)
	}
	await.NoError(t, ctx, time.Minute, "a member's pod has the image", func() error {
		out, err := inside(ctx, "db-carl", "get", "pod", "lesson", "-o", `jsonpath={.status.containerStatuses[0].imageID} {.status.containerStatuses[0].state.waiting.reason} {.status.conditions[?(@.type=="PodScheduled")].message}`)
		if err == nil && !strings.Contains(out, "sha256:") && !strings.Contains(out, "the course is full") {
			err = fmt.Errorf("%s", out)
		}
		return err
	})
	if _, err := inside(ctx, "db-carl", "delete", "pod", "lesson", "--now"); err != nil {
		t.Error(err)
	}
	patch("[]")
	await.NoError(t, ctx, time.Minute, "the image is no course's any more", func() error {
		if has := labels(); strings.Contains(has, "pinned") || strings.Contains(has, "share") || strings.Contains(has, "provided") {
			return fmt.Errorf("%s", has)
		}
		return nil
	})
}
