package hostile

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"rivulet/test/harness/labtest"
)

// An image, which anybody writes, orders nothing: the plugin of containerd that starts programs of the host by labels
// of images is not there, and the index of a checkpoint cannot be read.
func TestContainerdTakesNoOrders(t *testing.T) {
	ctx := suite.Bounded(t, 2*time.Minute)
	plugins := labtest.Must(t, ctx, victim, "rivulet", "ctr", "plugins", "ls")
	if !regexp.MustCompile(`(?m)\srestart\s.*\sskip\s*$`).MatchString(plugins) || !regexp.MustCompile(`(?m)\scri\s.*\sok\s*$`).MatchString(plugins) {
		t.Errorf("containerd's plugins:\n%s", plugins)
	}
	read := func(name, text string) (string, error) {
		return victim.Run(ctx, "sh", "-c", `set -e
d=sha256:$(printf %s "$1" | sha256sum | cut -d' ' -f1)
printf %s "$1" | rivulet ctr content ingest --expected-digest $d "$2"
rivulet ctr content get $d`, "sh", text, name)
	}
	if out, err := read("index", `{"schemaVersion":2,"manifests":[]}`); err != nil || !strings.Contains(out, "manifests") {
		t.Errorf("another index: %q %v", out, err)
	}
	if out, err := read("checkpoint", `{"schemaVersion":2,"manifests":[],"annotations":{"org.criu.checkpoint.container.name":"x"}}`); err == nil || !strings.Contains(err.Error(), "checkpoint of the container") {
		t.Errorf("the index of a checkpoint: %q %v", out, err)
	}
}
