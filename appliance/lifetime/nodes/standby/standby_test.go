package standby

import (
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	"rivulet/appliance/config/fixed"
	"rivulet/appliance/engine/datastore"
	"rivulet/appliance/state/bolt"
	"rivulet/appliance/state/durable"
	"rivulet/appliance/state/identity"
	"rivulet/appliance/state/paths"
	"rivulet/appliance/state/role"
	"rivulet/fabric/peer"
)

var ranges = fixed.Ranges{Pods: netip.MustParsePrefix("10.42.0.0/16"), Services: netip.MustParsePrefix("10.43.0.0/16"), Nodes: netip.MustParsePrefix("100.127.0.0/16")}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// opened gives f the store of a state folder.
func opened(t *testing.T, path string, f func(st *bolt.Store)) {
	t.Helper()
	st, err := bolt.Open(path)
	must(t, err)
	f(st)
	must(t, st.Close())
}

func record(t *testing.T, path string, id peer.ID) (r peer.Record, found bool) {
	t.Helper()
	opened(t, path, func(st *bolt.Store) {
		all, err := st.Peers()
		must(t, err)
		for _, x := range all {
			if x.ID == id {
				r, found = x, true
			}
		}
	})
	return r, found
}

func idAt(t *testing.T, path string) peer.ID {
	t.Helper()
	id, err := idOf(path)
	must(t, err)
	return id.ID()
}

const friend = peer.ID("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa")

// device is the state folder of one with a node of that name.
func device(t *testing.T, node string) (state string) {
	t.Helper()
	state = t.TempDir()
	must(t, fixed.Write(state, ranges))
	opened(t, paths.Store(state), func(st *bolt.Store) {
		_, err := identity.Load(st)
		must(t, err)
		must(t, st.PutNodeName(node))
	})
	return state
}

// shelf is the server a and its standby b, before the first change, with a peer and what it has granted.
func shelf(t *testing.T) (a, b string, cluster, ofB peer.ID) {
	t.Helper()
	a, b = device(t, "a"), device(t, "b")
	cluster, ofB = idAt(t, paths.Store(a)), idAt(t, paths.Store(b))
	must(t, datastore.SQLCluster{Token: "token", Database: "lab"}.Save(a))
	opened(t, paths.Store(a), func(st *bolt.Store) {
		must(t, st.PutPeer(peer.Record{ID: friend, Name: "friend", Trust: peer.Trust{How: peer.TrustInvite}}))
		must(t, st.PutPeer(peer.Record{ID: ofB, Node: "b", Standby: true, Trust: peer.Trust{How: peer.TrustWorker}, Behind: []netip.Prefix{netip.MustParsePrefix("10.42.1.0/24")}}))
		must(t, st.PutNote("trust", []byte("whom")))
		must(t, st.PutNote("clock", []byte("its own")))
	})
	opened(t, paths.Store(b), func(st *bolt.Store) {
		must(t, st.PutPeer(peer.Record{ID: cluster, Trust: peer.Trust{How: peer.TrustServer}}))
	})
	must(t, Gateway{Step: StepBegin, Worker: json.RawMessage(`{"node":"a"}`)}.Save(a))
	return a, b, cluster, ofB
}

const settings = "datastore: postgres://db/lab\n"

// copied is a's copy on b.
func copied(t *testing.T, a, b string) (c Copy) {
	t.Helper()
	opened(t, paths.Store(a), func(st *bolt.Store) {
		var err error
		c, err = Take(a, st, settings)
		must(t, err)
	})
	must(t, c.Check())
	must(t, c.Save(b))
	return c
}

// cut is a power cut at one step of all that a test writes.
type cut struct{ at, n int }

// done does something, and again if the power was cut meanwhile.
func (c *cut) done(t *testing.T, do func() error) {
	t.Helper()
	durable.Failpoint = func(string, string) error {
		if c.n++; c.n == c.at {
			return durable.ErrCut
		}
		return nil
	}
	err := do()
	durable.Failpoint = nil
	if err != nil {
		if !errors.Is(err, durable.ErrCut) {
			t.Fatalf("cut at step %d: %v", c.at, err)
		}
		must(t, do())
	}
}

// Each change of the server is finished after a power cut at any moment; the cluster's identity is on one device, and
// each of the two keeps its own.
func TestAServerAndItsStandby(t *testing.T) {
	for at := 1; !t.Failed(); at++ {
		power := &cut{at: at}
		if changes(t, power); power.n < at {
			if at < 40 {
				t.Errorf("there are %d steps", at)
			}
			return
		}
	}
}

func changes(t *testing.T, power *cut) {
	a, b, cluster, ofB := shelf(t)
	power.done(t, func() error { _, err := Finish(a); return err })
	ofA := idAt(t, paths.DeviceStore(a))
	if r, ok := record(t, paths.Store(a), ofA); ofA == cluster || !ok || r.Node != "a" || !r.Standby || r.Trust.How != peer.TrustWorker || len(r.Certificate) == 0 {
		t.Errorf("a beside the cluster: %s %v %+v", ofA, ok, r)
	}
	if r, ok := record(t, paths.DeviceStore(a), cluster); !ok || r.Trust.How != peer.TrustServer || len(r.Certificate) == 0 {
		t.Errorf("what a knows of the server when that is another device: %v %+v", ok, r)
	}
	copied(t, a, b)
	worker := json.RawMessage(`{"node":"b"}`)
	must(t, durable.Write(paths.Worker(b), worker, 0o600))
	power.done(t, func() error {
		if !there(paths.Worker(b)) {
			return nil // the file that says so is gone
		}
		return Lead(b, "b", worker)
	})
	g, err := Finish(b)
	must(t, err)
	if now, own := idAt(t, paths.Store(b)), idAt(t, paths.DeviceStore(b)); now != cluster || own != ofB || g == nil || g.Settings == "" || string(g.Worker) != string(worker) || there(paths.Worker(b)) {
		t.Errorf("b is %s, its own %s, %+v", now, own, g)
	}
	roleIs(t, b, paths.Gateway, paths.DeviceStore, paths.SQLCluster)
	sql, err := datastore.LoadSQLCluster(b)
	must(t, err)
	if sql.Token != "token" {
		t.Errorf("%+v", sql)
	}
	if r, _ := record(t, paths.Store(b), ofB); len(r.Behind) > 0 {
		t.Errorf("b is behind itself: %v", r.Behind)
	}
	if r, ok := record(t, paths.Store(b), friend); !ok || r.Trust.How != peer.TrustInvite {
		t.Errorf("the peer: %v %+v", ok, r)
	}
	opened(t, paths.Store(b), func(st *bolt.Store) {
		for note, want := range map[string]string{"trust": "whom", "clock": ""} {
			if got, err := st.Note(note); err != nil || string(got) != want {
				t.Errorf("note %s: %q %v", note, got, err)
			}
		}
		if name, err := st.NodeName(); err != nil || name != "b" {
			t.Errorf("the node %q %v", name, err)
		}
	})

	// a comes back.
	must(t, os.MkdirAll(paths.Server(a, "tls"), 0o700))
	g, err = Serving(a)
	must(t, err)
	g.Step, g.Settings = StepFollow, settings
	must(t, g.Save(a))
	var last Copy
	opened(t, paths.Store(a), func(st *bolt.Store) { last, err = Take(a, st, settings); must(t, err) })
	power.done(t, func() error { _, err := Finish(a); return err })
	c, err := Load(a)
	must(t, err)
	if now := idAt(t, paths.Store(a)); now != ofA || there(paths.DeviceStore(a)) || there(paths.Gateway(a)) || there(paths.Server(a, "tls")) || there(paths.SQLCluster(a)) || c == nil || c.Tag() != last.Tag() {
		t.Errorf("a is %s, its copy %+v", now, c)
	}
	roleIs(t, a, paths.Worker, paths.Standby)
	if raw, err := os.ReadFile(paths.Worker(a)); err != nil || string(raw) != `{"node":"a"}` {
		t.Errorf("%s %v", raw, err)
	}
	if got, there, err := fixed.Of(a); err != nil || !there || got != ranges {
		t.Errorf("%v %v %v", got, there, err)
	}
	if _, ok := record(t, paths.Store(a), cluster); !ok {
		t.Error("a does not know the server")
	}

	// And b is lost.
	copied(t, b, a)
	must(t, Lead(a, "a", json.RawMessage(`{"node":"a"}`)))
	if now, own := idAt(t, paths.Store(a)), idAt(t, paths.DeviceStore(a)); now != cluster || own != ofA {
		t.Errorf("a is %s, its own %s", now, own)
	}
	roleIs(t, a, paths.Gateway, paths.DeviceStore, paths.SQLCluster)
}

// roleIs checks that a change has left, of all files that decide a device's role, these.
func roleIs(t *testing.T, state string, want ...func(string) string) {
	t.Helper()
	for _, file := range role.Files(state) {
		if file == bolt.CopyOf(paths.DeviceStore(state)) {
			if there(file) && !there(paths.DeviceStore(state)) {
				t.Errorf("%s has outlived its store", file)
			}
			continue
		}
		if should := slices.ContainsFunc(want, func(of func(string) string) bool { return of(state) == file }); there(file) != should {
			t.Errorf("%s is there: %v, want %v", file, !should, should)
		}
	}
}

// What decides about trust has another tag, and what changes all the time has not.
func TestTag(t *testing.T) {
	a, b, _, _ := shelf(t)
	before := copied(t, a, b)
	tagged := func(same bool, change func(r *peer.Record)) {
		t.Helper()
		c := before
		c.Peers = nil
		for _, raw := range before.Peers {
			r, err := peer.Decode(raw)
			must(t, err)
			change(&r)
			raw, err := json.Marshal(r)
			must(t, err)
			c.Peers = append(c.Peers, raw)
		}
		if (c.Tag() == before.Tag()) != same || (c.Hash() == before.Hash()) == !reflect.DeepEqual(c, before) {
			t.Errorf("tag %s, before %s, want the same: %v", c.Tag(), before.Tag(), same)
		}
	}
	tagged(true, func(*peer.Record) {})
	tagged(true, func(r *peer.Record) { r.Control, r.Heard, r.Version = netip.MustParseAddrPort("192.0.2.1:1"), 7, "2" })
	tagged(true, func(r *peer.Record) { r.Trust.At = time.Now() })
	tagged(false, func(r *peer.Record) { r.Trust.How = peer.TrustApproved })
	tagged(false, func(r *peer.Record) { r.Standby = !r.Standby })
	tagged(false, func(r *peer.Record) { r.Certificate = []byte("other") })
	c := before
	c.Notes = map[string][]byte{"trust": []byte("revoked")}
	if c.Tag() == before.Tag() {
		t.Error("a revocation has no other tag")
	}
}

// A copy with which a device could not be the server is refused.
func TestCheck(t *testing.T) {
	a, b, _, _ := shelf(t)
	whole := copied(t, a, b)
	for name, spoil := range map[string]func(c *Copy){
		"identity": func(c *Copy) { c.Identity = nil }, "token": func(c *Copy) { c.SQL.Token = "" }, "settings": func(c *Copy) { c.Settings = "" },
		"ranges": func(c *Copy) { c.Ranges = fixed.Ranges{} }, "peers": func(c *Copy) { c.Peers = []json.RawMessage{[]byte(`{"id":7}`)} },
	} {
		c := whole
		if spoil(&c); c.Check() == nil {
			t.Errorf("without %s it is taken", name)
		}
	}
	must(t, os.WriteFile(filepath.Join(b, "standby.json"), []byte("{"), 0o600))
	if _, err := Load(b); err == nil {
		t.Error("a torn file is read")
	}
}
