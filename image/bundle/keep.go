package bundle

import (
	"context"
	"log/slog"
	"time"

	"rivulet/fabric/changes"
)

// keepLook is how often the helpers on disk are checked: containerd and the kubelet run them by path whenever a pod
// starts, and report no cure if one is missing.
const keepLook = 5 * time.Second

// Keep checks the helpers until ctx ends and unpacks damaged ones again. If that fails it returns an error, and the
// caller runs it again.
func (d Dir) Keep(ctx context.Context, log *slog.Logger) error {
	for changes.Wait(ctx, keepLook) {
		if d.Intact() {
			continue
		}
		if _, err := Unpack(d.root, log); err != nil {
			return err
		}
	}
	return nil
}
