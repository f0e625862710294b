package target

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"sync/atomic"
	"time"

	"rivulet/fabric/changes"
	"rivulet/offload/foreign"
)

// WatchLife is the longest life of a watch of a target. The next one continues where it ended, with a request and no
// list. So a stream that hangs in a working connection costs at most this time; HTTP/2's pings find a dead connection
// within 45 s (client-go's defaults). It is set before the first target is made; tests shorten it.
var WatchLife = 3 * time.Minute

const (
	// reopen is the pause before a watch that has failed is opened again. With less, client-go would list again: it does
	// after a watch that ends within a second without an event.
	reopen = time.Second
	// lastReopen is the longest further pause while the target gives no answer at all.
	lastReopen = 30 * time.Second
)

// Link is the way to one target, which may break. Pauses after failures grow, up to a minute, so whatever waits because
// of the link is tried again as soon as the link works again, and not when its pause is over: see Follow and Wrap.
// Its zero value is ready.
type Link struct {
	broken atomic.Bool
	back   changes.Signal
}

// Linked is implemented by targets whose link may break.
type Linked interface{ Link() *Link }

// FollowLink follows the link of t, if it has one, until ctx ends.
func FollowLink(ctx context.Context, t Target, back func()) {
	if l, ok := t.(Linked); ok {
		l.Link().Follow(ctx, back)
	}
}

// Follow calls back each time that the link works again, once a second at most, until ctx ends.
func (l *Link) Follow(ctx context.Context, back func()) {
	works, stop := l.back.Changed()
	defer stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-works:
			back()
		}
		changes.Wait(ctx, reopen)
	}
}

// Failed is called after a failure of a request to the target that did not go through Wrap.
func (l *Link) Failed() { l.broken.Store(true) }

// Works is called after the target has answered such a request.
func (l *Link) Works() {
	if l.broken.Swap(false) {
		l.back.Notify()
	}
}

// Wrap is for rest.Config.Wrap. Reflectors do not see failures of the link in their watches: after each of them they
// would list everything again, and after the sixth pause for 30 to 60 s, until there is none for two minutes. Instead a
// watch is opened until the target answers or the request's context ends. It ends like one that the server has ended,
// after its link has broken, or after WatchLife, less up to a quarter so that not all return at once. An answer that
// cannot be used is an error of the watch, and says nothing of the link.
func (l *Link) Wrap(next http.RoundTripper) http.RoundTripper {
	return transport{next, l, WatchLife}
}

type transport struct {
	next http.RoundTripper
	link *Link
	life time.Duration
}

func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Query().Get("watch") == "" {
		resp, err := t.next.RoundTrip(r)
		t.observe(r, err)
		return resp, err
	}
	works, stop := t.link.back.Changed()
	defer stop()
	for pause := (changes.Backoff{First: reopen, Longest: lastReopen}); ; {
		resp, err := t.open(r)
		t.observe(r, err)
		if err == nil || unusable(err) || !changes.Wait(r.Context(), reopen) {
			return resp, err
		}
		select {
		case <-r.Context().Done():
			return nil, err
		case <-works:
		case <-time.After(pause.Next()):
		}
	}
}

// observe notes what the result of r shows of the link: nothing if its caller has cancelled it.
func (t transport) observe(r *http.Request, err error) {
	if err == nil || unusable(err) {
		t.link.Works()
	} else if !errors.Is(r.Context().Err(), context.Canceled) {
		t.link.Failed()
	}
}

func unusable(err error) bool { return errors.As(err, new(*foreign.Unusable)) }

func (t transport) open(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithTimeout(r.Context(), t.life-rand.N(t.life/4+1))
	resp, err := t.next.RoundTrip(r.WithContext(ctx))
	if err != nil {
		cancel()
		return nil, err
	}
	resp.Body = &watchBody{resp.Body, t.link, ctx, cancel}
	return resp, nil
}

// watchBody ends with io.EOF, also when it breaks, but then after a pause.
type watchBody struct {
	io.ReadCloser
	link   *Link
	ctx    context.Context
	cancel context.CancelFunc
}

func (b *watchBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && err != io.EOF && !unusable(err) {
		if b.ctx.Err() == nil {
			b.link.Failed()
		}
		changes.Wait(b.ctx, reopen)
		err = io.EOF
	}
	return n, err
}

func (b *watchBody) Close() error {
	b.cancel()
	return b.ReadCloser.Close()
}
