package testns

import (
	"context"
	"fmt"
	"net"
	"testing"

	"rivulet/test/harness/silence"
)

// Try is a TCP connection from an address of a room, or from any with From "", to an address.
type Try struct {
	Room     Room
	From, To string
}

func (a Try) String() string {
	if a.From == "" {
		return a.To
	}
	return a.From + " to " + a.To
}

// dial opens the connection and closes it.
func (a Try) dial(ctx context.Context) error {
	return a.Room.Try(func() error {
		var d net.Dialer
		if a.From != "" {
			d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(a.From)}
		}
		c, err := d.DialContext(ctx, "tcp", a.To)
		if err == nil {
			c.Close()
		}
		return err
	})
}

// Apart dials all tries at once, beside the control, and returns those that connected: see package silence. Where the
// control does not connect in the same time the error is silence.ErrNotJudged.
func Apart(ctx context.Context, control Try, tries ...Try) (reached []Try, _ error) {
	reached, err := silence.Beside(ctx, control.dial, tries, func(ctx context.Context, a Try) bool { return a.dial(ctx) == nil })
	if err != nil {
		err = fmt.Errorf("%s: %w", control, err)
	}
	return reached, err
}

// Reaches dials from an address of the room, or from any with "". What is dropped is silent: it is given up when the
// room has connected to itself several times, a second later at the earliest, so that patience decides nothing. Where it
// cannot even do that the test ends: nothing was shown.
func (r Room) Reaches(from, addr string) bool {
	r.t.Helper()
	ctx, end := context.WithCancel(context.Background())
	defer end()
	answer, given := make(chan error, 1), make(chan error, 1)
	go func() { answer <- Try{r, from, addr}.dial(ctx) }()
	go func() { given <- r.patience(ctx) }()
	select {
	case err := <-answer:
		return err == nil
	case err := <-given:
		if err != nil {
			r.t.Fatalf("connections of a room to itself: %v", err)
		}
		end()
		return <-answer == nil
	}
}

// patience returns when the room has connected to itself several times.
func (r Room) patience(ctx context.Context) error {
	var l net.Listener
	if err := r.Try(func() (err error) { l, err = net.Listen("tcp", "127.0.0.1:0"); return err }); err != nil {
		return err
	}
	defer l.Close()
	go hangUp(l)
	return silence.Control(ctx, Try{r, "", l.Addr().String()}.dial)
}

// hangUp ends each connection that comes, until the listener is closed.
func hangUp(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		c.Close()
	}
}

// ReachesNot fails the test where the room reaches one of the addresses, or where it does not reach the control, which
// it may, in the same time.
func (r Room) ReachesNot(control string, addrs ...string) {
	r.t.Helper()
	var tries []Try
	for _, a := range addrs {
		tries = append(tries, Try{r, "", a})
	}
	NoneConnects(r.t, Try{r, "", control}, tries...)
}

// NoneConnects fails the test where one of the tries connects, or where the control does not in the same time.
func NoneConnects(t testing.TB, control Try, tries ...Try) {
	t.Helper()
	reached, err := Apart(t.Context(), control, tries...)
	if err != nil {
		t.Error(err)
	}
	for _, a := range reached {
		t.Errorf("%s connects", a)
	}
}
