package clock

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"rivulet/fabric/changes"
)

// Machine is the System of this machine.
func Machine(log *slog.Logger) System { return machine{log} }

type machine struct{ log *slog.Logger }

func (machine) Now() time.Time { return time.Now().Round(0) }

func (machine) Boot() time.Duration { return changes.BootTime() }

func (machine) Set(t time.Time) error {
	ts := unix.NsecToTimespec(t.UnixNano())
	if err := unix.ClockSettime(unix.CLOCK_REALTIME, &ts); err != nil {
		if errors.Is(err, unix.EPERM) {
			return errors.New("not permitted (CAP_SYS_TIME is missing, as in most containers)")
		}
		return err
	}
	return nil
}

// timesyncMark is created by systemd-timesyncd after synchronization; a boot deletes it.
const timesyncMark = "/run/systemd/timesync/synchronized"

func (machine) Discipline() Discipline {
	var t unix.Timex // Modes 0: read only
	state, err := unix.Adjtimex(&t)
	_, mark := os.Stat(timesyncMark)
	d := Discipline{Synchronized: mark == nil || err == nil && state != unix.TIME_ERROR && t.Status&unix.STA_UNSYNC == 0}
	if err == nil && t.Status&unix.STA_NANO != 0 {
		d.Offset = time.Duration(t.Offset)
	} else if err == nil {
		d.Offset = time.Duration(t.Offset) * time.Microsecond
	}
	return d
}

func (machine) Chip() (time.Time, error) {
	// hwclock(8): the third line is LOCAL if the chip runs in local time.
	if raw, err := os.ReadFile("/etc/adjtime"); err == nil && bytes.Contains(raw, []byte("\nLOCAL")) {
		return time.Time{}, errors.New("clock: the chip has local time")
	}
	f, err := os.Open("/dev/rtc0")
	if err != nil {
		return time.Time{}, fmt.Errorf("clock: %w", err)
	}
	defer f.Close()
	r, err := unix.IoctlGetRTCTime(int(f.Fd()))
	if err != nil {
		return time.Time{}, fmt.Errorf("clock: read the chip: %w", err)
	}
	return time.Date(int(r.Year)+1900, time.Month(r.Mon+1), int(r.Mday), int(r.Hour), int(r.Min), int(r.Sec), 0, time.UTC), nil
}

// Changes uses a timer that the kernel cancels when the clock is set.
func (m machine) Changes(ctx context.Context) <-chan struct{} {
	ch := make(chan struct{}, 1)
	fd, err := unix.TimerfdCreate(unix.CLOCK_REALTIME, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		m.log.Debug("the kernel cannot tell when the clock is set; looking now and then", "err", err)
		return ch
	}
	f := os.NewFile(uintptr(fd), "timerfd")
	context.AfterFunc(ctx, func() { f.Close() })
	go func() {
		defer f.Close()
		for ctx.Err() == nil {
			// The end of the timer, in a day, has no meaning.
			end := unix.ItimerSpec{Value: unix.NsecToTimespec(time.Now().Add(24 * time.Hour).UnixNano())}
			if err := unix.TimerfdSettime(fd, unix.TFD_TIMER_ABSTIME|unix.TFD_TIMER_CANCEL_ON_SET, &end, nil); err != nil && !errors.Is(err, unix.ECANCELED) {
				m.log.Debug("the kernel cannot tell when the clock is set; looking now and then", "err", err)
				return
			}
			_, err := f.Read(make([]byte, 8))
			switch {
			case errors.Is(err, unix.ECANCELED):
				changes.Poke(ch)
			case err != nil:
				return
			}
		}
	}()
	return ch
}
