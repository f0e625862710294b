package upgrade

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"rivulet/fabric/changes"
)

// The service manager limits a start to 3 min (TimeoutStartSec). Saving the data of a large cluster on a slow card
// takes longer, and a hanging version never becomes ready: without more time its judge would be stopped before the
// verdict, be started again, and so on for ever.
const (
	extendEvery = 30 * time.Second
	moreTime    = 3 * time.Minute
)

// patient requests more time from the service manager repeatedly, until enough is called. Without a service manager it
// does nothing.
func patient(every time.Duration, log *slog.Logger) (enough func()) {
	ctx, enough := context.WithCancel(context.Background())
	go func() {
		for changes.Wait(ctx, every) {
			if _, err := daemon.SdNotify(false, fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d", moreTime.Microseconds())); err != nil {
				log.Warn("systemd cannot be asked for the time that an update takes", "err", err)
			}
		}
	}()
	return enough
}
