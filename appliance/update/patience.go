package update

import (
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"
)

// The service manager gives a start three minutes (TimeoutStartSec). Saving the data
// of a large cluster takes longer on a slow card, and a version that hangs never says
// that it is ready: without more time its judge would be stopped before it judges, be
// started again, and so for ever.
const (
	askEvery = 30 * time.Second
	moreTime = 3 * time.Minute
)

// patient asks the service manager for more time, again and again, until enough is called.
func patient(every time.Duration, log *slog.Logger) (enough func()) {
	name := os.Getenv("NOTIFY_SOCKET")
	if name == "" {
		return func() {}
	}
	to, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		log.Warn("systemd cannot be asked for the time that an update takes", "error", err)
		return func() {}
	}
	done := make(chan struct{})
	go func() {
		defer to.Close()
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				fmt.Fprintf(to, "EXTEND_TIMEOUT_USEC=%d", moreTime.Microseconds())
			}
		}
	}()
	return func() { close(done) }
}
