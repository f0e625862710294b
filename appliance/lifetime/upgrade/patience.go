package upgrade

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// The service manager gives a start three minutes (TimeoutStartSec). Saving the data
// of a large cluster takes longer on a slow card, and a version that hangs never says
// that it is ready: without more time its judge would be stopped before it judges, be
// started again, and so for ever.
const (
	askEvery = 30 * time.Second
	moreTime = 3 * time.Minute
)

// patient asks the service manager for more time, again and again, until enough is
// called. Without a service manager it does nothing.
func patient(every time.Duration, log *slog.Logger) (enough func()) {
	done := make(chan struct{})
	go func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				if _, err := daemon.SdNotify(false, fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d", moreTime.Microseconds())); err != nil {
					log.Warn("systemd cannot be asked for the time that an update takes", "error", err)
				}
			}
		}
	}()
	return func() { close(done) }
}
