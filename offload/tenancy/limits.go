package tenancy

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync"

	"golang.org/x/time/rate"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/httpstream"

	"rivulet/fabric/peer"
)

// What one consumer may ask of this cluster, whatever it asks for. An ordinary
// consumer stays far below; one that goes beyond is told to come again (429), and
// every Kubernetes client does.
const (
	requestRate, requestBurst = 300, 1200 // per second
	// Short requests under way at once. What it may have of the API server's own
	// seats is said by its priority level (fairness.yaml).
	atOnce = 128
	// Watches and streams that are open at once: some for each twin.
	longBase, longPerTwin = 64, 24
	// maxBody is the API server's own bound.
	maxBody = 3 << 20
	// Bytes sent: what is stored wears out the card.
	byteRate, byteBurst = 256 << 10, 256 << 20
	// maxOffers are the streams of GET /v1/offer.
	maxOffers = 4
	// maxTwins is how many namespaces one consumer may have here.
	maxTwins = 100
)

// visitors knows the requests of each consumer that are under way, holds them to
// the limits, and ends them when the consumer is no peer any more.
type visitors struct {
	mu  sync.Mutex
	all map[peer.ID]*visitor
}

type visitor struct {
	requests, bytes *rate.Limiter

	// These are guarded by visitors.mu.
	short, long, offers, carried int
	ends                         map[*context.CancelFunc]struct{}
}

func newVisitors() *visitors { return &visitors{all: map[peer.ID]*visitor{}} }

// kind of a request, by what it holds.
type kind int

const (
	short kind = iota
	long       // a watch or a stream: lasts as long as the consumer likes
	offers
	carried // a volume's files
)

// enter admits a request; the context ends with the consumer's being a peer, and
// leave has to be called when the request is over. Without leave it is refused.
func (v *visitors) enter(ctx context.Context, id peer.ID, k kind, twins int) (in context.Context, leave func(), why string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	guest := v.all[id]
	if guest == nil {
		guest = &visitor{requests: rate.NewLimiter(requestRate, requestBurst), bytes: rate.NewLimiter(byteRate, byteBurst), ends: map[*context.CancelFunc]struct{}{}}
		v.all[id] = guest
	}
	if !guest.requests.Allow() {
		return nil, nil, "too many requests of your cluster in a short time"
	}
	held, most := &guest.short, atOnce
	switch k {
	case long:
		held, most = &guest.long, longBase+longPerTwin*twins
	case offers:
		held, most = &guest.offers, maxOffers
	case carried:
		held, most = &guest.carried, maxCarried
	}
	if *held >= most {
		return nil, nil, "too many requests of your cluster are open at once"
	}
	*held++
	ctx, cancel := context.WithCancel(ctx)
	guest.ends[&cancel] = struct{}{}
	return ctx, func() {
		cancel()
		v.mu.Lock()
		defer v.mu.Unlock()
		*held--
		delete(guest.ends, &cancel)
	}, ""
}

// only ends at once what is under way for anybody else: watches, logs and
// sessions too.
func (v *visitors) only(peers map[peer.ID]bool) (ended int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for id, guest := range v.all {
		if peers[id] {
			continue
		}
		for end := range guest.ends {
			(*end)()
			ended++
		}
		delete(v.all, id)
	}
	return ended
}

// open is the number of requests under way.
func (v *visitors) open(id peer.ID) int {
	v.mu.Lock()
	defer v.mu.Unlock()
	if g := v.all[id]; g != nil {
		return g.short + g.long + g.offers + g.carried
	}
	return 0
}

// spend counts what a consumer sends.
func (v *visitors) spend(id peer.ID, bytes int64) bool {
	v.mu.Lock()
	guest := v.all[id]
	v.mu.Unlock()
	return guest == nil || guest.bytes.AllowN(now(), int(min(bytes, byteBurst)))
}

// limited holds a consumer's requests to the Kubernetes API to the limits.
func (t *Tenancy) limited(w http.ResponseWriter, r *http.Request, consumer peer.ID) {
	k := short
	if lasts(r) {
		k = long
	}
	ctx, leave, why := t.visitors.enter(r.Context(), consumer, k, len(t.twinsOf(consumer)))
	if leave == nil {
		later(w, why)
		return
	}
	defer leave()
	if r.ContentLength > maxBody {
		status(w, http.StatusRequestEntityTooLarge, metav1.StatusReasonRequestEntityTooLarge, "the object is larger than any that the provider takes; make it smaller")
		return
	}
	r = r.WithContext(ctx)
	if r.Body != nil && k == short {
		if !t.visitors.spend(consumer, max(r.ContentLength, 0)) {
			later(w, "your cluster has sent too much in a short time")
			return
		}
		body := &counted{ReadCloser: http.MaxBytesReader(w, r.Body, maxBody)}
		if r.ContentLength < 0 { // it is known afterwards
			defer func() { t.visitors.spend(consumer, body.n) }()
		}
		r.Body = body
	}
	t.proxy.serve(w, r, consumer)
}

type counted struct {
	io.ReadCloser
	n int64
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	c.n += int64(n)
	return n, err
}

// later answers so that a Kubernetes client waits a second and asks again.
func later(w http.ResponseWriter, why string) {
	w.Header().Set("Retry-After", "1")
	status(w, http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, why+"; try again in a moment")
}

// lasts reports whether a request has no end of its own.
func lasts(r *http.Request) bool {
	q := r.URL.Query()
	return httpstream.IsUpgradeRequest(r) || yes(q, "watch") || strings.HasSuffix(r.URL.Path, "/log") && yes(q, "follow") ||
		strings.Contains(r.URL.Path, "/api/v1/watch/") || strings.Contains(r.URL.Path, "/v1/watch/")
}

// yes reads a boolean as the API server does: present and not false.
func yes(q map[string][]string, key string) bool {
	v, ok := q[key]
	return ok && len(v) > 0 && v[0] != "0" && !strings.EqualFold(v[0], "false")
}
