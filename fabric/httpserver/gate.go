package httpserver

import (
	"net/http"
	"sync"
)

// Gate bounds the requests under way, and the bytes of their headers, for each party. A party that has few of them gets
// in also when the Gate is full.
type Gate struct {
	// Each bounds the requests of one party, Total those of all; Bytes bounds the headers of the requests of one party.
	Each, Total, Bytes int

	mu sync.Mutex
	n  int
	by map[string]*held
}

type held struct{ requests, bytes int }

// few is the part of Each that is every party's own, one request at least.
const few = 8

func (g *Gate) own() int { return max(1, g.Each/few) }

// Serve answers a request of a party with h, or with 429 if it is one too many. It counts until the client has taken the
// answer.
func (g *Gate) Serve(party string, w http.ResponseWriter, r *http.Request, h http.HandlerFunc) {
	leave, ok := g.enter(party, r)
	if !ok { // without a body, which a client that takes no bytes would hold
		w.Header().Set("Retry-After", "1")
		w.Header().Set("Content-Length", "0")
		w.WriteHeader(http.StatusTooManyRequests)
		return
	}
	defer leave()
	h(w, r)
	if r.ProtoMajor == 2 { // HTTP/1 has one request in a connection
		_ = http.NewResponseController(w).Flush() // the client has gone
	}
}

// enter counts a request until leave is called; ok is false if it is one too many.
func (g *Gate) enter(party string, r *http.Request) (leave func(), ok bool) {
	size := headers(r)
	g.mu.Lock()
	defer g.mu.Unlock()
	h := g.by[party]
	if h == nil {
		h = &held{}
	}
	if h.requests >= g.Each || h.requests > 0 && h.bytes+size > g.Bytes || g.n >= g.Total && h.requests >= g.own() {
		return nil, false
	}
	if g.by == nil {
		g.by = map[string]*held{}
	}
	g.by[party] = h
	g.n++
	h.requests++
	h.bytes += size
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.n--
		h.bytes -= size
		if h.requests--; h.requests == 0 {
			delete(g.by, party)
		}
	}, true
}

// headers returns about how many bytes of memory the head of a request takes.
func headers(r *http.Request) int {
	n := len(r.RequestURI)
	for k, vs := range r.Header {
		for _, v := range vs {
			n += len(k) + len(v) + 32 // as HTTP/2 counts
		}
	}
	return n
}
