// Package faulty lets single calls of an API client fail, as servers and networks do: one call, chosen by its number,
// fails in one way, and all others pass. A test that runs a story once for each call finds the one whose failure the
// code does not expect.
package faulty

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
)

// Way is how a call fails.
type Way int

// The ways. Lost and Torn are the mean ones: the server has done what it was asked.
const (
	Refused  Way = iota // 500, and nothing was done
	Conflict            // 409, and nothing was done
	Unsent              // no connection
	Lost                // done, and the connection breaks before the answer
	Torn                // done, and the answer breaks off in the middle
	Ways                // how many there are
)

func (w Way) String() string {
	return [...]string{"refused", "conflict", "unsent", "lost", "torn"}[w]
}

// errBroken is what a client sees of a connection that breaks.
var errBroken = errors.New("faulty: the connection broke")

// Calls numbers the calls of the clients that it wraps. It may be used concurrently.
type Calls struct {
	mu     sync.Mutex
	n      int
	at     int // the number of the call that fails; 0: none
	way    Way
	failed string
}

// Fail lets the k-th call from now fail, the first is 1. It forgets one that was chosen before.
func (c *Calls) Fail(k int, way Way) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at, c.way, c.failed = c.n+k, way, ""
}

// Count is how many calls there were.
func (c *Calls) Count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}

// Failed says which call failed since Fail, "" if it was not made yet.
func (c *Calls) Failed() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failed
}

// next counts a call, and returns how it is to fail.
func (c *Calls) next(r *http.Request) (way Way, fail bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n++
	if c.n != c.at {
		return 0, false
	}
	c.failed = fmt.Sprintf("%s %s: %s", r.Method, r.URL.RequestURI(), c.way)
	return c.way, true
}

// Wrap is for rest.Config.Wrap.
func (c *Calls) Wrap(next http.RoundTripper) http.RoundTripper {
	return transport(func(r *http.Request) (*http.Response, error) {
		way, fail := c.next(r)
		if !fail {
			return next.RoundTrip(r)
		}
		switch way {
		case Refused:
			return status(r, http.StatusInternalServerError, "InternalError"), nil
		case Conflict:
			return status(r, http.StatusConflict, "Conflict"), nil
		case Unsent:
			return nil, errBroken
		}
		answer, err := next.RoundTrip(r)
		if err != nil {
			return nil, err
		}
		if way == Lost {
			answer.Body.Close()
			return nil, errBroken
		}
		answer.Body = &torn{answer.Body, 64}
		return answer, nil
	})
}

type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// status answers as an API server does that has done nothing.
func status(r *http.Request, code int, reason string) *http.Response {
	if r.Body != nil {
		r.Body.Close()
	}
	body := fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"message":"faulty: this call fails","code":%d}`, reason, code)
	return &http.Response{Status: http.StatusText(code), StatusCode: code, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: r,
		Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body)), ContentLength: int64(len(body))}
}

// torn is a body of which left bytes arrive.
type torn struct {
	io.ReadCloser
	left int
}

func (t *torn) Read(b []byte) (int, error) {
	if t.left == 0 {
		return 0, errBroken
	}
	n, err := t.ReadCloser.Read(b[:min(len(b), t.left)])
	t.left -= n
	return n, err
}
