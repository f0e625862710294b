package engine

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"k8s.io/client-go/rest"
)

// Detection of a hung engine once its API has answered. A slow engine, as on a card that stalls, must not be restarted,
// because that makes it slower. So every answer counts, however late, to a request that needs no datastore, and an
// engine that answers late gets more time.
const (
	hangLook  = 10 * time.Second
	hangAfter = time.Minute
	// An engine hangs when it takes this many times as long as before.
	hangSlower = 4
	// If it hangs again soon after such a restart, the machine may be too slow for the limit: the limit grows, but
	// stays below that of the watchdog (engineSilence of the supervisor).
	hangAfterMost = 4 * time.Minute
	soundAfter    = time.Hour
)

// patience is how long an engine may be silent, from the behaviour of earlier ones.
type patience struct{ after time.Duration }

// now is the limit for the running engine.
func (p *patience) now() time.Duration { return max(p.after, hangAfter) }

// hung records an engine that hung after it had lived for that time.
func (p *patience) hung(lived time.Duration) {
	if lived >= soundAfter {
		p.after = 0
		return
	}
	p.after = min(2*p.now(), hangAfterMost)
}

// hang checks one engine as long as it lives.
type hang struct {
	every, after time.Duration
	api          probed
}

// probed is an API server.
type probed interface {
	// ping returns nil for any answer at all.
	ping(ctx context.Context) error
	// answered is called with each answer.
	answered()
}

// answer is the result of a request and its duration.
type answer struct {
	err  error
	took time.Duration
}

// wait returns an error once the engine hangs, or nil when ctx ends. Each check sends a request that may take as long
// as the patience, so a few are in flight, and the first answer to any of them counts.
func (h hang) wait(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	tick := time.NewTicker(h.every)
	defer tick.Stop()
	answers := make(chan answer)
	last, asked, slowest := time.Now(), 0, time.Duration(0)
	err := errors.New("no answer yet")
	for {
		limit := max(h.after, min(hangSlower*slowest, hangAfterMost))
		select {
		case <-ctx.Done():
			return nil
		case a := <-answers:
			if a.err != nil {
				err = a.err
				continue
			}
			last, asked = time.Now(), 0
			slowest = max(a.took, slowest*9/10)
			h.api.answered()
		case <-tick.C:
			// More than one request: the supervisor itself may have been suspended.
			if silent := time.Since(last); asked > 2 && silent >= limit {
				return fmt.Errorf("the API server has not answered for %s (%w)", silent.Round(time.Second), err)
			}
			asked++
			go h.send(ctx, limit, answers)
		}
	}
}

func (h hang) send(ctx context.Context, limit time.Duration, to chan<- answer) {
	begun := time.Now()
	asking, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	a := answer{err: h.api.ping(asking)}
	a.took = time.Since(begun)
	select {
	case to <- a:
	case <-ctx.Done():
	}
}

// ownAPI is the API server of an engine, over one persistent connection.
type ownAPI struct {
	e      *Engine
	client *http.Client
	url    string
}

func apiOf(e *Engine) (*ownAPI, error) {
	cfg, err := RESTConfig(e.Kubeconfig())
	if err != nil {
		return nil, err
	}
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("engine: %w", err)
	}
	return &ownAPI{e, client, cfg.Host + "/livez/ping"}, nil
}

func (a *ownAPI) ping(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.url, nil)
	if err != nil {
		return err
	}
	resp, err := a.client.Do(req)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

func (a *ownAPI) answered() {
	if a.e.owner != nil {
		a.e.owner.Answered()
	}
}
