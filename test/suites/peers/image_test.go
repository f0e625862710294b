package peers

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"rivulet/test/harness/await"
	"rivulet/test/harness/labtest"
	"rivulet/test/harness/mainjob"
)

// A pod away runs from an image that only its home has, imported there; no registry has it.
// Where home does not give images it waits.
func TestImageFromHome(t *testing.T) {
	ctx := suite.Bounded(t, 8*time.Minute)
	if err := mainjob.ImportImage(ctx, suite.All()[:1]); err != nil {
		t.Fatal(err)
	}
	if have := labtest.Must(t, ctx, b, "rivulet", "ctr", "images", "ls", "-q"); strings.Contains(have, mainjob.Image) {
		t.Fatalf("b has the image: %s", have)
	}
	labtest.Must(t, ctx, a, "rivulet", "offload", "afar", "--create", "--when", "remote", "--to", "b")
	labtest.CleanUp(t, func(ctx context.Context) {
		labtest.On(t, ctx, a, "rivulet", "kubectl", "delete", "namespace", "afar", "--wait=false")
	})
	labtest.Kubectl(t, ctx, a, "-n", "afar", "create", "deployment", "web", "--image", mainjob.Image)
	await.NoError(t, ctx, 5*time.Minute, "it runs on b with the image of a", func() error {
		r := labtest.On(t, ctx, a, "rivulet", "kubectl", "-n", "afar", "get", "pods", "-o", "jsonpath={.items[*].spec.nodeName} {.items[*].status.containerStatuses[*].ready}")
		if r.Out != "b true" {
			return fmt.Errorf("%s%s", r.Out, r.ErrOut)
		}
		return nil
	})
	if have := labtest.Must(t, ctx, b, "rivulet", "ctr", "images", "ls", "-q"); !strings.Contains(have, "tenants.rivulet.invalid/") || strings.Contains(have, "\n"+mainjob.Image) {
		t.Errorf("b has it under another name than a tenant's: %s", have)
	}
	// The status at home names neither that nor requests that nobody wrote, which end kubectl describe node.
	state := labtest.Kubectl(t, ctx, a, "-n", "afar", "get", "pods", "-o", "jsonpath={.items[0].status.containerStatuses[0]}")
	if strings.Contains(state, "invalid") || !strings.Contains(state, `"image":"`+mainjob.Image+`"`) || strings.Contains(state, "allocatedResources") {
		t.Errorf("its status is %s", state)
	}
	if out := labtest.Kubectl(t, ctx, a, "describe", "node", "b"); !strings.Contains(out, "afar") {
		t.Errorf("the node is described as %s", out)
	}
}
