package upgrade

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"rivulet/fabric/changes"
)

// notifier forwards the tried version's messages to systemd, which accepts them from the main process only, and feeds
// systemd's watchdog meanwhile.
type notifier struct {
	path string // of the child's socket, empty without systemd
	from *net.UnixConn
	stop context.CancelFunc // ends feed
}

func startNotify(run string, log *slog.Logger) *notifier {
	ctx, stop := context.WithCancel(context.Background())
	n := &notifier{stop: stop}
	if listens, err := daemon.SdNotify(false, daemon.SdNotifyWatchdog); err != nil {
		log.Warn("systemd cannot be told how the update goes", "err", err)
		return n
	} else if !listens {
		return n
	}
	path := filepath.Join(run, "trial-notify.sock")
	os.Remove(path)
	from, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		log.Warn("the version that is tried cannot tell systemd how it goes", "err", err)
		return n
	}
	n.from, n.path = from, path
	go n.pass()
	if usec, err := strconv.ParseInt(os.Getenv("WATCHDOG_USEC"), 10, 64); err == nil && usec > 0 {
		go n.feed(ctx, time.Duration(usec)*time.Microsecond/3)
	}
	return n
}

// pass forwards each message, without what is true only of the child: that it stops, and that it is the main process.
func (n *notifier) pass() {
	buf := make([]byte, 8<<10)
	for {
		size, err := n.from.Read(buf)
		if err != nil {
			return
		}
		var lines []string
		for _, line := range strings.Split(string(buf[:size]), "\n") {
			if line != "STOPPING=1" && !strings.HasPrefix(line, "MAINPID=") {
				lines = append(lines, line)
			}
		}
		n.send(strings.Join(lines, "\n"))
	}
}

func (n *notifier) feed(ctx context.Context, every time.Duration) {
	for changes.Wait(ctx, every) {
		n.send(daemon.SdNotifyWatchdog)
	}
}

func (n *notifier) send(message string) {
	if message != "" {
		_, _ = daemon.SdNotify(false, message) // it does nothing without systemd
	}
}

func (n *notifier) close() {
	n.stop()
	if n.from != nil {
		n.from.Close()
		os.Remove(n.path)
	}
}
