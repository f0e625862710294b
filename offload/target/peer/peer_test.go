package peer

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"rivulet/fabric/peer"
	"rivulet/offload/offer"
)

var (
	pods = netip.MustParsePrefix("10.42.0.0/16")
	b    = peer.Link{ID: "b", Name: "b", Addr: netip.MustParseAddrPort("10.77.255.254:7442"),
		Theirs: pods, Remote: netip.MustParsePrefix("10.77.0.0/16"), As: netip.MustParsePrefix("10.88.0.0/16")}
	c = peer.Link{ID: "c", Name: "c", Theirs: pods, Remote: netip.MustParsePrefix("10.78.0.0/16"), As: netip.MustParsePrefix("10.89.0.0/16")}
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
	rapid.Check(t, func(t *rapid.T) {
		theirs := netip.AddrFrom4([4]byte{10, 42, rapid.Byte().Draw(t, "x"), rapid.Byte().Draw(t, "y")})
		home, ok := target.Home(theirs)
		if !ok || !b.Remote.Contains(home) {
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
	offers := target.offers(t.Context(), 300*time.Millisecond)
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
	if o := want("silence", false, "arm64"); !strings.Contains(o.Reason, "silent") {
		t.Errorf("reason %q", o.Reason)
	}
	next <- "not an offer"
	next <- line
	want("after nonsense", true, "arm64")
}
