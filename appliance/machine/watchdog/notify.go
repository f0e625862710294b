package watchdog

import (
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// Notifier sends messages to the service manager that started this process; without one it does nothing. It may be used
// concurrently.
type Notifier struct {
	log *slog.Logger

	mu   sync.Mutex
	text string
	lost bool // the service manager does not receive; logged once
}

// NewNotifier returns a Notifier for the service manager in the environment.
func NewNotifier(log *slog.Logger) *Notifier { return &Notifier{log: log} }

// Ready reports that the supervisor serves.
func (n *Notifier) Ready() { n.send(daemon.SdNotifyReady) }

// Stopping reports that the supervisor is ending on request.
func (n *Notifier) Stopping() {
	n.send(daemon.SdNotifyStopping + "\nSTATUS=Stopping; pods and the tunnel stay as they are")
}

// Alive feeds the service manager's watchdog.
func (n *Notifier) Alive() { n.send(daemon.SdNotifyWatchdog) }

// Status sets the one line of `systemctl status rivulet`; an equal line is not sent again.
func (n *Notifier) Status(text string) {
	text = strings.Join(strings.Fields(text), " ")
	n.mu.Lock()
	same := n.text == text
	n.text = text
	n.mu.Unlock()
	if !same {
		n.send("STATUS=" + text)
	}
}

func (n *Notifier) send(message string) {
	_, err := daemon.SdNotify(false, message)
	n.mu.Lock()
	first := err != nil && !n.lost
	n.lost = err != nil
	n.mu.Unlock()
	if first {
		n.log.Warn("the service manager cannot be told how we are; it may take us for dead and start rivulet again", "err", err)
	}
}

// Period is how long the service manager waits for an Alive before it considers this process hung; 0: for ever.
func Period() (time.Duration, error) { return daemon.SdWatchdogEnabled(false) }
