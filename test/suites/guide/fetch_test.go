package guide

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"rivulet/test/harness/await"
	"rivulet/test/harness/labtest"
)

// image push --to makes sure that a peer can fetch the image, which then runs there; image rm --unused frees the
// peer's room of it. A device that does not give images, or a peer that is none, is an error with a cure.
func TestImagesForAPeer(t *testing.T) {
	ctx := suite.Bounded(t, 5*time.Minute)
	a, b := suite.Devices["a"], suite.Devices["b"]
	push := func(to string) labtest.Result {
		return labtest.On(t, ctx, a, "rivulet", "image", "push", "--to", to, "/opt/rivulet/demo-web.tar")
	}
	if r := push("nobody"); r.Code == 0 || !strings.Contains(r.ErrOut, "nobody is no peer that runs pods of this cluster now; see: rivulet peers") {
		t.Errorf("to nobody: %+v", r)
	}
	if r := push("b"); r.Code != 0 || !strings.Contains(r.Out, "fetched from here when a pod needs it: b") {
		t.Fatalf("to b: %+v", r)
	}
	labtest.Must(t, ctx, a, "rivulet", "offload", "images", "--create", "--when", "remote")
	labtest.Kubectl(t, ctx, a, "-n", "images", "create", "deployment", "web", "--image=rivulet.dev/demo-web:1")
	labtest.Kubectl(t, ctx, a, "-n", "images", "wait", "--for=condition=Available", "deployment/web", "--timeout=2m")
	if out := labtest.Must(t, ctx, b, "rivulet", "image", "rm", "--unused"); strings.Contains(out, "demo-web") {
		t.Errorf("an image in use is removed: %s", out)
	}
	labtest.Kubectl(t, ctx, a, "delete", "namespace", "images")
	await.NoError(t, ctx, time.Minute, "the image is unused on b and removed", func() error {
		if out := labtest.Must(t, ctx, b, "rivulet", "image", "rm", "--unused"); !strings.Contains(out, "rivulet.dev/demo-web:1 is removed") {
			return fmt.Errorf("%s", out)
		}
		return nil
	})
	if out := labtest.Must(t, ctx, a, "rivulet", "image", "rm", "--unused"); !strings.Contains(out, "no image is unused") {
		t.Errorf("what was pushed is removed: %s", out)
	}

	labtest.Must(t, ctx, a, "sh", "-c", "mkdir -p /etc/rivulet && echo 'peerImages: false' >/etc/rivulet/config.yaml && rivulet config reload")
	if r := push("b"); r.Code == 0 || !strings.Contains(r.ErrOut, "peerImages is false") {
		t.Errorf("peerImages is false: %+v", r)
	}
	labtest.Must(t, ctx, a, "sh", "-c", "rm /etc/rivulet/config.yaml && rivulet config reload && rivulet image rm --yes rivulet.dev/demo-web:1")
}
