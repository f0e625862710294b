// Package config tests the configuration on running devices: the real binary, one
// lab of three. What a part does with its values is tested where the part is.
package config

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"rivulet/test/harness/await"
	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
)

var suite labtest.Suite

// cFile is where c's configuration is: not there when c starts.
const cFile = "/root/c.yaml"

func TestMain(m *testing.M) {
	suite.Main(m, "config", lab.Options{Devices: 3, Env: map[string][]string{"c": {"RIVULET_CONFIG=" + cFile}}})
}

// write replaces a file on a device as a careful editor does.
func write(t *testing.T, ctx context.Context, d *lab.Device, path, text string) {
	t.Helper()
	labtest.Must(t, ctx, d, "sh", "-c", `umask 077; mkdir -p "$(dirname "$1")" && printf '%s' "$2" > "$1.tmp" && mv "$1.tmp" "$1"`, "sh", path, text)
}

// shows waits until the printed status has all words of want and none of not.
func shows(t *testing.T, ctx context.Context, d *lab.Device, want []string, not ...string) {
	t.Helper()
	await.NoError(t, ctx, 30*time.Second, fmt.Sprintf("%s shows %q", d.Name, want), func() error {
		text := labtest.On(t, ctx, d, "rivulet", "status").Out
		for _, w := range want {
			if !strings.Contains(text, w) {
				return fmt.Errorf("%q is missing in:\n%s", w, text)
			}
		}
		for _, w := range not {
			if strings.Contains(text, w) {
				return fmt.Errorf("%q is there in:\n%s", w, text)
			}
		}
		return nil
	})
}
