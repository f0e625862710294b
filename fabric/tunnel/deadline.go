package tunnel

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"rivulet/fabric/changes"
)

// deadline is the time until which a leased configuration may be in force. Two timers hold it while such a
// configuration has a device:
//
//	closeBefore ahead  the server closes the device; the process stays
//	at the deadline    the kernel kills a process that has not done so, because it is stopped, starved or was suspended
//
// A killed process runs no further instruction, also if it was stopped by SIGSTOP or the machine was suspended. So no
// packet leaves after the deadline, wherever it waits in the process. All fields are guarded by Server.mu.
type deadline struct {
	at     time.Duration // on CLOCK_BOOTTIME; 0 before the first
	closes *time.Timer   // nil while there is no device with a leased configuration
	kills  killTimer
}

// closeBefore is longer than the device takes to close.
const closeBefore = 500 * time.Millisecond

var errNoLease = errors.New("tunnel: the lease of the gateway is not held, or has run out: the tunnel starts by itself once this device holds it")

// left is the time until the device has to be closed.
func (d *deadline) left() time.Duration { return d.at - closeBefore - changes.BootTime() }

// arm sets both timers.
func (d *deadline) arm(closeDevice func()) error {
	if err := d.kills.set(d.at); err != nil {
		return err
	}
	if d.closes != nil {
		d.closes.Stop()
	}
	d.closes = time.AfterFunc(d.left(), closeDevice)
	return nil
}

// disarm is for a device that is closed.
func (d *deadline) disarm() error {
	if d.closes == nil {
		return nil
	}
	d.closes.Stop()
	d.closes = nil
	return d.kills.set(0)
}

// SetDeadline moves the deadline of a leased Config to at, on CLOCK_BOOTTIME. A time before the present deadline changes
// nothing; one in the past, or less than closeBefore ahead, is an error. It reports whether a Config is in force: after a
// deadline has passed, none is until the next Apply.
func (s *Server) SetDeadline(at time.Duration) (configured bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at-closeBefore <= changes.BootTime() {
		return false, errNoLease
	}
	s.deadline.at = max(s.deadline.at, at)
	if s.deadline.closes != nil {
		if err := s.deadline.arm(s.expire); err != nil {
			return false, err
		}
	}
	return s.cfg.Port != 0, nil
}

// expire closes the device of a leased configuration whose deadline has come.
func (s *Server) expire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.deadline.closes != nil && s.deadline.left() <= 0 {
		s.log.Warn("the lease of the gateway was not renewed; the tunnel is closed until this device holds it again")
		s.close()
	}
}

// deadlineRequest and deadlineAnswer are the bodies of PUT /v1/deadline.
type deadlineRequest struct {
	At time.Duration `json:"at"` // ns on CLOCK_BOOTTIME
}

type deadlineAnswer struct {
	Configured bool `json:"configured"`
}

func (s *Server) answerDeadline(w http.ResponseWriter, r *http.Request) {
	var in deadlineRequest
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<10)).Decode(&in); err != nil {
		http.Error(w, "tunnel: the deadline is unreadable: "+err.Error(), http.StatusBadRequest)
		return
	}
	configured, err := s.SetDeadline(in.At)
	if err != nil {
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(deadlineAnswer{configured}) // the client has gone
}

// deadlineLimit bounds one request: the next one comes soon.
const deadlineLimit = time.Second

// Deadline moves the deadline of a leased Config to at, on CLOCK_BOOTTIME (changes.BootTime). It reports whether the process
// has a Config in force. If not, because it is new or an earlier deadline has passed, it needs an Apply. A process that
// is restarted gets the latest deadline before its Config.
func (c *Controller) Deadline(ctx context.Context, at time.Duration) (configured bool, err error) {
	c.mu.Lock()
	c.deadline = max(c.deadline, at)
	c.mu.Unlock()
	return c.putDeadline(ctx, at)
}

func (c *Controller) putDeadline(ctx context.Context, at time.Duration) (configured bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, deadlineLimit)
	defer cancel()
	body, err := json.Marshal(deadlineRequest{at})
	if err != nil {
		return false, fmt.Errorf("tunnel: %w", err)
	}
	var out deadlineAnswer
	if err := c.call(ctx, http.MethodPut, "/v1/deadline", bytes.NewReader(body), &out); err != nil {
		return false, err
	}
	if !out.Configured {
		c.doubt()
	}
	return out.Configured, nil
}

// known is the latest deadline, on CLOCK_BOOTTIME.
func (c *Controller) known() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.deadline
}

// doubt is called when the process has no configuration: the next Apply sends it, whatever it is.
func (c *Controller) doubt() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sure = false
}
