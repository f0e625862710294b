package power

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"rivulet/test/harness/await"
	"rivulet/test/harness/labtest"
	"rivulet/test/harness/mainjob"
)

const course = `apiVersion: rivulet.dev/v1alpha1
kind: Course
metadata: {name: db}
spec:
  names: [ann, ben]
  cap: {cpu: 500m}
  manifests: |
    apiVersion: v1
    kind: ConfigMap
    metadata: {name: task}
    data: {text: solve it}
`

const app = `apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: web, image: "` + mainjob.Image + `", resources: {requests: {cpu: 50m}}}]
`

// The power goes while a virtual cluster of its own and a member of a course are awake, and another member sleeps. All are
// there afterwards, with what was in them, their applications run in new sandboxes, and the course can be used.
func TestACourseAfterAPowerCut(t *testing.T) {
	ctx, a, _ := need(t, 8*time.Minute)
	labtest.CleanUp(t, func(ctx context.Context) {
		labtest.On(t, ctx, a, "rivulet", "course", "delete", "db", "--yes")
		labtest.On(t, ctx, a, "rivulet", "vcluster", "delete", "zoe", "--yes")
	})
	labtest.Must(t, ctx, a, "rivulet", "vcluster", "create", "zoe")
	labtest.Must(t, ctx, a, "sh", "-c", `printf %s "$1" | rivulet vcluster create -f -`, "sh", course)
	inside := func(name string, args ...string) (string, error) {
		return a.Run(ctx, append([]string{"rivulet", "vcluster", "connect", name, "--", "kubectl"}, args...)...)
	}
	all := []string{"db-ann", "db-ben", "zoe"}
	marked := func(name string) (string, error) {
		return inside(name, "exec", "deploy/web", "--", "sh", "-c", "test -e /dev/shm/before && echo old || echo new")
	}
	for _, name := range all {
		labtest.Must(t, ctx, a, "sh", "-c", `printf %s "$2" > /tmp/app.yaml && rivulet vcluster connect "$1" -- kubectl apply -f /tmp/app.yaml`, "sh", name, app)
	}
	for _, name := range all {
		await.NoError(t, ctx, 2*time.Minute, "the application of "+name+" runs", func() error {
			_, err := inside(name, "exec", "deploy/web", "--", "sh", "-c", "echo > /dev/shm/before")
			return err
		})
		if out, err := marked(name); err != nil || strings.TrimSpace(out) != "old" {
			t.Fatalf("%s: %q %v", name, out, err)
		}
		if _, err := inside(name, "create", "configmap", "homework", "--from-literal=of="+name); err != nil {
			t.Fatal(err)
		}
	}
	labtest.Must(t, ctx, a, "rivulet", "vcluster", "sleep", "db-ben")
	pause(ctx, kept)

	if err := a.Kill(ctx, "power"); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	if err := a.Start(ctx); err != nil {
		t.Fatal(err)
	}
	peered(t, ctx)
	t.Logf("ready and peered %.1f s after the cut", time.Since(begun).Seconds())
	await.NoError(t, ctx, 2*time.Minute, "the course can be used", func() error {
		r := labtest.On(t, ctx, a, "rivulet", "course", "status", "db")
		if r.Code != 0 || !strings.Contains(r.Out, "2, 2 can be used") {
			return fmt.Errorf("exit code %d: %s%s", r.Code, r.Out, r.ErrOut)
		}
		return nil
	})
	for _, name := range all {
		await.NoError(t, ctx, 2*time.Minute, "the application of "+name+" runs in a new sandbox", func() error {
			out, err := marked(name)
			if err == nil && strings.TrimSpace(out) != "new" {
				err = errors.New(out)
			}
			return err
		})
		if out, err := inside(name, "get", "configmap", "homework", "-o", "jsonpath={.data.of}"); err != nil || out != name {
			t.Errorf("the homework of %s: %q %v", name, out, err)
		}
	}
	if out, err := inside("db-ann", "get", "configmap", "task", "-o", "jsonpath={.data.text}"); err != nil || out != "solve it" {
		t.Errorf("the task of the course: %q %v", out, err)
	}
	if out := labtest.Must(t, ctx, a, "rivulet", "course", "report", "db"); !strings.Contains(out, "db-ben") {
		t.Errorf("%s", out)
	}
}
