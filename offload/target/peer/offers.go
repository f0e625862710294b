package peer

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"rivulet/fabric/changes"
	"rivulet/fabric/panics"
	"rivulet/fabric/peer"
	"rivulet/offload/offer"
)

const (
	// connectTimeout bounds an attempt to reach the peer.
	connectTimeout = 5 * time.Second
	maxLine        = 256 << 10
	// queryAgain is the pause before the query for other peers is repeated, for each of them: two hundred that come one
	// after the other would be two hundred queries to each of two hundred.
	queryAgain = 50 * time.Millisecond
	// lostAfter is about how long a peer does not answer before it is lost, lostSilence how long its silence lasts after
	// that: together offer.Silence.
	lostAfter, lostSilence = 9 * time.Second, offer.Silence - 9*time.Second
	// becomesCalm is the interval of checks whether home has no pods there any more, and its offer is repeated rarely.
	becomesCalm = 30 * time.Second
	// Pauses between attempts to open the stream.
	firstRetry, lastRetry = 200 * time.Millisecond, 3 * time.Second
)

// line is one line of the peer's stream, or why it is not used: a later line may be.
type line struct {
	offer.Offer
	refused error
}

// Offers streams the peer's offer. Only the newest value waits in the channel. A line that is not understood is an offer
// that is not ready.
func (t *Target) Offers(ctx context.Context) <-chan offer.Offer {
	return t.offers(ctx, offer.Silence, offer.CalmSilence)
}

// calms reports whether the offer need not be repeated often: home has no pods there, and the fabric reports when the
// peer is lost.
func (t *Target) calms() bool {
	return t.cfg.LinksChanged != nil && t.cfg.Busy != nil && !t.cfg.Busy()
}

// offers streams the offer. A peer that says nothing for usual is silent, for calm one whose offer is repeated rarely.
func (t *Target) offers(ctx context.Context, usual, calm time.Duration) <-chan offer.Offer {
	out, lines, broken := make(chan offer.Offer, 1), make(chan line), make(chan error)
	hurry := make(chan struct{}, 1) // the offer is repeated often from now on
	var calmly atomic.Bool          // it is repeated rarely
	ctx, end := context.WithCancelCause(ctx)
	go func() {
		defer panics.To(end)
		t.readForever(ctx, lines, broken, func() time.Duration {
			if calmly.Store(t.calms()); calmly.Load() {
				return calm
			}
			changes.Poke(hurry)
			return usual
		})
	}()
	silence := usual
	var links, through <-chan struct{}
	unfollow, unfollow2 := func() {}, func() {}
	if t.cfg.Relay != nil {
		through, unfollow2 = t.cfg.Relay.ThroughChanged()
	}
	if t.cfg.LinksChanged != nil {
		links, unfollow = t.cfg.LinksChanged()
		t.reach.Notify() // they may have changed since New
	}
	go func() {
		defer func() { offer.End(ctx, out) }()
		defer end(nil)
		defer panics.To(end)
		defer unfollow()
		defer unfollow2()
		timer, hopeless := time.NewTimer(silence), time.NewTimer(hope(silence))
		defer timer.Stop()
		defer hopeless.Stop()
		why := errors.New("no answer through the tunnel")
		silent, heard, lost, said := false, time.Now(), false, ""
		for {
			select {
			case <-ctx.Done():
				return
			case <-links:
				t.reach.Notify()
				was := lost
				if lost = t.unlinked(); lost == was {
					continue
				}
				limit, last := silence, hope(silence)
				if lost {
					limit, last = min(silence, lostSilence), min(last, hope(usual)-lostAfter)
				}
				if !silent {
					timer.Reset(limit)
				}
				hopeless.Reset(last)
			case <-through:
				t.reach.Notify()
			case <-hurry:
				if silence == usual {
					continue
				}
				if silence = usual; !silent {
					timer.Reset(usual)
				}
				hopeless.Reset(hope(usual))
			case l := <-lines:
				if silence = usual; calmly.Load() {
					silence = calm
				}
				heard = time.Now()
				timer.Reset(silence)
				hopeless.Reset(hope(silence))
				if silent {
					silent = false
					t.conns.CloseAll() // after a long cut they may be dead
				}
				t.link.Works()
				o := l.Offer
				t.mu.Lock()
				back := t.silent
				t.silent = false
				if l.refused != nil { // what is known of the peer stays
					o = t.latest
				}
				moved := !maps.Equal(t.latest.Neighbours, o.Neighbours)
				told := !t.received || !slices.Equal(t.latest.Tenants, o.Tenants)
				t.latest, t.received = o, t.received || l.refused == nil
				t.mu.Unlock()
				if l.refused != nil {
					o.Ready, o.Reason = false, fmt.Sprintf("the offer of peer %s is not understood: %s; upgrade the older of the two clusters, or end it: rivulet unpeer %[1]s",
						t.cfg.Name, peer.Text(l.refused.Error()))
					if said != o.Reason {
						t.cfg.Log.Warn("an offer is not understood", "err", l.refused)
					}
				}
				said = o.Reason
				if (told || moved) && t.cfg.Changed != nil {
					t.cfg.Changed()
				}
				if moved || back {
					t.reach.Notify()
				}
				o.Tenants = nil // Target.Tenants has them
				offer.Replace(out, o)
			case why = <-broken:
				t.link.Failed()
			case <-timer.C:
				silent = true
				t.mu.Lock()
				o := t.latest
				t.silent = true
				t.mu.Unlock()
				t.reach.Notify()
				o.Ready, o.Heard, o.Reason = false, heard, fmt.Sprintf("peer %s does not answer: %v; rivulet doctor peer %[1]s", t.cfg.Name, why)
				o.Tenants = nil // Target.Tenants has them
				offer.Replace(out, o)
			case <-hopeless.C:
				t.streams.CloseAll()
			}
		}
	}()
	return out
}

// hope is how long streams wait for a silent peer, 20 s. That is longer than Silence, since the silence is longer than
// the cut (by a heartbeat before it and TCP's next retry after it), and as long as the peer keeps a dead connection.
func hope(silence time.Duration) time.Duration { return silence * 5 / 3 }

// readForever reads connections; silence is how long each may be silent.
func (t *Target) readForever(ctx context.Context, lines chan<- line, broken chan<- error, silence func() time.Duration) {
	for pause := (changes.Backoff{First: firstRetry, Longest: lastRetry}); ctx.Err() == nil; {
		got, err := t.read(ctx, silence(), lines)
		if got {
			pause.Reset()
		}
		select {
		case broken <- err:
		case <-ctx.Done():
		}
		pause.Wait(ctx)
	}
}

// others are this cluster's other peers, sorted, as many as a query may have.
func (t *Target) others() (ids []string) {
	for _, l := range t.cfg.Links() {
		if l.ID != t.cfg.Link.ID {
			ids = append(ids, string(l.ID))
		}
	}
	slices.Sort(ids)
	return ids[:min(len(ids), offer.MaxOf)]
}

// read reads one connection's lines until it ends or goes silent.
func (t *Target) read(ctx context.Context, silence time.Duration, lines chan<- line) (got bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// The transport's timeouts do not cover a body without an end.
	watchdog := time.AfterFunc(connectTimeout, func() { cancel(errors.New("no answer through the tunnel")) })
	defer watchdog.Stop()
	defer func() {
		if cause := context.Cause(ctx); err != nil && cause != nil {
			err = cause
		}
	}()

	// The peer reports the peers in the query: this cluster's, which may change.
	changed, stop := t.Changed()
	defer stop()
	asked, lost, calm := t.others(), t.unlinked(), silence >= offer.CalmSilence
	var busy <-chan struct{}
	if t.cfg.BusyChanged != nil {
		c, stop := t.cfg.BusyChanged()
		defer stop()
		busy = c
	}
	go func() {
		defer panics.To(cancel)
		idle := time.NewTicker(becomesCalm)
		defer idle.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-busy:
				if calm && !t.calms() {
					cancel(errors.New("asked anew: home has pods there"))
				}
			case <-idle.C:
				if !calm && t.calms() {
					cancel(errors.New("asked anew: home has no pods there"))
				}
			case <-changed:
				was := lost
				if lost = t.unlinked(); was && !lost { // its next line may be a minute away
					cancel(errors.New("asked anew: the peer is back"))
				}
				if !slices.Equal(t.others(), asked) {
					changes.Wait(ctx, time.Duration(len(asked)+1)*queryAgain)
					cancel(errors.New("asked anew: we have other peers"))
				}
			}
		}
	}()
	query := url.Values{offer.OfQuery: asked}
	if calm {
		query.Set(offer.BeatQuery, strconv.Itoa(int(offer.Calm/time.Second)))
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, t.cfg.BaseURL+"/v1/offer?"+query.Encode(), nil)
	if err != nil {
		return false, err
	}
	resp, err := t.cfg.HTTP.Do(req)
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(resp.Body, 1024))
		return false, refusal(resp.StatusCode, body)
	}
	watchdog.Reset(silence)
	scan := bufio.NewScanner(resp.Body)
	scan.Buffer(nil, maxLine)
	for scan.Scan() {
		l := line{}
		l.refused = panics.Call(func() (err error) { l.Offer, err = offer.Decode(scan.Bytes()); return err })
		got = got || l.refused == nil
		watchdog.Reset(silence)
		select {
		case lines <- l:
		case <-ctx.Done():
			return got, ctx.Err()
		}
	}
	if err := scan.Err(); err != nil {
		return got, err
	}
	return got, errors.New("the peer closed the stream")
}
