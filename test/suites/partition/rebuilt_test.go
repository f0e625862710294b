package partition

import (
	"encoding/json"
	"fmt"
	"os"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/offload"
	"rivulet/offload/policy"
	"rivulet/test/harness/await"
	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
)

// Home dies with all it knew, and is made anew under the same name. What the old one
// left at the provider is not the new one's: it runs on, is listed, goes after a time of silence
// (offload/provider/tenants has the tests of that), and by hand sooner. The new one has twins of its
// own in the meantime. (For the tests after this one a is another cluster, which is all the same to them.)
func TestHomeMadeAnew(t *testing.T) {
	ctx := suite.Bounded(t, 6*time.Minute)
	a, b := begin(t, ctx)
	const left = `{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"left","labels":{"rivulet.dev/offload":"remote"}}},`
	web := row{in: "left", name: "web", kind: "Deployment", n: 1}
	s := &shelf{t: t, ctx: ctx, a: client(t, ctx, a), b: client(t, ctx, b), was: map[string][]corev1.Pod{}}
	apply(t, ctx, a, left+web.manifest()+`]}`)
	await.NoError(t, ctx, 2*time.Minute, "a pod runs on b", func() error { return s.start(web) })
	old := string(labtest.Status(t, ctx, a).ID)
	twin := func(origin string) (string, *corev1.Pod) {
		t.Helper()
		list, err := s.b.CoreV1().Pods("").List(ctx, metav1.ListOptions{LabelSelector: policy.OriginLabel + "=" + origin + ",app=web"})
		if err != nil {
			t.Fatal(err)
		}
		for i := range list.Items {
			if p := &list.Items[i]; running(p) {
				return p.Namespace, p
			}
		}
		return "", nil
	}
	oldTwin, before := twin(old)
	if before == nil {
		t.Fatal("no pod of the old home on b")
	}

	if err := a.Kill(ctx, "power"); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(a.Path("/var/lib/rivulet")); err != nil {
		t.Fatal(err)
	}
	if err := a.Start(ctx); err != nil {
		t.Fatal(err)
	}
	await.NoError(t, ctx, 2*time.Minute, "a is a cluster again", func() error {
		st, err := a.Status(ctx)
		if err == nil && !st.Ready {
			err = fmt.Errorf("waits for %v", st.Waiting)
		}
		return err
	})
	fresh := string(labtest.Status(t, ctx, a).ID)
	if fresh == old {
		t.Fatal("it is the same cluster")
	}
	await.NoError(t, ctx, time.Minute, "the new one knows b", func() error { return a.WaitPeered(ctx, 1) })
	if _, now := twin(old); now == nil || now.UID != before.UID || containerOf(now) != containerOf(before) {
		t.Errorf("what the old one left does not run on: %v", now)
	}
	s.a = client(t, ctx, a)
	bring(t, a)
	apply(t, ctx, a, left+web.manifest()+`]}`)
	await.NoError(t, ctx, 2*time.Minute, "the same namespace of the new one has another twin", func() error {
		newTwin, p := twin(fresh)
		if p == nil || newTwin == oldTwin {
			return fmt.Errorf("%q, that of the old one is %q", newTwin, oldTwin)
		}
		return nil
	})

	tenants := func() map[string]offload.Consumer {
		var list []offload.Consumer
		if err := json.Unmarshal([]byte(labtest.Must(t, ctx, b, "rivulet", "tenants", "-o", "json")), &list); err != nil {
			t.Fatal(err)
		}
		out := map[string]offload.Consumer{}
		for _, c := range list {
			out[string(c.ID)] = c
		}
		return out
	}
	await.NoError(t, ctx, time.Minute, "both are listed, with what each has", func() error {
		list := tenants()
		was, is := list[old], list[fresh]
		if was.Pods != 1 || was.Twins["left"] != oldTwin || is.Pods != 1 {
			return fmt.Errorf("old: %+v\nnew: %+v", was, is)
		}
		return nil
	})
	// It is a peer still, and for ten minutes nobody can know that it will not be back: b's owner says so.
	labtest.Must(t, ctx, b, "rivulet", "unpeer", old, "--force", "--yes")
	await.NoError(t, ctx, time.Minute, "what the old one left is gone, and only that", func() error {
		list := tenants()
		_, there := list[old]
		if _, p := twin(old); there || p != nil || list[fresh].Pods != 1 {
			return fmt.Errorf("%+v", list)
		}
		return nil
	})
}

// bring brings the image to a device that has lost it.
func bring(t *testing.T, d *lab.Device) {
	t.Helper()
	labtest.Must(t, t.Context(), d, "rivulet", "ctr", "images", "import", "--label", "rivulet.dev/share=true", "/opt/rivulet/demo-web.tar")
}
