package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/websocket"
)

// Report is what load prints, as JSON. Times are in milliseconds, those of requests that were answered.
type Report struct {
	Requests, Failed, Orders int
	P50, P95, P99, Max       float64
	LongestGap               float64        // between two answers
	Reasons                  map[string]int // of failures
	BySecond                 map[int]int    // failures, by the second in which their request began
	SlowBySecond             map[int]int    // answers after more than 200 ms, the same
	Sockets                  struct {
		Sessions, Messages, Moved, Lost int // moved: the server ended the session in order
		LongestSilence                  float64
		Reasons                         map[string]int // of lost sessions
	}
}

const (
	userTimeout = 10 * time.Second // for one request
	silence     = 5 * time.Second  // after which a WebSocket session is lost
	slow        = 200 * time.Millisecond
)

type generator struct {
	shop, socket string
	begun        time.Time

	mu        sync.Mutex
	report    Report
	latencies []float64
	last      time.Time // of the answers
}

// load opens the shop as users do, at a steady rate whatever the answers, and prints a Report.
func load(args []string) error {
	flags := flag.NewFlagSet("load", flag.ExitOnError)
	shop := flags.String("shop", "http://storefront", "the storefront")
	socket := flags.String("prices", "ws://prices:8080/prices", "the prices")
	rate := flags.Float64("rate", 10, "visits a second, of three requests each")
	sockets := flags.Int("sockets", 5, "WebSocket sessions")
	lasting := flags.Duration("for", 20*time.Second, "how long")
	if err := flags.Parse(args); err != nil {
		return err
	}
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt)
	defer cancel()
	ctx, cancel = context.WithTimeout(ctx, *lasting)
	defer cancel()
	g := &generator{shop: *shop, socket: *socket, begun: time.Now(), last: time.Now()}
	g.report.Reasons, g.report.BySecond, g.report.SlowBySecond = map[string]int{}, map[int]int{}, map[int]int{}
	g.report.Sockets.Reasons = map[string]int{}
	var all sync.WaitGroup
	for range *sockets {
		all.Go(func() { g.listen(ctx) })
	}
	tick := time.NewTicker(time.Duration(float64(time.Second) / *rate))
	defer tick.Stop()
	for n := 0; ctx.Err() == nil; n++ {
		all.Go(func() { g.visit(fmt.Sprintf("user-%d-%d", os.Getpid(), n)) })
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	all.Wait()
	g.summarize()
	return json.NewEncoder(os.Stdout).Encode(g.report)
}

func (g *generator) summarize() {
	slices.Sort(g.latencies)
	at := func(q float64) float64 {
		if len(g.latencies) == 0 {
			return 0
		}
		return g.latencies[int(q*float64(len(g.latencies)-1))]
	}
	g.report.P50, g.report.P95, g.report.P99, g.report.Max = at(.5), at(.95), at(.99), at(1)
}

// visit is one user, with one connection: looks, buys a lamp, pays.
func (g *generator) visit(user string) {
	transport := &http.Transport{DialContext: dial}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: userTimeout}
	g.request(func() (*http.Response, error) { return client.Get(g.shop + "/") })
	g.request(func() (*http.Response, error) {
		return client.PostForm(g.shop+"/cart", url.Values{"user": {user}, "item": {"lamp"}})
	})
	if g.request(func() (*http.Response, error) { return client.PostForm(g.shop+"/checkout", url.Values{"user": {user}}) }) {
		g.mu.Lock()
		g.report.Orders++
		g.mu.Unlock()
	}
}

func (g *generator) request(do func() (*http.Response, error)) bool {
	begun := time.Now()
	answer, err := do()
	if err == nil {
		var body []byte
		body, err = io.ReadAll(answer.Body)
		answer.Body.Close()
		if err == nil && answer.StatusCode != http.StatusOK {
			err = fmt.Errorf("%s: %s", answer.Status, body)
		}
	}
	now := time.Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	second := int(begun.Sub(g.begun).Seconds())
	g.report.Requests++
	if err != nil {
		g.report.Failed++
		g.report.Reasons[reason(err)]++
		g.report.BySecond[second]++
		return false
	}
	g.latencies = append(g.latencies, float64(now.Sub(begun))/1e6)
	if now.Sub(begun) > slow {
		g.report.SlowBySecond[second]++
	}
	g.report.LongestGap = max(g.report.LongestGap, float64(now.Sub(g.last))/1e6)
	g.last = now
	return true
}

// reason is an error without what differs from one to the next: users and ports.
func reason(err error) string {
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		return "no answer in time"
	}
	words := strings.Fields(err.Error())
	for i, w := range words {
		if strings.Contains(w, "->") {
			words[i] = "…"
		}
	}
	return strings.Join(words, " ")
}

// listen keeps one WebSocket session open, and opens another when it ends.
func (g *generator) listen(ctx context.Context) {
	dialer := websocket.Dialer{NetDialContext: dial, HandshakeTimeout: silence}
	last := time.Now()
	for ctx.Err() == nil {
		c, _, err := dialer.DialContext(ctx, g.socket, nil)
		if err != nil {
			g.ended(ctx, err)
			continue
		}
		g.mu.Lock()
		g.report.Sockets.Sessions++
		g.mu.Unlock()
		stop := context.AfterFunc(ctx, func() { c.Close() })
		for {
			_ = c.SetReadDeadline(time.Now().Add(silence))
			if _, _, err = c.ReadMessage(); err != nil {
				break
			}
			g.mu.Lock()
			g.report.Sockets.Messages++
			g.report.Sockets.LongestSilence = max(g.report.Sockets.LongestSilence, float64(time.Since(last))/1e6)
			g.mu.Unlock()
			last = time.Now()
		}
		stop()
		c.Close()
		g.ended(ctx, err)
	}
}

// ended counts the end of a session, unless the load has ended.
func (g *generator) ended(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if websocket.IsCloseError(err, websocket.CloseGoingAway) {
		g.report.Sockets.Moved++
		return
	}
	g.report.Sockets.Lost++
	g.report.Sockets.Reasons[reason(err)]++
}
