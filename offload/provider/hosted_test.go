package provider

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"rivulet/fabric/peer"
	"rivulet/offload/provider/tenancy"
)

type twoHosts struct{ mux *http.ServeMux }

const hostA, hostB = peer.ID("a"), peer.ID("b")

func (p twoHosts) Links() []peer.Link                    { return []peer.Link{{ID: hostA}, {ID: hostB}} }
func (twoHosts) Departed() []peer.ID                     { return nil }
func (twoHosts) Changed() (<-chan struct{}, func())      { return make(chan struct{}), func() {} }
func (p twoHosts) Handle(pattern string, h http.Handler) { p.mux.Handle(pattern, h) }

// TestAHostsVirtualClusters: only the host itself sends requests for its virtual clusters, and only for those that it has
// listed last; no other cluster's have their identity.
func TestAHostsVirtualClusters(t *testing.T) {
	mux := http.NewServeMux()
	p, err := New(Config{Peers: twoHosts{mux}, Config: tenancy.Config{
		Local: &rest.Config{Host: "https://127.0.0.1:1"}, Log: slog.New(slog.DiscardHandler),
		PeerID: func(r *http.Request) (peer.ID, bool) { id := r.Header.Get("Test-Peer"); return peer.ID(id), id != "" },
	}})
	if err != nil {
		t.Fatal(err)
	}
	send := func(as peer.ID, method, path, body string) (int, string) {
		t.Helper()
		r := httptest.NewRequest(method, path, strings.NewReader(body))
		r.Header.Set("Test-Peer", string(as))
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		return w.Code, w.Body.String()
	}
	list := func(as peer.ID, seeds ...string) int {
		t.Helper()
		body, _ := json.Marshal(HostedList{Seeds: seeds})
		code, _ := send(as, "PUT", "/v1/hosted", string(body))
		return code
	}
	// The API server here does not answer: a request that is let in is refused with 503.
	const in, out, pending = http.StatusServiceUnavailable, http.StatusForbidden, -1
	expect := func(what string, as peer.ID, seed string, want int) {
		t.Helper()
		code, body := send(as, "GET", HostedPrefix+seed+"/v1/namespaces", "")
		if strings.Contains(body, "hosted-pending") {
			code = pending
		}
		if code != want {
			t.Errorf("%s: %d %s, want %d", what, code, body, want)
		}
	}
	expect("before a list", hostA, "one", pending)
	if code := list(hostA, "one", "two"); code != http.StatusOK {
		t.Fatal(code)
	}
	expect("listed", hostA, "one", in)
	expect("another host's", hostB, "one", pending)
	expect("nobody's", "", "one", out)
	for _, path := range []string{"/v1/hosted", "/v1/peering/end", "/v1/hosted/two/v1/namespaces"} {
		if code, _ := send(hostA, "GET", HostedPrefix+"one"+path, ""); code != http.StatusNotFound {
			t.Errorf("%s is served to a virtual cluster: %d", path, code)
		}
	}
	one := peer.Hosted(hostA, "one")
	if !p.Lends(one) || p.account(one) != hostA || !p.borrowers()[one] {
		t.Error("a listed one may not borrow, or not for its host")
	}
	if one == peer.Hosted(hostB, "one") || !one.Valid() {
		t.Error("two hosts' have one identity, or it is not valid")
	}
	list(hostA, "two")
	expect("not listed any more", hostA, "one", out)
	if _, evicted := p.evicted()[one]; p.Lends(one) || p.borrowers()[one] || !evicted {
		t.Error("one that is not listed any more may borrow, or stays")
	}
	expect("the other", hostA, "two", in)
	list(hostB)
	expect("another host's list ends nothing", hostA, "two", in)
	for i := range 50 {
		var seeds []string
		for j := range MaxHosted {
			seeds = append(seeds, fmt.Sprint(i, "-", j))
		}
		if code := list(hostB, seeds...); code != http.StatusOK {
			t.Fatal(code)
		}
	}
	if n := max(len(p.vclusters.hosts), len(p.vclusters.listed)); n > mostRemembered+3*MaxHosted {
		t.Errorf("%d virtual clusters of a host are remembered", n)
	}
	expect("the other, after another host has listed very many", hostA, "two", in)
	if code := list("stranger", "x"); code != http.StatusUnauthorized {
		t.Errorf("a stranger lists: %d", code)
	}
	if code := list(hostA, strings.Split(strings.Repeat("x,", MaxHosted), ",")...); code != http.StatusForbidden {
		t.Errorf("too many: %d", code)
	}
}
