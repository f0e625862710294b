package engine

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"k8s.io/client-go/rest"
)

// How the engine is watched once its API has answered. An engine that only is
// slow, as on a card that stalls, must not be started again for it: that makes
// it slower. So any answer counts, asked where no datastore is needed.
const (
	hangLook  = 10 * time.Second
	hangAfter = time.Minute
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
	look, after time.Duration
	// ask returns nil for any answer at all.
	ask func(ctx context.Context) error
	// answered is called with each answer; it may be nil.
	answered func()
}

// wait returns an error once there was no answer for so long that the engine
// hangs, or nil when ctx ends.
func (h hang) wait(ctx context.Context) error {
	tick := time.NewTicker(h.look)
	defer tick.Stop()
	last, failed := time.Now(), 0
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		asking, cancel := context.WithTimeout(ctx, h.look)
		err := h.ask(asking)
		cancel()
		failed++
		switch {
		case err == nil:
			last, failed = time.Now(), 0
			if h.answered != nil {
				h.answered()
			}
		case ctx.Err() != nil:
			return nil
		// More than one question: the supervisor itself may have stood still.
		case failed > 2 && time.Since(last) >= h.after:
			return fmt.Errorf("the API server has not answered for %s (%w)", time.Since(last).Round(time.Second), err)
		}
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
