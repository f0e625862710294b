package offload

import (
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"rivulet/offload/target"
)

// stall is a link over which for a while nothing comes and nothing says so: what
// is sent meanwhile arrives after it, as with TCP over a tunnel that is away.
type stall struct {
	mu   sync.Mutex
	over chan struct{} // nil while the link works
	rate atomic.Int64  // bytes per second of a connection, each way; 0: no bound
}

func (s *stall) set(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case on && s.over == nil:
		s.over = make(chan struct{})
	case !on && s.over != nil:
		close(s.over)
		s.over = nil
	}
}

func (s *stall) wait(closed <-chan struct{}) {
	s.mu.Lock()
	over := s.over
	s.mu.Unlock()
	if over == nil {
		return
	}
	select {
	case <-over:
	case <-closed:
	}
}

// stallable is a connection over the link.
type stallable struct {
	net.Conn
	link   *stall
	closed chan struct{}
	once   sync.Once
}

func (s *stall) wrap(c net.Conn) net.Conn {
	return &stallable{Conn: c, link: s, closed: make(chan struct{})}
}

func (c *stallable) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.link.wait(c.closed)
	c.link.pace(n)
	return n, err
}

func (c *stallable) Write(b []byte) (int, error) {
	c.link.wait(c.closed)
	c.link.pace(len(b))
	return c.Conn.Write(b)
}

// pace takes the time that a slow link takes for n bytes.
func (s *stall) pace(n int) {
	if rate := s.rate.Load(); rate > 0 {
		time.Sleep(time.Duration(int64(n) * int64(time.Second) / rate))
	}
}

func (c *stallable) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

func init() { target.WatchLife = 8 * time.Second } // before any target is made

// mute has watches that are open go silent, for good, while all else works.
type mute struct {
	mu   sync.Mutex
	open []*watchWriter
}

type watchWriter struct {
	http.ResponseWriter
	silent atomic.Bool
}

func (m *mute) wrap(w http.ResponseWriter) http.ResponseWriter {
	m.mu.Lock()
	defer m.mu.Unlock()
	watch := &watchWriter{ResponseWriter: w}
	m.open = append(m.open, watch)
	return watch
}

func (m *mute) all() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, w := range m.open {
		w.silent.Store(true)
	}
	m.open = nil
}

func (w *watchWriter) Write(b []byte) (int, error) {
	if w.silent.Load() {
		return len(b), nil
	}
	return w.ResponseWriter.Write(b)
}

func (w *watchWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
