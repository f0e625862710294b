package bundle

import (
	"context"
	"log/slog"
	"time"

	"rivulet/fabric/changes"
)

// keepLook is how often the helpers on disk are looked at: containerd and the
// kubelet call them by path whenever a pod starts, and name no cure when one is gone.
const keepLook = 5 * time.Second

// Keep unpacks the helpers again when they are damaged, until ctx ends. It returns
// with an error when that fails, to be tried again.
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
