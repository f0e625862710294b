package engine

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"k8s.io/client-go/rest"
)

// How the engine is watched once its API has answered. An engine that only is
// slow, as on a card that stalls, must not be started again for it: that makes
// it slower. So any answer counts, however late, asked where no datastore is
// needed, and an engine that answers late is given more time.
const (
	hangLook  = 10 * time.Second
	hangAfter = time.Minute
	// An engine is silent when it takes this many times as long as it took before.
	hangSlower = 4
	// Where it hangs soon after it was started again for that, the machine may be too
	// slow for it to answer in that time: it is given more, but not so much that a
	// watchdog (engineSilence of the supervisor) loses its patience first.
	hangAfterMost = 4 * time.Minute
	soundAfter    = time.Hour
)

// patience is how long an engine may be silent, by what the ones before it did.
type patience struct{ after time.Duration }

// now is the patience with the engine that runs.
func (p *patience) now() time.Duration { return max(p.after, hangAfter) }

// hung takes note of one that hung after it had lived for so long.
func (p *patience) hung(lived time.Duration) {
	if lived >= soundAfter {
		p.after = 0
		return
	}
	p.after = min(2*p.now(), hangAfterMost)
}

// hang watches one engine for as long as it lives.
type hang struct {
	every, after time.Duration
	// probe returns nil for any answer at all.
	probe func(ctx context.Context) error
	// answered is called with each answer; it may be nil.
	answered func()
}

// answer is how a request ended, and how long it took.
type answer struct {
	err  error
	took time.Duration
}

// wait returns an error once there was no answer for so long that the engine
// hangs, or nil when ctx ends. Every look sends a request that may take as long as the
// patience lasts, so there are a few under way at a time, and the first answer to any counts.
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
			if h.answered != nil {
				h.answered()
			}
		case <-tick.C:
			// More than one request: the supervisor itself may have stood still.
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
	a := answer{err: h.probe(asking)}
	a.took = time.Since(begun)
	select {
	case to <- a:
	case <-ctx.Done():
	}
}

// asker asks the API server whether it is there, over one connection that is kept.
func asker(kubeconfig string) (func(context.Context) error, error) {
	cfg, err := RESTConfig(kubeconfig)
	if err != nil {
		return nil, err
	}
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("engine: %w", err)
	}
	return func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, cfg.Host+"/livez/ping", nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		return resp.Body.Close()
	}, nil
}
