package tenancy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/endpoints/request"

	"rivulet/fabric/peer"
	"rivulet/offload/apiproxy"
)

// The limits of one consumer for all of its requests. Usual consumers stay far below; above a limit a request gets 429,
// and every Kubernetes client retries.
const (
	requestRate, requestBurst = 300, 1200 // per second
	// Short requests under way at once. Its priority level (fairness.yaml) bounds its seats in the API server.
	atOnce = 128
	// writeTime ends a write without an answer.
	writeTime = time.Minute
	// patchesAtOnce of one consumer: the result of a patch is known only afterwards.
	patchesAtOnce = 16
	// Open watches and streams: some for each twin.
	longBase, longPerTwin = 64, 24
	// maxBody is the API server's own bound, maxTemplate that of objects that controllers copy; bytes.
	maxBody, maxTemplate = 3 << 20, 256 << 10
	// byteRate bounds written bytes of objects per second: each version of an object wears out the card, and is kept
	// for a while. A burst may be as much as the consumer may store (Room).
	byteRate = 256 << 10
	// maxOffers bounds the streams of GET /v1/offer.
	maxOffers = 4
	// maxTwins is how many namespaces one consumer may have here.
	maxTwins = 100
)

// visitors has the requests of each consumer that are under way, applies the limits, and ends the requests when the
// consumer is no longer a peer.
type visitors struct {
	burst int // bytes of objects

	mu  sync.Mutex
	all map[peer.ID]*visitor
}

type visitor struct {
	requests, bytes *rate.Limiter
	patches         chan struct{}
	// twins is held by the one request that makes a twin, from counting to creation.
	twins chan struct{}
	// ingresses is held by the one request that creates or changes an Ingress.
	ingresses chan struct{}

	// These are guarded by visitors.mu.
	short, long, offers, files int
	ends                       map[*context.CancelFunc]kind
}

func newVisitors(burst int64) *visitors {
	return &visitors{burst: int(burst), all: map[peer.ID]*visitor{}}
}

// of returns the consumer's visitor. mu is held.
func (v *visitors) of(id peer.ID) *visitor {
	entry := v.all[id]
	if entry == nil {
		entry = &visitor{requests: rate.NewLimiter(requestRate, requestBurst), bytes: rate.NewLimiter(byteRate, v.burst),
			patches: make(chan struct{}, patchesAtOnce), twins: make(chan struct{}, 1), ingresses: make(chan struct{}, 1), ends: map[*context.CancelFunc]kind{}}
		v.all[id] = entry
	}
	return entry
}

// wait takes one of the places of a visitor, which leave releases.
func (v *visitors) wait(ctx context.Context, id peer.ID, places func(*visitor) chan struct{}) (leave func(), err error) {
	v.mu.Lock()
	c := places(v.of(id))
	v.mu.Unlock()
	select {
	case c <- struct{}{}:
		return func() { <-c }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// kind of a request, by the limit that applies.
type kind int

const (
	short kind = iota
	long       // a watch or a stream: ends when the consumer ends it
	offers
	files // a volume's files
)

// enter admits a request; the context ends when the consumer is no longer a peer, and leave has to be called after the
// request. Without leave it is refused.
func (v *visitors) enter(ctx context.Context, id peer.ID, k kind, twins int) (in context.Context, leave func(), why string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	entry := v.of(id)
	if !entry.requests.Allow() {
		return nil, nil, "too many requests of your cluster in a short time"
	}
	held, most := &entry.short, atOnce
	switch k {
	case long:
		held, most = &entry.long, longBase+longPerTwin*twins
	case offers:
		held, most = &entry.offers, maxOffers
	case files:
		held, most = &entry.files, maxCarried
	}
	if *held >= most {
		return nil, nil, "too many requests of your cluster are open at once"
	}
	*held++
	ctx, cancel := context.WithCancel(ctx)
	entry.ends[&cancel] = k
	return ctx, func() {
		cancel()
		v.mu.Lock()
		defer v.mu.Unlock()
		*held--
		delete(entry.ends, &cancel)
	}, ""
}

// only ends at once the requests of all other clusters, watches, logs and sessions included. A peer that may not borrow
// keeps its streams of offers, by which it receives that.
func (v *visitors) only(peers map[peer.ID]bool) (ended int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for id, entry := range v.all {
		borrows, isPeer := peers[id]
		if borrows {
			continue
		}
		for end, k := range entry.ends {
			if isPeer && k == offers {
				continue
			}
			(*end)()
			delete(entry.ends, end)
			ended++
		}
		if !isPeer {
			delete(v.all, id)
		}
	}
	return ended
}

// spend accounts for bytes that a consumer writes, and reports whether it may.
func (v *visitors) spend(id peer.ID, bytes int64) bool {
	v.mu.Lock()
	entry := v.all[id]
	v.mu.Unlock()
	return entry == nil || entry.bytes.AllowN(now(), int(min(bytes, int64(v.burst))))
}

// owe adds bytes that were written beyond what was spent: they are subtracted before the next write.
func (v *visitors) owe(id peer.ID, bytes int64) {
	v.mu.Lock()
	entry := v.all[id]
	v.mu.Unlock()
	if entry != nil && bytes > 0 {
		entry.bytes.ReserveN(now(), int(min(bytes, int64(v.burst))))
	}
}

// limited applies the limits to a consumer's requests to the Kubernetes API.
func (t *Tenancy) limited(w http.ResponseWriter, r *http.Request, consumer peer.ID) {
	what := requested(r)
	if code, why := t.mayPass(what.Namespace, consumer); code == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1") // a Kubernetes client waits and retries
		status(w, code, metav1.StatusReasonServiceUnavailable, why)
		return
	} else if code != 0 {
		status(w, code, metav1.StatusReasonForbidden, why)
		return
	}
	k := short
	if lasts(what) {
		k = long
	}
	ctx := r.Context()
	if writes(what) {
		// A write counts even if the client disconnects before the answer.
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), writeTime)
		defer cancel()
	}
	ctx, leave, why := t.visitors.enter(ctx, consumer, k, len(t.twinsOf(consumer)))
	if leave == nil {
		later(w, why)
		return
	}
	defer leave()
	r = r.WithContext(ctx)
	if r.ContentLength < 0 {
		status(w, http.StatusLengthRequired, metav1.StatusReasonBadRequest, "the provider takes objects only if it is told their length; send Content-Length")
		return
	}
	most := int64(maxBody)
	if templates[what.Resource] {
		most = maxTemplate
	}
	if r.ContentLength > most {
		status(w, http.StatusRequestEntityTooLarge, metav1.StatusReasonRequestEntityTooLarge, fmt.Sprintf("the object is larger than the %d KiB that the provider takes of its kind; make it smaller", most>>10))
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, most)
	if !writes(what) {
		t.proxy.serve(w, r, consumer)
		return
	}
	t.write(w, r, consumer, what)
}

// write passes a request that stores something. The answer has the stored size: a small patch makes a new version of a
// large object.
func (t *Tenancy) write(w http.ResponseWriter, r *http.Request, consumer peer.ID, what *request.RequestInfo) {
	if what.Verb == "patch" {
		leave, err := t.visitors.wait(r.Context(), consumer, func(v *visitor) chan struct{} { return v.patches })
		if err != nil {
			return
		}
		defer leave()
	}
	if !t.visitors.spend(consumer, r.ContentLength) {
		later(w, "your cluster has sent too much in a short time")
		return
	}
	used, err := routesIn(r, what)
	if err != nil {
		status(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error())
		return
	}
	settle, err := t.stored.admit(r.Context(), t.account(consumer), r.ContentLength)
	settleRoutes := func(int64) {}
	if err == nil && used > 0 {
		if settleRoutes, err = t.routes.admit(r.Context(), t.account(consumer), used); err != nil {
			settle(0)
		}
	}
	var full *fullError
	switch {
	case errors.As(err, &full):
		status(w, http.StatusForbidden, metav1.StatusReasonForbidden, full.Error())
		return
	case err != nil:
		t.Log.Warn("what a consumer stores is not counted", "peer", consumer.Short(), "err", err)
		later(w, "the provider has not counted yet what your cluster stores there")
		return
	}
	// The answer has to be the complete object, uncompressed.
	r.Header.Del("Accept-Encoding")
	if strings.Contains(r.Header.Get("Accept"), "as=") {
		r.Header.Set("Accept", "application/json")
	}
	answer := &measured{ResponseWriter: w}
	defer func() { // an aborted proxy panics
		wrote := max(answer.n, r.ContentLength)
		if answer.code >= http.StatusBadRequest || r.URL.Query().Has("dryRun") {
			wrote, used = 0, 0
		}
		settleRoutes(used)
		t.visitors.owe(consumer, wrote-r.ContentLength)
		settle(wrote)
	}()
	pass := func(w http.ResponseWriter, r *http.Request) { t.proxy.serve(w, r, consumer) }
	if what.Resource == "ingresses" {
		t.ingress(answer, r, consumer, pass)
		return
	}
	pass(answer, r)
}

// measured counts the bytes of an answer, whether or not the client receives them.
type measured struct {
	http.ResponseWriter
	code int
	n    int64
}

// FlushError is that of the answer; bytes count even if the client does not receive them.
func (m *measured) FlushError() error {
	_ = http.NewResponseController(m.ResponseWriter).Flush()
	return nil
}

func (m *measured) WriteHeader(code int) {
	m.code = code
	m.ResponseWriter.WriteHeader(code)
}

func (m *measured) Write(p []byte) (int, error) {
	m.n += int64(len(p))
	_, _ = m.ResponseWriter.Write(p)
	return len(p), nil
}

// later answers so that a Kubernetes client waits for a second and retries.
func later(w http.ResponseWriter, why string) {
	w.Header().Set("Retry-After", "1")
	status(w, http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, why+"; try again in a moment")
}

// requested is how the API server parses the request.
func requested(r *http.Request) *request.RequestInfo {
	return apiproxy.Parse(r, strings.TrimPrefix(r.URL.Path, prefix))
}

// lasts reports whether the API server sets no deadline of its own for the request.
func lasts(what *request.RequestInfo) bool {
	if !what.IsResourceRequest {
		return false
	}
	return what.Verb == "watch" || slices.Contains([]string{"attach", "exec", "log", "portforward"}, what.Subresource)
}

// writes reports whether a request stores something.
func writes(what *request.RequestInfo) bool {
	return slices.Contains([]string{"create", "update", "patch", "post", "put"}, what.Verb) && !lasts(what)
}

// templates are the kinds that controllers copy, and the copies.
var templates = map[string]bool{"pods": true, "replicasets": true, "jobs": true}
