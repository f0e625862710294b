package tunnel

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"rivulet/fabric/tunnel/paths"
)

// news notifies waiting requests that a path has changed.
type news struct {
	mu  sync.Mutex
	now chan struct{} // closed by the next change; nil without waiting requests
}

func (n *news) notify() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.now != nil {
		close(n.now)
		n.now = nil
	}
}

func (n *news) next() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.now == nil {
		n.now = make(chan struct{})
	}
	return n.now
}

// newsPause combines changes into one line.
const newsPause = 100 * time.Millisecond

// streamPaths answers with a line after each change of a path, until the client disconnects or ctx ends.
func (s *Server) streamPaths(ctx context.Context, w http.ResponseWriter, r *http.Request) {
	w.WriteHeader(http.StatusOK)
	for {
		next := s.news.next()
		if http.NewResponseController(w).Flush() != nil {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-ctx.Done():
			return
		case <-next:
			time.Sleep(newsPause)
			fmt.Fprintln(w, "changed")
		}
	}
}

// WatchPaths calls changed after each change of the path to a peer, until ctx or the process ends.
func (c *Controller) WatchPaths(ctx context.Context, changed func()) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://tunnel/v1/paths", nil)
	if err != nil {
		return fmt.Errorf("tunnel: %w", err)
	}
	resp, err := c.stream.Do(req)
	if err != nil {
		return fmt.Errorf("tunnel: %w", err)
	}
	defer resp.Body.Close()
	changed() // earlier changes
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		changed()
	}
	return lines.Err()
}

// forPaths is the configuration of the paths.
func (c Config) forPaths() paths.Config {
	out := paths.Config{
		Private: c.PrivateKey.Bytes(), Public: c.PrivateKey.Public().Bytes(),
		UDP: c.Candidates, TCP: c.Streams, Relay: c.Relay,
	}
	inside := c.inside()
	never := func(a netip.Addr) bool { return c.StreamsOnly || a.IsLoopback() || inside(a).IsValid() }
	for _, b := range c.Brokers { // before peers: what a broker claims is no peer's
		if key := b.PublicKey; !key.IsZero() && key != c.PrivateKey.Public() && !slices.ContainsFunc(c.Peers, func(p Peer) bool { return p.PublicKey == key }) {
			out.Peers = append(out.Peers, paths.Peer{ID: b.ID, Public: key.Bytes(), UDP: b.UDP, TCP: b.TCP, Never: never, Broker: true})
		}
	}
	for _, p := range c.Peers {
		peer := paths.Peer{ID: p.ID, Public: p.PublicKey.Bytes(), Never: never}
		if p.Endpoint.IsValid() {
			peer.UDP = append(peer.UDP, p.Endpoint)
		}
		for _, w := range c.Paths {
			if w.ID == p.ID {
				peer.UDP = append(peer.UDP, w.UDP...)
				peer.TCP, peer.AnnouncedUDP, peer.AnnouncedTCP = w.TCP, w.AnnouncedUDP, w.AnnouncedTCP
			}
		}
		out.Peers = append(out.Peers, peer)
	}
	return out
}
