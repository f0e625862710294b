package tunnel

import (
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// maxLog is the size at which the log is rotated, bytes; there are at most two files.
const maxLog = 5 << 20

// LogFile is the log of this process, which may run for years: a file that is rotated by size. It is standard error, so
// that it contains the runtime's messages at a crash.
type LogFile struct {
	path string
	fd   int // standard error, except in tests
	max  int64

	mu   sync.Mutex
	size int64
}

// OpenLog makes the file standard error.
func OpenLog(path string) (*LogFile, error) { return openLogFile(path, unix.Stderr, maxLog) }

func openLogFile(path string, fd int, most int64) (*LogFile, error) {
	l := &LogFile{path: path, fd: fd, max: most}
	return l, l.open()
}

func (l *LogFile) open() error {
	f, err := os.OpenFile(l.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("tunnel: %w", err)
	}
	defer f.Close()
	fi, err := f.Stat()
	if err == nil {
		err = unix.Dup3(int(f.Fd()), l.fd, 0)
	}
	if err != nil {
		return fmt.Errorf("tunnel: %w", err)
	}
	l.size = fi.Size()
	return nil
}

// Write implements io.Writer. Where the file cannot be rotated, for example on a full disk, it is truncated: it never
// exceeds its bound.
func (l *LogFile) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.size+int64(len(p)) > l.max && l.size > 0 {
		err := os.Rename(l.path, l.path+".1")
		if err == nil {
			err = l.open()
		}
		if err != nil {
			_ = unix.Ftruncate(l.fd, 0)
			l.size = 0
		}
	}
	n, err := unix.Write(l.fd, p)
	l.size += int64(max(n, 0))
	return n, err
}
