package watchdog

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

var quiet = slog.New(slog.DiscardHandler)

// A supervisor that is well is said to live four times a period; one with a check
// that fails is given the check's patience and then not any more, until it holds.
func TestTheServiceManagerIsFedWhileAllHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var fed atomic.Int32
		var fails atomic.Bool
		var said []string
		f := &Feeder{Log: quiet, Alive: func() { fed.Add(1) }, Checks: []Check{{
			Name: "the disk", Limit: time.Minute, Patience: 5 * time.Minute,
			Probe: func(context.Context) error {
				if fails.Load() {
					return errors.New("no; buy another")
				}
				return nil
			},
			Report: func(err error) {
				if err != nil {
					said = append(said, err.Error())
				} else {
					said = append(said, "well")
				}
			},
		}}}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go f.Run(ctx, time.Minute)
		within := func(d time.Duration, low, high int32) {
			t.Helper()
			fed.Store(0)
			time.Sleep(d)
			if n := fed.Load(); n < low || n > high {
				t.Errorf("fed %d times in %s, want %d to %d", n, d, low, high)
			}
		}
		time.Sleep(time.Second) // what follows does not begin or end in the moment of a look
		within(time.Minute, 4, 4)
		fails.Store(true)
		within(4*time.Minute, 16, 16) // patience
		within(2*time.Minute, 4, 5)   // runs out 5 minutes after the first that failed
		within(10*time.Minute, 0, 0)
		fails.Store(false)
		within(time.Minute, 4, 4)
		if got := strings.Join(said, ","); got != "no; buy another,well" {
			t.Errorf("reported %q, want each change once", got)
		}
	})
}

// A probe that hangs is no reason to hang ourselves, and no second one is started.
func TestAHangingProbeIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var fed, calls atomic.Int32
		release := make(chan struct{})
		f := &Feeder{Log: quiet, Alive: func() { fed.Add(1) }, Checks: []Check{{
			Name: "the disk", Limit: 2 * time.Minute,
			Probe: func(context.Context) error { calls.Add(1); <-release; return nil },
		}}}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go f.Run(ctx, time.Minute)
		time.Sleep(3 * time.Minute)
		at := fed.Load()
		if at < 7 || at > 9 {
			t.Errorf("fed %d times, want about 8: the two minutes that it may take", at)
		}
		time.Sleep(time.Hour)
		if fed.Load() != at || calls.Load() != 1 {
			t.Errorf("fed %d more times, probe called %d times while it hung", fed.Load()-at, calls.Load())
		}
		close(release)
		time.Sleep(time.Minute)
		if fed.Load() == at {
			t.Error("not fed again after the probe returned")
		}
	})
}

// The bound on the wear of the card.
func TestARareProbeIsRare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int32
		f := &Feeder{Log: quiet, Alive: func() {}, Checks: []Check{{
			Name: "the disk", Every: DiskEvery, Limit: time.Minute, Probe: func(context.Context) error { calls.Add(1); return nil },
		}}}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go f.Run(ctx, time.Minute)
		time.Sleep(24 * time.Hour)
		if n := calls.Load(); n > 145 {
			t.Errorf("%d probes a day, want 144", n)
		}
	})
}

func TestDiskProbe(t *testing.T) {
	dir := t.TempDir()
	probe := Disk(dir)
	for range 3 {
		if err := probe(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if fi, err := os.Stat(filepath.Join(dir, "probe")); err != nil || fi.Size() > 64 {
		t.Errorf("%v %v, want one small file", fi, err)
	}
	if err := Disk(filepath.Join(dir, "gone"))(t.Context()); err == nil || !strings.Contains(err.Error(), "; ") {
		t.Errorf("%v, want an error with a cure", err)
	}
}

// A read-only disk is an error; a full one is not the watchdog's business.
func TestDiskProbeOnARealFileSystem(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to mount")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("needs to mount a tmpfs: %v", err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	if err := os.WriteFile(filepath.Join(dir, "big"), make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}
	if err := Disk(dir)(t.Context()); err != nil {
		t.Errorf("a full disk: %v", err)
	}
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	if err := Disk(dir)(t.Context()); err == nil || !strings.Contains(err.Error(), "read-only") {
		t.Errorf("a read-only disk: %v", err)
	}
}

// What a service manager hears, on a socket like its own.
func TestNotifier(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	n := NewNotifier(quiet)
	n.Status("Starting:\n node")
	n.Status("Starting: node")
	n.Ready()
	n.Alive()
	n.Stopping()
	for _, want := range []string{"STATUS=Starting: node", "READY=1", "WATCHDOG=1", "STOPPING=1\nSTATUS=Stopping; pods and the tunnel stay as they are"} {
		buf := make([]byte, 512)
		l.SetReadDeadline(time.Now().Add(5 * time.Second))
		k, err := l.Read(buf)
		if err != nil || string(buf[:k]) != want {
			t.Errorf("heard %q, %v; want %q", buf[:k], err, want)
		}
	}
}

func TestNobodyToNotify(t *testing.T) {
	var log strings.Builder
	t.Setenv("NOTIFY_SOCKET", "")
	n := NewNotifier(slog.New(slog.NewTextHandler(&log, nil)))
	n.Ready()
	if log.Len() != 0 {
		t.Errorf("without a service manager: %s", log.String())
	}
	t.Setenv("NOTIFY_SOCKET", filepath.Join(t.TempDir(), "gone"))
	n.Alive()
	n.Alive()
	if strings.Count(log.String(), "cannot be told") != 1 {
		t.Errorf("a service manager that is gone is to be told of once: %s", log.String())
	}
	t.Setenv("WATCHDOG_USEC", "60000000")
	t.Setenv("WATCHDOG_PID", "")
	if d, err := Period(); err != nil || d != time.Minute {
		t.Errorf("period %s, %v", d, err)
	}
}
