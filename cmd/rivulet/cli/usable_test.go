package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"testing"

	"rivulet/appliance/state/paths"
	"rivulet/test/harness/locks"
)

// Where nobody listens at the API server's address every verb says what to do, and not what the kernel said.
func TestAPIServerThatIsDown(t *testing.T) {
	dir := t.TempDir()
	kubeconfig := fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: default\nclusters: [{name: default, cluster: {server: %q}}]\ncontexts: [{name: default, context: {cluster: default, user: default}}]\nusers: [{name: default, user: {token: x}}]\n", "https://"+locks.Address(t))
	if err := os.WriteFile(paths.Kubeconfig(dir), []byte(kubeconfig), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBECONFIG", "")
	os.Unsetenv("KUBECONFIG")
	const want = "rivulet is not running here; start it with: sudo rivulet run"
	for _, line := range []string{"pods", "why web", "drain b", "offload lab", "unoffload lab", "close lab", "kubectl get pods"} {
		if _, out, err := execute(t, dir, strings.Fields(line)); err == nil || err.Error() != want || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v %s, want %s", line, err, out, want)
		}
	}
}

func TestWithSudo(t *testing.T) {
	for msg, want := range map[string]string{"only root reads it; use sudo": "only root reads it; sudo rivulet pods -n lab", "use sudo; or not": "use sudo; or not"} {
		if got := withSudo(msg, []string{"pods", "-n", "lab"}); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// With NO_COLOR a picture is drawn in the terminal's own colours.
func TestNoColour(t *testing.T) {
	for set, want := range map[string]bool{"": true, "1": false} {
		t.Setenv("NO_COLOR", set)
		if drawn, err := drawQR("rivulet://invite/A"); err != nil || strings.Contains(drawn, "\x1b") != want || !strings.Contains(drawn, "▀") {
			t.Errorf("NO_COLOR=%q: %q %v", set, drawn, err)
		}
	}
}
