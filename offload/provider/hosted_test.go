package provider

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"rivulet/fabric/peer"
	"rivulet/offload/policy"
	"rivulet/offload/provider/tenancy"
)

type twoHosts struct{ mux *http.ServeMux }

const hostA, hostB = peer.ID("a"), peer.ID("b")

func (p twoHosts) Links() []peer.Link { return []peer.Link{{ID: hostA}, {ID: hostB}} }
func (p twoHosts) Peerings() ([]peer.Link, []peer.Unlinked) {
	return p.Links(), []peer.Unlinked{{Link: peer.Link{ID: "keyless"}}}
}
func (twoHosts) Departed() []peer.ID                     { return nil }
func (twoHosts) Changed() (<-chan struct{}, func())      { return make(chan struct{}), func() {} }
func (p twoHosts) Handle(pattern string, h http.Handler) { p.mux.Handle(pattern, h) }

// TestAHostsVirtualClusters: only the host itself sends requests for its virtual clusters, and only for those that it has
// listed last; no other cluster's have their identity. One that it lists no more gets nothing, and stays until it says
// that it has ended.
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
	put := func(as peer.ID, all HostedList) int {
		t.Helper()
		body, _ := json.Marshal(all)
		code, _ := send(as, "PUT", "/v1/hosted", string(body))
		return code
	}
	list := func(as peer.ID, seeds ...string) int {
		t.Helper()
		return put(as, HostedList{Seeds: seeds})
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
	evicted := func() bool { _, is := p.evicted()[one]; return is }
	if p.Lends(one) || p.borrowers()[one] || evicted() {
		t.Error("one that is not listed any more may borrow, or its twins go")
	}
	put(hostB, HostedList{Ended: []string{"one", string(one)}})
	put(hostA, HostedList{Seeds: []string{"two"}, Ended: []string{string(one)}})
	if evicted() {
		t.Error("another host has ended it, or an identity in the place of its seed")
	}
	put(hostA, HostedList{Seeds: []string{"two"}, Ended: []string{"one"}})
	list(hostA, "two") // the host is not asked about it any more
	if p.Lends(one) || !evicted() {
		t.Error("one that has ended may borrow, or stays")
	}
	put(hostA, HostedList{Seeds: []string{"one", "two"}, Ended: []string{"one"}})
	if !p.Lends(one) || evicted() {
		t.Error("one that is listed again may not borrow, or its twins go")
	}
	list(hostA, "two")
	expect("the other", hostA, "two", in)
	list(hostB)
	expect("another host's list ends nothing", hostA, "two", in)
	for i := range 50 {
		put(hostB, HostedList{Ended: []string{fmt.Sprint("never listed ", i)}})
		var seeds []string
		for j := range MaxHosted {
			seeds = append(seeds, fmt.Sprint(i, "-", j))
		}
		if code := list(hostB, seeds...); code != http.StatusOK {
			t.Fatal(code)
		}
	}
	if n := max(len(p.vclusters.hosts), len(p.vclusters.standing)); n > mostRemembered+3*MaxHosted {
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

// twinsAPI is an API server with these namespaces, and nothing else.
func twinsAPI(t *testing.T, twins ...corev1.Namespace) *rest.Config {
	list := corev1.NamespaceList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NamespaceList"}, ListMeta: metav1.ListMeta{ResourceVersion: "1"}, Items: twins}
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		watch := r.URL.Query()
		switch {
		case r.URL.Path != "/api/v1/namespaces" || watch.Has("sendInitialEvents"):
			http.Error(w, "not served", http.StatusNotFound)
		case watch.Has("watch"):
			<-r.Context().Done()
		default:
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(list)
		}
	}))
	t.Cleanup(func() { api.CloseClientConnections(); api.Close() })
	return &rest.Config{Host: api.URL}
}

// TestAHostThatWasRestoredEndsNothing: a host that lists a virtual cluster no more, because it is older than it, is asked
// about it, and ends nothing by its silence. What it has stays, is shown, and a person may remove it.
func TestAHostThatWasRestoredEndsNothing(t *testing.T) {
	one, two, bs := peer.Hosted(hostA, "one"), peer.Hosted(hostA, "two"), peer.Hosted(hostB, "one")
	twin := func(name string, of, host peer.ID) corev1.Namespace {
		return corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{policy.OriginLabel: string(of), policy.HostLabel: string(host)}}}
	}
	mux := http.NewServeMux()
	p, err := New(Config{Peers: twoHosts{mux}, Config: tenancy.Config{
		Local: twinsAPI(t, twin("lab-1", one, hostA), twin("db-1", one, hostA), twin("lab-2", two, hostA), twin("lab-b", bs, hostB)), Log: slog.New(slog.DiscardHandler),
		PeerID: func(r *http.Request) (peer.ID, bool) { id := r.Header.Get("Test-Peer"); return peer.ID(id), id != "" },
	}})
	if err != nil {
		t.Fatal(err)
	}
	put := func(all HostedList) (got HostedTenants) {
		t.Helper()
		body, _ := json.Marshal(all)
		r := httptest.NewRequest("PUT", "/v1/hosted", bytes.NewReader(body))
		r.Header.Set("Test-Peer", string(hostA))
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Code != http.StatusOK {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
		return got
	}
	if got := put(HostedList{Seeds: []string{"two"}}); !got.Loading || len(got.Unlisted) > 0 {
		t.Errorf("before twins are loaded: %+v", got)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = p.tenancy.Run(ctx) }()
	defer func() { stop(); <-done }()
	if !p.tenancy.WaitTwins(ctx) {
		t.Fatal("twins are not loaded")
	}
	for range 2 {
		if got := put(HostedList{Seeds: []string{"two"}}); got.Loading || !slices.Equal(got.Unlisted, []peer.ID{one}) {
			t.Errorf("it is asked about %+v, want %s", got, one)
		}
	}
	if _, evicted := p.evicted()[one]; evicted {
		t.Error("what it has goes")
	}
	said := p.Problems()["virtual cluster "+one.Short()]
	if !strings.Contains(said, "db-1, lab-1") || !strings.HasSuffix(said, "; if it is gone: rivulet tenants remove "+one.Short()) || p.Problems()["virtual cluster "+two.Short()] != "" {
		t.Errorf("%q", p.Problems())
	}
	if got := put(HostedList{Seeds: []string{"two"}, Ended: []string{"one"}}); len(got.Unlisted) > 0 {
		t.Errorf("it is asked again about %v", got.Unlisted)
	}
	if all := p.evicted(); len(all) != 1 || p.Problems()["virtual cluster "+one.Short()] != "" {
		t.Errorf("once it has ended: %v %q", all, p.Problems())
	}
}
