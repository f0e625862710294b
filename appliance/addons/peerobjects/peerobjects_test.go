package peerobjects

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"pgregory.net/rapid"

	"rivulet/fabric"
	"rivulet/fabric/peer"
	"rivulet/test/harness/apiserver"
	"rivulet/test/harness/await"
)

// fakeFabric is what the mirror sees of a fabric.
type fakeFabric struct {
	looks  atomic.Int32
	mu     sync.Mutex
	peers  map[peer.ID]View
	subs   []chan struct{}
	gone   []peer.ID // peerings that have ended
	away   bool      // the peer cannot be told
	forced bool
	// at says who answers where, yes whom the word was given for, in order.
	at        map[string]peer.ID
	yes       []peer.ID
	withdrawn []peer.ID
}

func (f *fakeFabric) ApproveAt(_ context.Context, id peer.ID, address string) (v peer.View, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if id == "" {
		if id = f.at[address]; id == "" {
			return v, fmt.Errorf("nobody answers at %s", address)
		}
	}
	f.yes = append(f.yes, id)
	v.ID = id
	return v, nil
}

func (f *fakeFabric) Withdraw(id peer.ID) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.withdrawn = append(f.withdrawn, id)
	return nil
}

func (f *fakeFabric) words() (yes, withdrawn []peer.ID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.yes), slices.Clone(f.withdrawn)
}

func (f *fakeFabric) views() (out []View) {
	f.looks.Add(1)
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, v := range f.peers {
		out = append(out, v)
	}
	return out
}

func (f *fakeFabric) Changed() (<-chan struct{}, func()) {
	ch := make(chan struct{}, 1)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.subs = append(f.subs, ch)
	return ch, func() {}
}

func (f *fakeFabric) Departed() []peer.ID {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.gone)
}

// end ends a peering.
func (f *fakeFabric) end(id peer.ID) {
	f.change(func() { delete(f.peers, id); f.gone = append(f.gone, id) })
}

func (f *fakeFabric) change(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
	for _, ch := range f.subs {
		select {
		case ch <- struct{}{}:
		default:
		}
	}
}

func (f *fakeFabric) Unpeer(_ context.Context, id string, how fabric.Unpeer) (v peer.View, err error) {
	f.mu.Lock()
	away := f.away
	f.mu.Unlock()
	if away && !how.Force {
		return v, errors.New("b cannot be told; if it is gone: rivulet unpeer --force b")
	}
	f.end(peer.ID(id))
	f.change(func() { f.forced = how.Force })
	return v, nil
}

func (f *fakeFabric) Set(_ context.Context, id string, settings peer.Settings) (out peer.View, err error) {
	f.change(func() {
		v := f.peers[peer.ID(id)]
		err = settings.Apply(&v.Record)
		f.peers[peer.ID(id)], out = v, v.View
	})
	return out, err
}

func idOf(c byte) peer.ID { return peer.ID(strings.Repeat(string(c), 32)) }

func aPeer(c byte, name string, state peer.State) View {
	r := peer.Record{ID: idOf(c), Name: name, Trust: peer.Trust{How: "lan", At: time.Now()}, PeerMappedCIDR: netip.MustParsePrefix("10.64.0.0/16"),
		LocalMappedCIDR: netip.MustParsePrefix("10.72.0.0/16"), Control: netip.MustParseAddrPort("192.0.2.2:7442"), Version: "1", KubeVersion: "v1.35.0"}
	return View{View: peer.View{Record: r, State: state, Since: time.Now()}, Path: "direct"}
}

// The whole life of objects, in a real API server.
func TestObjects(t *testing.T) {
	server := apiserver.Start(t)
	dyn, err := dynamic.NewForConfig(server.Config)
	if err != nil {
		t.Fatal(err)
	}
	client := dyn.Resource(Resource)
	f := &fakeFabric{peers: map[peer.ID]View{idOf('a'): aPeer('a', "b", peer.Connecting), idOf('z'): {View: peer.View{Record: peer.Record{ID: idOf('z'), Name: "stranger"}, State: peer.Discovered}}}}
	run := func() (stop func()) {
		ctx, cancel := context.WithCancel(t.Context())
		ready, done := make(chan struct{}), make(chan error, 1)
		cfg := Config{API: server.Config, Fabric: f, Peers: f.views, NodesChanged: f.Changed, Log: slog.New(slog.NewTextHandler(t.Output(), nil))}
		go func() { done <- Run(ctx, cfg, func() { close(ready) }) }()
		select {
		case <-ready:
		case err := <-done:
			t.Fatalf("ended: %v", err)
		case <-time.After(time.Minute):
			t.Fatal("not ready within a minute")
		}
		return func() { cancel(); <-done }
	}
	get := func(name string) *Peer {
		t.Helper()
		u, err := client.Get(t.Context(), name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			t.Fatal(err)
		}
		p, err := fromAPI(u)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	until := func(what string, ok func() bool) {
		t.Helper()
		await.NoError(t, t.Context(), 30*time.Second, what, func() error {
			if !ok() {
				return fmt.Errorf("b is %+v", get("b"))
			}
			return nil
		})
	}
	event := func(name, reason, text string) {
		t.Helper()
		until("event "+reason+" of "+name, func() bool {
			all, err := server.Client.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.kind=Peer,involvedObject.name=" + name})
			return err == nil && slices.ContainsFunc(all.Items, func(e corev1.Event) bool { return e.Reason == reason && strings.Contains(e.Message, text) })
		})
	}
	patch := func(name, body string) {
		t.Helper()
		if _, err := client.Patch(t.Context(), name, types.MergePatchType, []byte(body), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	ready := func(name string) (metav1.ConditionStatus, string) {
		if p := get(name); p != nil && len(p.Status.Conditions) == 1 {
			return p.Status.Conditions[0].Status, p.Status.Conditions[0].Reason
		}
		return "", ""
	}

	// settled waits until all has been looked at that there is by now: two looks begin, and a third.
	settled := func() {
		t.Helper()
		looks := f.looks.Load()
		until("third look", func() bool { f.change(func() {}); return f.looks.Load() >= looks+3 })
	}

	stop := run()
	if s, why := ready("b"); s != metav1.ConditionFalse || why != "Connecting" || get("stranger") != nil {
		t.Fatalf("b is %s (%s), stranger %v", s, why, get("stranger"))
	}
	event("b", "Peered", "met on the LAN")

	f.change(func() { v := f.peers[idOf('a')]; v.State, v.Since = peer.Connected, time.Now(); f.peers[idOf('a')] = v })
	until("Ready", func() bool { s, _ := ready("b"); return s == metav1.ConditionTrue })

	// Cordoned here, withdrawn there.
	shown := func(is bool) {
		t.Helper()
		f.change(func() { v := f.peers[idOf('a')]; v.Cordoned, v.TheirRoles.NoProvide = is, is; f.peers[idOf('a')] = v })
		until(fmt.Sprintf("cordoned and withdrawn %v", is), func() bool { p := get("b"); return p.Status.Cordoned == is && p.Status.Withdrawn == is })
	}
	shown(true)
	shown(false)
	event("b", "Connected", "answers through the tunnel")
	p := get("b")
	if p.Status.ID != string(idOf('a')) || p.Status.Trust.How != "lan" || p.Status.Path != "direct" || p.Status.Prefixes.SeesUsAs != "10.72.0.0/16" || p.Status.Address != "192.0.2.2:7442" {
		t.Errorf("status %+v", p.Status)
	}

	t.Run("nothing is written when nothing changes", func(t *testing.T) {
		before := get("b").ResourceVersion
		f.change(func() { v := f.peers[idOf('a')]; v.RTT, v.LastSeen = time.Second, time.Now(); f.peers[idOf('a')] = v })
		settled()
		stop()
		stop = run()
		if after := get("b").ResourceVersion; after != before {
			t.Errorf("resource version %s, then %s", before, after)
		}
	})
	t.Run("roles of the spec reach the fabric, and the other way round", func(t *testing.T) {
		patch("b", `{"spec":{"consume":false}}`)
		until("role off in the fabric", func() bool {
			f.mu.Lock()
			defer f.mu.Unlock()
			return f.peers[idOf('a')].Roles.NoConsume
		})
		until("role off in the status", func() bool { return !get("b").Status.Roles.Consume })
		if _, err := f.Set(t.Context(), string(idOf('a')), peer.Settings{Consume: new(true)}); err != nil { // as the command line does
			t.Fatal(err)
		}
		until("spec that follows", func() bool { s := get("b").Spec.Consume; return s != nil && *s })
		if f.peers[idOf('a')].Roles.NoConsume {
			t.Error("the spec has taken back what the command line said")
		}
	})
	t.Run("price and labels of the spec reach the fabric, and the other way round", func(t *testing.T) {
		of := func() peer.Record { f.mu.Lock(); defer f.mu.Unlock(); return f.peers[idOf('a')].Record }
		patch("b", `{"spec":{"price":3,"labels":{"room":"B12","floor":"2"}}}`)
		until("price and labels", func() bool { r := of(); return r.Price == 3 && r.Labels["room"] == "B12" && len(r.Labels) == 2 })
		patch("b", `{"spec":{"labels":{"floor":null}}}`)
		until("one label less", func() bool { return len(of().Labels) == 1 })
		if _, err := f.Set(t.Context(), string(idOf('a')), peer.Settings{Price: new(5)}); err != nil { // as the command line does
			t.Fatal(err)
		}
		until("spec that follows", func() bool { s := get("b").Spec; return *s.Price == 5 && s.Labels["room"] == "B12" })
		patch("b", `{"spec":{"labels":{"rivulet.dev/price":"1"}}}`)
		until("an event", func() bool {
			list, err := server.Client.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "reason=SettingsFailed"})
			return err == nil && len(list.Items) > 0 && strings.Contains(list.Items[0].Message, "use a key of your own")
		})
		if r := of(); r.Labels["room"] != "B12" || len(r.Labels) != 1 {
			t.Errorf("after bad labels: %v", r.Labels)
		}
		patch("b", `{"spec":{"labels":null,"price":null}}`)
	})
	t.Run("two clusters of one name", func(t *testing.T) {
		f.change(func() { f.peers[idOf('c')] = aPeer('c', "b", peer.Connected) })
		until("second object", func() bool { return get("b-"+idOf('c').Short()) != nil })
		f.end(idOf('c'))
		until("end of the second object", func() bool { return get("b-"+idOf('c').Short()) == nil })
	})
	t.Run("an object that the user wrote first is taken up", func(t *testing.T) {
		off := false
		u, err := toAPI(&Peer{ObjectMeta: metav1.ObjectMeta{Name: "later"}, Spec: Spec{Provide: &off}})
		if err != nil {
			t.Fatal(err)
		}
		unset(u.Object)
		if _, err := client.Create(t.Context(), u, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		until("word that there is no such peer", func() bool { _, why := ready("later"); return why == "NoPeer" })
		f.change(func() { f.peers[idOf('d')] = aPeer('d', "later", peer.Connected) })
		until("peer in the object", func() bool { s, _ := ready("later"); return s == metav1.ConditionTrue })
		until("its role", func() bool { return !get("later").Status.Roles.Provide })
	})
	t.Run("an object that went while nobody looked is made again", func(t *testing.T) {
		stop()
		patch("later", `{"metadata":{"finalizers":null}}`)
		if err := client.Delete(t.Context(), "later", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		stop = run()
		until("object again", func() bool { return get("later") != nil })
	})
	t.Run("deleting the object ends the peering", func(t *testing.T) {
		f.change(func() { f.away = true })
		if err := client.Delete(t.Context(), "b", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		event("b", "UnpeerFailed", "rivulet.dev/force=true")
		if get("b") == nil {
			t.Fatal("the object is gone and the peer is not")
		}
		stop()
		stop = run() // the deletion is not forgotten
		patch("b", fmt.Sprintf(`{"metadata":{"annotations":{%q:"true"}}}`, ForceAnnotation))
		until("end of the object", func() bool { return get("b") == nil })
		f.mu.Lock()
		defer f.mu.Unlock()
		if _, still := f.peers[idOf('a')]; still || !f.forced {
			t.Errorf("still a peer: %v, forced: %v", still, f.forced)
		}
	})
	create := func(name string, spec Spec) {
		t.Helper()
		u, err := toAPI(&Peer{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec})
		if err != nil {
			t.Fatal(err)
		}
		unset(u.Object)
		if _, err := client.Create(t.Context(), u, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("an object with an address is the user's word", func(t *testing.T) {
		off := false
		create("far", Spec{Address: "198.51.100.7", Provide: &off})
		until("word that nobody is there", func() bool { _, why := ready("far"); return why == "NotReached" })
		f.change(func() { f.at = map[string]peer.ID{"198.51.100.7": idOf('e')} })
		until("the word", func() bool { yes, _ := f.words(); return len(yes) == 1 && yes[0] == idOf('e') })
		event("far", "Asked", idOf('e').Short())
		waiting := View{View: peer.View{Record: peer.Record{ID: idOf('e'), Name: "e"}, State: peer.Waiting, Reason: "a person has to say yes there", Since: time.Now()}}
		f.change(func() { f.peers[idOf('e')] = waiting })
		until("what it waits for", func() bool { p := get("far"); return p.Status.State == "Waiting" && p.Status.ID == string(idOf('e')) })
		stop()
		stop = run() // whoever starts again says it again: where it is, is not kept
		until("the word again", func() bool { yes, _ := f.words(); return len(yes) == 2 && yes[1] == idOf('e') })
		f.change(func() { f.peers[idOf('e')] = aPeer('e', "e", peer.Connected) })
		until("the peer in the user's object", func() bool { s, _ := ready("far"); return s == metav1.ConditionTrue })
		until("its role", func() bool { r := get("far").Status.Roles; return r != nil && !r.Provide })
		if get("e") != nil {
			t.Error("it has a second object")
		}
		create("again", Spec{ID: string(idOf('e'))})
		until("word that it is a peer already", func() bool { _, why := ready("again"); return why == "Duplicate" })
		if err := client.Delete(t.Context(), "again", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		until("end of the second object", func() bool { return get("again") == nil })
	})
	t.Run("a no that comes later is not overruled by an older object", func(t *testing.T) {
		create("wanted", Spec{ID: string(idOf('g'))})
		until("the word", func() bool { yes, _ := f.words(); return slices.Contains(yes, idOf('g')) })
		f.change(func() {
			f.peers[idOf('g')] = View{View: peer.View{Record: peer.Record{ID: idOf('g'), Name: "g"}, State: peer.Denied, Since: time.Now()}}
		})
		until("the no in the object", func() bool { return get("wanted").Status.State == "Denied" })
		before, _ := f.words()
		stop()
		stop = run()
		patch("wanted", `{"metadata":{"labels":{"seen":"again"}}}`) // it is looked at once more
		until("its label", func() bool { return get("wanted").Labels["seen"] == "again" })
		settled()
		if after, _ := f.words(); len(after) != len(before) {
			t.Errorf("the word was given again: %v", after)
		}
	})
	t.Run("deleting a wish takes the word back", func(t *testing.T) {
		if err := client.Delete(t.Context(), "wanted", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		until("end of the wish", func() bool { return get("wanted") == nil })
		if _, back := f.words(); !slices.Contains(back, idOf('g')) {
			t.Errorf("taken back: %v", back)
		}
	})
	t.Run("what is no address or ID is refused by the API", func(t *testing.T) {
		for _, spec := range []Spec{{ID: "b"}, {Address: strings.Repeat("x", 300)}} {
			u, err := toAPI(&Peer{ObjectMeta: metav1.ObjectMeta{Name: "wrong"}, Spec: spec})
			if err != nil {
				t.Fatal(err)
			}
			unset(u.Object)
			if _, err := client.Create(t.Context(), u, metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
				t.Errorf("%+v: %v", spec, err)
			}
		}
	})
	t.Run("a record that is missing leaves the object, and what a person wrote in it", func(t *testing.T) {
		patch("later", `{"spec":{"provide":false}}`)
		until("role off in the status", func() bool { return !get("later").Status.Roles.Provide })
		f.change(func() { delete(f.peers, idOf('d')) }) // an older state.db
		until("word that it is no peer", func() bool { _, why := ready("later"); return why == "NoPeer" })
		f.change(func() { f.peers[idOf('d')] = aPeer('d', "later", peer.Connected) })
		until("the peer again", func() bool { s, _ := ready("later"); return s == metav1.ConditionTrue })
		until("its role", func() bool {
			p := get("later")
			return !p.Status.Roles.Provide && p.Spec.Provide != nil && !*p.Spec.Provide
		})
	})
	t.Run("a peering that ends takes its object along", func(t *testing.T) {
		f.end(idOf('d'))
		until("end of the object", func() bool { return get("later") == nil })
	})
	stop()
}

// Whatever a cluster calls itself, its object has a name of its own that the API takes.
func TestObjectName(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := map[string]*Peer{}
		for n := range rapid.IntRange(1, 8).Draw(t, "peers") {
			id := idOf(byte('a' + n))
			name := objectName(rapid.OneOf(rapid.SampledFrom([]string{"pi", "PI", "a_b", "", strings.Repeat("x", 63), strings.Repeat("x", 200)}), rapid.String()).Draw(t, "name"), id, names)
			if names[name] != nil || name == "" || len(name) > 63 {
				t.Fatalf("the name %q", name)
			}
			names[name] = &Peer{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{IDLabel: string(id)}}}
		}
	})
}
