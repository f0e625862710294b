package target

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"time"
)

// WatchLife is the longest life of a watch of a target. The next one continues where it ended, with a request and no
// list. So a stream that hangs in a working connection costs at most this time; HTTP/2's pings find a dead connection
// within 45 s (client-go's defaults). It is set before the first target is made; tests shorten it.
var WatchLife = 3 * time.Minute

// EndWatches ends each watch after WatchLife, less up to a quarter so that they do not all return at once. It is for
// rest.Config.Wrap.
func EndWatches(next http.RoundTripper) http.RoundTripper {
	return watchEnder{next, WatchLife}
}

type watchEnder struct {
	next http.RoundTripper
	life time.Duration
}

func (w watchEnder) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Query().Get("watch") == "" {
		return w.next.RoundTrip(r)
	}
	ctx, cancel := context.WithTimeout(r.Context(), w.life-rand.N(w.life/4+1))
	resp, err := w.next.RoundTrip(r.WithContext(ctx))
	if err != nil {
		cancel()
		return nil, err
	}
	resp.Body = &watchBody{resp.Body, ctx, cancel}
	return resp, nil
}

// watchBody ends like one that the server has ended.
type watchBody struct {
	io.ReadCloser
	ctx    context.Context
	cancel context.CancelFunc
}

func (b *watchBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && errors.Is(b.ctx.Err(), context.DeadlineExceeded) {
		err = io.EOF
	}
	return n, err
}

func (b *watchBody) Close() error {
	b.cancel()
	return b.ReadCloser.Close()
}
