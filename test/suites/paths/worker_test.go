package paths

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"rivulet/appliance/api"
	"rivulet/test/harness/await"
	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
	"rivulet/test/harness/mainjob"
)

// A device behind a router joins a cluster outside of it: the API, logs and exec work through its own connection, also
// where no UDP passes.
func TestAWorkerBehindARouter(t *testing.T) {
	ctx := suite.Bounded(t, 6*time.Minute)
	_, rb := behindRouters(t, ctx)
	rb.rules(t)
	b, c := suite.Devices["b"], suite.Devices["c"]
	if _, err := c.Status(ctx); err != nil { // another test has ended it
		if err := c.Start(ctx); err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range []*lab.Device{b, c} {
		if err := d.WaitReady(ctx); err != nil {
			t.Fatal(err)
		}
	}
	var made struct{ Code string }
	if err := json.Unmarshal([]byte(labtest.Output(t, ctx, c, "rivulet", "token", "create", "-o", "json")), &made); err != nil {
		t.Fatal(err)
	}
	labtest.Must(t, ctx, b, "rivulet", "join", made.Code, "--reset", "--yes")
	if err := mainjob.ImportImage(ctx, []*lab.Device{b}); err != nil {
		t.Fatal(err)
	}
	labtest.Kubectl(t, ctx, c, "wait", "--for=condition=Ready", "--timeout=90s", "node/b")
	apply := fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"there"},"spec":{"terminationGracePeriodSeconds":1,"nodeSelector":{"kubernetes.io/hostname":"b"},"containers":[{"name":"web","image":%q}]}}`, mainjob.Image)
	labtest.Must(t, ctx, c, "sh", "-c", `printf %s "$1" | rivulet kubectl apply -f -`, "apply", apply)
	labtest.Kubectl(t, ctx, c, "wait", "--for=condition=Ready", "--timeout=60s", "pod/there")
	by := func(path string) {
		t.Helper()
		await.NoError(t, ctx, 90*time.Second, "the pod is reached by "+path, func() error {
			var st api.Status
			if err := json.Unmarshal([]byte(labtest.On(t, ctx, c, "rivulet", "status", "-o", "json").Out), &st); err != nil {
				return err
			}
			if len(st.Nodes) != 1 || !strings.HasPrefix(st.Nodes[0].Path, path) {
				return fmt.Errorf("%+v", st.Nodes)
			}
			out, err := c.Kubectl(ctx, "exec", "there", "--", "web", "show", "http://127.0.0.1:8080/")
			if err == nil && !strings.Contains(out, "there") {
				err = errors.New(out)
			}
			return err
		})
	}
	by("direct 10.77.0.242:")
	rb.rules(t, "0.0.0.0")
	by("stream")
	rb.rules(t)
	by("direct")
}
