package stream

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/moby/spdystream/spdy"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A command whose connection breaks must not look successful. Its result is sent on a separate stream, the error
// stream, and for every SPDY client, home's API server included, silence there means success: half a `kubectl cp` would
// look complete. So passing frames are parsed as far as needed to identify that stream; if the target's side ends
// before anything came on it, the failure is sent here, in the form of a kubelet.
//
// 	SYN_STREAM streamtype=error ─▶        stores the stream
// 	                            ◀─ DATA   the result has come: nothing to do
// 	                            ✂         DATA with the failure, RST_STREAM for the others
// 	                            ─▶ the client closes; what it sends until then is read and dropped
//
// The kernel resets a connection that is closed while the client still sends; the client might then report "broken
// pipe" and never read the failure.
//
// For the same reason pings of the client wait here while the connection is used. An API server closes as soon as the
// last output is in the kernel. A ping that it has not read, or that comes later, makes the kernel drop the output that a
// slow link has not taken yet. In a connection without traffic a ping harms nothing, and keeps the routers' and load
// balancers' entries on the way.

// lingers is how long the client may take to close after the failure was sent.
const lingers = 10 * time.Second

// quiet is how long nothing may have passed in either direction before a ping does: as long as a silent link keeps its
// streams, so nothing is on its way then, and shorter than load balancers wait (30 to 60 s).
const quiet = 20 * time.Second

// mostPings bounds the waiting pings of a client, which sends the next when the last is answered.
const mostPings = 16

// mostStreams bounds the stored streams of a client; a command has five.
const mostStreams = 100

// largest is the largest frame, in bytes, that is held until it is complete. A larger one passes unparsed; afterwards
// no failure is sent, since it might be in the middle of that frame.
const largest = 1 << 20

// guard wraps the target's answer to an exec or attach in a cutoff.
func guard(r *http.Response, target string) {
	inner, duplex := r.Body.(io.ReadWriteCloser)
	version := r.Header.Get("X-Stream-Protocol-Version") // before v4 the error stream has plain text
	if r.StatusCode == http.StatusSwitchingProtocols && duplex && strings.HasPrefix(strings.ToUpper(r.Header.Get("Upgrade")), "SPDY/") &&
		(version == "v4.channel.k8s.io" || version == "v5.channel.k8s.io") {
		r.Body = newCutoff(inner, target)
	}
}

type cutoff struct {
	io.ReadWriteCloser
	target string
	linger time.Duration
	quiet  time.Duration

	writing sync.Mutex // held while something is written to the target

	mu      sync.Mutex
	used    time.Time // when something passed
	pings   [][]byte  // those that wait, mostPings at most
	wake    *time.Timer
	up      frames // what the client sends
	control bytes.Buffer
	headers *spdy.Framer
	errors  spdy.StreamId          // the error stream; 0: not known
	replied map[spdy.StreamId]bool // those that the target has replied to, mostStreams at most
	failed  bool                   // something came on the error stream

	once   sync.Once
	closed chan struct{} // by the copying side: the client has gone

	// Used by Read only.
	down  frames
	buf   []byte
	out   []byte
	ended error
	last  bool // what is in out is the end
}

func newCutoff(inner io.ReadWriteCloser, target string) *cutoff {
	c := &cutoff{ReadWriteCloser: inner, target: target, linger: lingers, quiet: quiet, used: time.Now(), replied: map[spdy.StreamId]bool{}, closed: make(chan struct{}), buf: make([]byte, 32<<10)}
	c.headers, _ = spdy.NewFramer(io.Discard, &c.control) // fails only without a reader
	return c
}

// Write passes on complete frames of the client; pings wait. Only Read reports a broken connection: an error here would
// close the client's side before the failure is sent.
func (c *cutoff) Write(b []byte) (int, error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	c.mu.Lock()
	out := c.up.feed(b, func(frame []byte) (pass bool) {
		if frame[0]&0x80 == 0 || c.headers == nil {
			return true
		}
		c.syn(frame)
		return !isPing(frame) || !c.hold(frame)
	})
	if len(out) > 0 {
		c.used = time.Now()
	}
	c.mu.Unlock()
	c.send(out)
	return len(b), nil
}

// send writes to the target; c.writing is held.
func (c *cutoff) send(b []byte) {
	if len(b) == 0 {
		return
	}
	if _, err := c.ReadWriteCloser.Write(b); err != nil {
		_ = c.ReadWriteCloser.Close() // ends Read, if it has not ended
	}
}

// hold keeps a ping until the connection is quiet, and reports whether it does; c.mu is held.
func (c *cutoff) hold(ping []byte) bool {
	if len(c.pings) == mostPings {
		return false
	}
	c.pings = append(c.pings, bytes.Clone(ping))
	if len(c.pings) == 1 {
		c.wake = time.AfterFunc(c.quiet-time.Since(c.used), c.pass)
	}
	return true
}

// pass sends the waiting pings if the connection is quiet, and is called again otherwise.
func (c *cutoff) pass() {
	c.writing.Lock()
	defer c.writing.Unlock()
	select {
	case <-c.closed:
		return
	default:
	}
	c.mu.Lock()
	if left := c.quiet - time.Since(c.used); left > 0 {
		c.wake.Reset(left)
		c.mu.Unlock()
		return
	}
	out := bytes.Join(c.pings, nil)
	c.pings = nil
	c.mu.Unlock()
	c.send(out)
}

func (c *cutoff) Close() error {
	c.once.Do(func() { close(c.closed) })
	c.mu.Lock()
	if c.wake != nil {
		c.wake.Stop()
	}
	c.mu.Unlock()
	return c.ReadWriteCloser.Close()
}

// syn parses a control frame. All of them pass the framer: their headers are compressed with those before.
func (c *cutoff) syn(frame []byte) {
	c.control.Write(frame)
	f, err := c.headers.ReadFrame()
	if err != nil {
		c.headers = nil // invalid: from now on everything passes unparsed
		return
	}
	if s, ok := f.(*spdy.SynStreamFrame); ok && s.Headers.Get(corev1.StreamType) == corev1.StreamTypeError {
		c.errors = s.StreamId
	}
}

// Read returns complete frames from the target, and the end.
func (c *cutoff) Read(p []byte) (int, error) {
	for len(c.out) == 0 {
		if c.last {
			select {
			case <-c.closed:
			case <-time.After(c.linger):
			}
			c.last = false
		}
		if c.ended != nil {
			return 0, c.ended
		}
		n, err := c.ReadWriteCloser.Read(c.buf)
		c.mu.Lock()
		if n > 0 {
			c.used = time.Now()
		}
		c.out = c.down.feed(c.buf[:n], func(frame []byte) (pass bool) {
			switch {
			case frame[0]&0x80 == 0:
				c.failed = c.failed || spdy.StreamId(binary.BigEndian.Uint32(frame)) == c.errors && len(frame) > 8
			case binary.BigEndian.Uint16(frame[2:]) == uint16(spdy.TypeSynReply) && len(frame) >= 12 && len(c.replied) < mostStreams:
				c.replied[spdy.StreamId(binary.BigEndian.Uint32(frame[8:])&0x7fffffff)] = true
			}
			return true
		})
		if err != nil {
			c.ended = err
			if c.errors != 0 && c.headers != nil && !c.failed && !c.down.blind {
				c.out = append(c.out, farewell(c.errors, c.target)...)
				for id := range c.replied {
					if id != c.errors {
						c.out = append(c.out, reset(id)...)
					}
				}
				// A client reads its error stream only after the reply to it.
				c.last, c.ended = c.replied[c.errors], io.ErrUnexpectedEOF
			}
		}
		c.mu.Unlock()
	}
	n := copy(p, c.out)
	c.out = c.out[n:]
	return n, nil
}

// farewell is a data frame with the failure that ends the error stream.
func farewell(id spdy.StreamId, target string) []byte {
	text, err := json.Marshal(metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
		Reason: metav1.StatusReasonServerTimeout, Code: http.StatusGatewayTimeout,
		Message: "offload: the connection to " + target + " was lost, nobody knows how the command ended; see rivulet peers, or rivulet burst list",
	})
	if err != nil {
		return nil // a Status always marshals
	}
	frame := binary.BigEndian.AppendUint32(nil, uint32(id))
	frame = binary.BigEndian.AppendUint32(frame, 1<<24|uint32(len(text))) // FLAG_FIN, length
	return append(frame, text...)
}

// reset is an RST_STREAM frame (of version 3, type 3) with status CANCEL.
func reset(id spdy.StreamId) []byte {
	frame := []byte{0x80, 3, 0, 3, 0, 0, 0, 8}
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(frame, uint32(id)), uint32(spdy.Cancel))
}

func isPing(frame []byte) bool {
	return frame[0]&0x80 != 0 && binary.BigEndian.Uint16(frame[2:]) == uint16(spdy.TypePing)
}

// frames splits a SPDY connection into its frames: a header of eight bytes, of which the last three are the length of
// the rest.
type frames struct {
	part  []byte
	blind bool // a frame was too large to be held
}

// feed takes new bytes and returns the complete frames for which see is true.
func (f *frames) feed(b []byte, see func(frame []byte) (pass bool)) []byte {
	if f.blind {
		return bytes.Clone(b)
	}
	f.part = append(f.part, b...)
	var out []byte
	whole := 0
	for {
		rest := f.part[whole:]
		if len(rest) < 8 {
			break
		}
		size := 8 + int(binary.BigEndian.Uint32(rest[4:])&0xffffff)
		if size > largest {
			f.blind = true
			out = append(out, rest...)
			f.part = nil
			return out
		}
		if len(rest) < size {
			break
		}
		if see(rest[:size]) {
			out = append(out, rest[:size]...)
		}
		whole += size
	}
	f.part = append(f.part[:0], f.part[whole:]...)
	return out
}
