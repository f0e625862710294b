package upgrade

import (
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// notifier passes on what the version that is tried tells systemd, which listens
// to the main process only, and feeds systemd's watchdog meanwhile.
type notifier struct {
	path string // of the child's socket, empty without systemd
	to   *net.UnixConn
	from *net.UnixConn
	done chan struct{}
}

func startNotify(run string, log *slog.Logger) *notifier {
	n := &notifier{done: make(chan struct{})}
	name := os.Getenv("NOTIFY_SOCKET")
	if name == "" {
		return n
	}
	to, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		log.Warn("systemd cannot be told how the update goes", "error", err)
		return n
	}
	n.to = to
	path := filepath.Join(run, "trial-notify.sock")
	os.Remove(path)
	from, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		log.Warn("the version that is tried cannot tell systemd how it goes", "error", err)
		return n
	}
	n.from, n.path = from, path
	go n.pass()
	if usec, err := strconv.ParseInt(os.Getenv("WATCHDOG_USEC"), 10, 64); err == nil && usec > 0 {
		go n.feed(time.Duration(usec) * time.Microsecond / 3)
	}
	return n
}

// pass carries each message on, without what is not true of us: that we stop when
// the child does, and that it is the main process.
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

func (n *notifier) feed(every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-n.done:
			return
		case <-tick.C:
			n.send("WATCHDOG=1")
		}
	}
}

func (n *notifier) send(message string) {
	if n.to != nil && message != "" {
		_, _ = n.to.Write([]byte(message))
	}
}

func (n *notifier) close() {
	close(n.done)
	if n.from != nil {
		n.from.Close()
		os.Remove(n.path)
	}
	if n.to != nil {
		n.to.Close()
	}
}
