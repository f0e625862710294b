// Package addons tests what other clusters run as containers and Rivulet has
// inside: volumes, resource metrics, Services for the LAN, cluster DNS. One lab of
// two devices, a and b, serves all tests.
package addons

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"rivulet/test/harness/await"
	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
	"rivulet/test/harness/mainjob"
)

var (
	suite = labtest.Suite{Prepare: func(ctx context.Context, s *labtest.Suite) error {
		a, b = s.Devices["a"], s.Devices["b"]
		if err := labtest.Ready(ctx, s); err != nil {
			return err
		}
		return mainjob.ImportImage(ctx, s.All())
	}}
	a, b *lab.Device
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == helperArg {
		helper(os.Args[2:]) // on a device
	}
	suite.Main(m, "addons", lab.Options{Devices: 2})
}

// apply has a device's kubectl apply a manifest.
func apply(t *testing.T, ctx context.Context, d *lab.Device, manifest string) {
	t.Helper()
	if _, err := d.Run(ctx, "sh", "-c", `printf %s "$1" | rivulet kubectl apply -f -`, "apply", manifest); err != nil {
		t.Fatal(err)
	}
}

// says waits until kubectl's answer is want.
func says(t *testing.T, ctx context.Context, d *lab.Device, want string, args ...string) time.Duration {
	t.Helper()
	return await.NoError(t, ctx, 0, fmt.Sprintf("%q from kubectl %s", want, strings.Join(args, " ")), func() error {
		out, err := d.Kubectl(ctx, args...)
		if err == nil && strings.TrimSpace(out) != want {
			err = fmt.Errorf("it is %q", out)
		}
		return err
	})
}

// event waits for one that has the reason and the text.
func event(t *testing.T, ctx context.Context, d *lab.Device, reason, text string) {
	t.Helper()
	await.NoError(t, ctx, 0, "event "+reason, func() error {
		out, err := d.Kubectl(ctx, "get", "events", "-A", "--field-selector=reason="+reason, "-o", "jsonpath={.items[*].message}")
		if err == nil && !strings.Contains(out, text) {
			err = fmt.Errorf("no %q in %q", text, out)
		}
		return err
	})
}
