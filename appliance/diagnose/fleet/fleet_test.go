package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"pgregory.net/rapid"

	"rivulet/appliance/api"
	"rivulet/appliance/config"
	"rivulet/appliance/health"
	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func aPeer(name string, how string, state peer.State) peer.View {
	return peer.View{Record: peer.Record{ID: peer.ID(strings.Repeat(name, 32)), Name: name, Trust: peer.Trust{How: how}}, State: state}
}

func aStatus() api.Status {
	return api.Status{
		Name: "lab-1", NodeName: "node", ID: peer.ID(strings.Repeat("z", 32)), Version: "v1", Ready: true, Started: now.Add(-time.Hour), Pods: api.Pods{Home: 3, Away: 1, Tenants: 2},
		Peers: []peer.View{aPeer("b", peer.TrustGroup, peer.Connected), aPeer("c", peer.TrustGroup, peer.Lost), aPeer("d", "", peer.Discovered)},
		Room:  map[string]api.Room{"node": {Allocatable: corev1.ResourceList{"cpu": resource.MustParse("4"), "memory": resource.MustParse("8Gi")}, Requested: corev1.ResourceList{"cpu": resource.MustParse("1500m"), "memory": resource.MustParse("10Gi")}}},
		Health: []health.Problem{
			{Kind: health.Kind{Code: "config-broken", Severity: health.Error, Title: "the configuration has a mistake"}, Subject: "/etc/rivulet/config.yaml", Text: "line 3: secret hunter2hunter2", Cure: "edit it"},
			{Kind: health.Kind{Code: "clock", Severity: health.Warning, Title: "no time source"}},
			{Kind: health.Kind{Code: "hint", Severity: health.Info, Title: "worth knowing"}},
		},
	}
}

// A summary has figures, codes and titles; no texts, subjects, addresses or names of others.
func TestASummaryHasNoSecrets(t *testing.T) {
	st := aStatus()
	s := Summarize(st, now)
	if s.Name != "lab-1" || !s.Ready || s.Up != 3600 || s.Pods.Tenants != 2 || s.Peers != (Count{1, 2}) || s.Errors != 1 || s.Warnings != 1 || len(s.Problems) != 2 ||
		s.Capacity != (Room{CPU: 4000, CPUFree: 2500, Memory: 8 << 30}) {
		t.Errorf("%+v", s)
	}
	st.Ready, st.Waiting = false, "engine: dial tcp 192.168.1.7:6443: refused"
	text, err := json.Marshal(Summarize(st, now))
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{"hunter2", "config.yaml", "edit it", "192.168", "bbbb", "worth knowing"} {
		if strings.Contains(string(text), secret) {
			t.Errorf("it has %q: %s", secret, text)
		}
	}
	if !strings.Contains(string(text), `"waiting":"engine"`) {
		t.Errorf("what it waits for: %s", text)
	}
	for i := range 40 {
		st.Health = append(st.Health, health.Problem{Kind: health.Kind{Code: fmt.Sprint("code-", i), Severity: health.Error, Title: strings.Repeat("x", 200)}})
	}
	if s := Summarize(st, now); len(s.Problems) != mostProblems || s.Errors != 41 {
		t.Errorf("%d problems of %d", len(s.Problems), s.Errors)
	}
}

// Whatever a peer sends is within the bounds, printable, and of known form.
func TestWhatAPeerSendsIsBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		number := func(what string) int { return rapid.Int().Draw(t, what) }
		s := Summary{
			Name: rapid.String().Draw(t, "name"), Version: strings.Repeat(rapid.String().Draw(t, "version"), 50), Waiting: rapid.String().Draw(t, "waiting"), Up: int64(number("up")),
			Pods: api.Pods{Home: number("home"), Away: number("away"), Tenants: number("tenants")}, Peers: Count{number("connected"), number("all")},
			Capacity: Room{int64(number("cpu")), int64(number("free")), int64(number("memory")), int64(number("left"))}, Errors: number("errors"), Warnings: number("warnings"),
		}
		for range rapid.IntRange(0, 50).Draw(t, "problems") {
			s.Problems = append(s.Problems, Problem{rapid.SampledFrom([]string{"disk-space", "unknown-code", "Bad Code", "", "\x1b[2J"}).Draw(t, "code"), health.Severity(rapid.SampledFrom([]string{"error", "warning", "info", "fatal"}).Draw(t, "severity")), "\x1b]0;owned\a" + rapid.String().Draw(t, "title")})
		}
		s.clean()
		if len(s.Problems) > mostProblems || s.Up < 0 || s.Up > mostSeconds {
			t.Fatalf("%+v", s)
		}
		for _, n := range []int{s.Pods.Home, s.Pods.Away, s.Pods.Tenants, s.Peers.Connected, s.Peers.All, s.Errors, s.Warnings} {
			if n < 0 || n > mostCount {
				t.Fatalf("%+v", s)
			}
		}
		texts := []string{s.Name, s.Version, s.Waiting}
		for _, p := range s.Problems {
			texts = append(texts, p.Title)
			if p.Code == "disk-space" && strings.Contains(p.Title, "owned") || p.Severity != health.Error && p.Severity != health.Warning || !codeForm.MatchString(p.Code) {
				t.Fatalf("%+v", p)
			}
		}
		for _, text := range texts {
			if text != peer.Text(text) || len([]rune(text)) > mostTitle {
				t.Fatalf("%q", text)
			}
		}
	})
}

func summary(ready bool, errors, warnings int) *Summary {
	return &Summary{Ready: ready, Errors: errors, Warnings: warnings}
}

func TestTheWorstComesFirst(t *testing.T) {
	order := []Member{
		{Name: "silent", State: Silent}, {Name: "two errors", State: Shown, Summary: summary(true, 2, 0)}, {Name: "an error", State: Shown, Summary: summary(true, 1, 9)},
		{Name: "unready", State: Shown, Summary: summary(false, 0, 0)}, {Name: "a warning", State: Shown, Summary: summary(true, 0, 1)},
		{Name: "fine 1", State: Shown, Summary: summary(true, 0, 0)}, {Name: "fine 2", State: Shown, Summary: summary(true, 0, 0)}, {Name: "hidden", State: Hidden},
	}
	rapid.Check(t, func(t *rapid.T) {
		got := rapid.Permutation(order).Draw(t, "members")
		slices.SortFunc(got, Worst)
		for i := range order {
			if got[i].Name != order[i].Name {
				t.Fatalf("%d is %s, want %s", i, got[i].Name, order[i].Name)
			}
		}
	})
}

// aFleet has these peers, which answer as query says.
func aFleet(peers []peer.View, allow *atomic.Bool, query func(context.Context, peer.ID) (Summary, error)) *Fleet {
	f := New(Config{Supervisor: lab{}, Settings: lab{allow: allow}})
	f.peers = lab{peers: peers, answer: query}
	return f
}

type lab struct {
	allow  *atomic.Bool
	peers  []peer.View
	answer func(context.Context, peer.ID) (Summary, error)
}

func (lab) Status() api.Status                                       { return aStatus() }
func (l lab) Now() (c config.Loaded)                                 { c.Config.Fleet = l.allow.Load(); return c }
func (l lab) list() []peer.View                                      { return l.peers }
func (l lab) query(ctx context.Context, id peer.ID) (Summary, error) { return l.answer(ctx, id) }

func respond(f *Fleet, name string) (code int, body string) {
	w := httptest.NewRecorder()
	f.respond(w, peer.ID(strings.Repeat(name, 32)))
	return w.Code, w.Body.String()
}

// Only a peer of the group gets an answer, only while the owner allows it, and not after it was unpeered.
func TestWhoGetsAnAnswer(t *testing.T) {
	var allow atomic.Bool
	peers := []peer.View{aPeer("b", peer.TrustGroup, peer.Connected), aPeer("c", peer.TrustLAN, peer.Connected), aPeer("d", peer.TrustGroup, peer.Denied)}
	f := aFleet(peers, &allow, nil)
	expect := func(name string, want int) {
		t.Helper()
		if code, body := respond(f, name); code != want || want != http.StatusOK && strings.Contains(body, "lab-1") {
			t.Errorf("%s gets %d: %s", name, code, body)
		}
	}
	expect("b", http.StatusForbidden)
	allow.Store(true)
	for name, want := range map[string]int{"b": http.StatusOK, "c": http.StatusForbidden, "d": http.StatusForbidden, "e": http.StatusForbidden} {
		expect(name, want)
	}
	f.peers = lab{} // unpeered
	expect("b", http.StatusForbidden)
	f.peers = lab{peers: peers}
	allow.Store(false)
	expect("b", http.StatusForbidden)
	allow.Store(true)
	codes := map[int]int{}
	for range 4 * requestBurst {
		code, _ := respond(f, "b")
		codes[code]++
	}
	if codes[http.StatusTooManyRequests] == 0 || codes[http.StatusOK] == 0 {
		t.Errorf("a flood gets %v", codes)
	}
}

// Every member of the group has a line: what does not answer, does not allow it or is too old, too.
func TestMembers(t *testing.T) {
	var allow atomic.Bool
	allow.Store(true)
	peers := []peer.View{
		aPeer("b", peer.TrustGroup, peer.Connected), aPeer("c", peer.TrustGroup, peer.Lost), aPeer("d", peer.TrustGroup, peer.Connected), aPeer("e", peer.TrustGroup, peer.Connected), aPeer("f", peer.TrustGroup, peer.Connected),
		aPeer("g", peer.TrustLAN, peer.Connected), aPeer("h", peer.TrustGroup, peer.Denied),
	}
	f := aFleet(peers, &allow, func(_ context.Context, id peer.ID) (Summary, error) {
		switch id[0] {
		case 'b':
			return Summary{Name: "another name", Ready: true, Problems: []Problem{{"Bad", "error", "x"}}}, nil
		case 'd':
			return Summary{}, &rpc.Error{Code: notShown}
		case 'e':
			return Summary{}, &rpc.Error{Code: "http"} // 404 of an older version
		}
		return Summary{}, errors.New("dial tcp: refused")
	})
	a := f.Members(t.Context())
	var got []string
	for _, m := range a.Members {
		got = append(got, m.Name+" "+string(m.State)+" "+m.Verdict())
	}
	want := "c silent lost, f silent does not answer, lab-1 shown Ready, b shown Ready, d hidden does not show its status, e hidden does not show its status"
	if strings.Join(got, ", ") != want || !a.Allowed || len(a.Members[3].Problems) != 0 {
		t.Errorf("%q\nwant %q", strings.Join(got, ", "), want)
	}
}

// A slow or silent device costs its own line, thirty of them no more time than one; many readers are one query.
func TestSilentMembersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var peers []peer.View
		for i := range 30 {
			v := aPeer("b", peer.TrustGroup, peer.Connected)
			v.ID, v.Name = peer.ID(fmt.Sprintf("%032d", i)), fmt.Sprint("lab-", i+2)
			peers = append(peers, v)
		}
		var queries atomic.Int32
		f := aFleet(peers, new(atomic.Bool), func(ctx context.Context, _ peer.ID) (Summary, error) {
			queries.Add(1)
			<-ctx.Done()
			return Summary{}, ctx.Err()
		})
		begun := time.Now()
		var readers sync.WaitGroup
		for range 10 {
			readers.Go(func() {
				a := f.Members(t.Context())
				if len(a.Members) != 31 || a.Members[0].State != Silent || a.Members[0].Reason != "does not answer" || !a.Members[30].Here {
					t.Errorf("%+v", a.Members[0])
				}
			})
		}
		readers.Wait()
		if took := time.Since(begun); took > limit || queries.Load() != 30 {
			t.Errorf("%d queries took %s", queries.Load(), took)
		}
	})
}
