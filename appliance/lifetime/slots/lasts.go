package slots

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"time"

	"rivulet/fabric/changes"
)

// lasts is how long rivulet runs until a start counts as one that came up: in that time somebody can ask the device.
const lasts = 2 * time.Minute

// Lasts takes the initrd's count of starts away (layout.Starts) once this one has lasted, or when ctx ends, which is an end
// in order.
func Lasts(ctx context.Context, starts string, log *slog.Logger) {
	changes.Wait(ctx, lasts)
	if err := os.Remove(starts); err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.Warn("the starts of this slot stay counted: after some more the other slot is started", "err", err)
	}
}
