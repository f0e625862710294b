// Package badline makes a cable for tests that is as bad as one likes: frames take
// their time, with jitter, and some are lost. The kernel these tests run on has no netem.
//
// Each end is a TAP device in some network namespace, and a goroutine carries frames
// from one to the other. It is for tests only, needs root, and ends with the test.
package badline

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// End is where one end of a line is: In runs a function in its network namespace.
type End struct {
	In   func(func() error) error
	Name string // of the interface, made there, without an address and down
}

// Quality is what the line does to frames in each of its directions.
type Quality struct {
	Delay  time.Duration // one way
	Jitter time.Duration // at most so much more or less; frames stay in order
	Loss   float64       // how many of them are lost, 0 to 1
}

// Line is a cable.
type Line struct {
	quality       atomic.Pointer[Quality]
	Carried, Lost atomic.Int64 // frames
}

// New lays a line between two ends.
func New(t testing.TB, a, b End, q Quality) *Line {
	t.Helper()
	l := &Line{}
	l.Set(q)
	one, two := tap(t, a), tap(t, b)
	go l.carry(one, two)
	go l.carry(two, one)
	return l
}

// Set makes the line another one; what is on its way arrives as it would have.
func (l *Line) Set(q Quality) { l.quality.Store(&q) }

// waiting bounds the frames on their way in one direction; more are lost, as in any
// router: a second of 200 Mbit/s.
const waiting = 16 << 10

type frame struct {
	data []byte
	due  time.Time
}

// carry takes frames from one end to the other until one of them is closed.
func (l *Line) carry(from, to *os.File) {
	way := make(chan frame, waiting)
	defer close(way)
	go func() {
		for f := range way {
			time.Sleep(time.Until(f.due)) // that is the line, nobody waits for it
			if _, err := to.Write(f.data); errors.Is(err, fs.ErrClosed) {
				return
			}
		}
	}()
	buf := make([]byte, 1<<16)
	var last time.Time
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		q := l.quality.Load()
		late := q.Delay
		if q.Jitter > 0 {
			late += time.Duration(rand.Int64N(int64(2*q.Jitter))) - q.Jitter
		}
		due := time.Now().Add(max(late, 0))
		if due.Before(last) {
			due = last
		}
		last = due
		if rand.Float64() >= q.Loss {
			select {
			case way <- frame{append([]byte(nil), buf[:n]...), due}:
				l.Carried.Add(1)
				continue
			default:
			}
		}
		l.Lost.Add(1)
	}
}

// tap makes an end. Without offloads the kernel cuts and checksums what it sends.
func tap(t testing.TB, e End) *os.File {
	t.Helper()
	var f *os.File
	err := e.In(func() error {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		r, err := unix.NewIfreq(e.Name)
		if err == nil {
			r.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
			err = unix.IoctlIfreq(fd, unix.TUNSETIFF, r)
		}
		if err != nil {
			unix.Close(fd)
			return err
		}
		f = os.NewFile(uintptr(fd), "/dev/net/tun")
		return nil
	})
	if err != nil {
		t.Skipf("needs the right to make TAP devices: %v", err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}
