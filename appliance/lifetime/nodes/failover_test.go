package nodes

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"rivulet/appliance/config/fixed"
	"rivulet/appliance/engine/datastore"
	"rivulet/appliance/lifetime/nodes/lease"
	"rivulet/appliance/lifetime/nodes/standby"
	"rivulet/appliance/state/bolt"
	ids "rivulet/appliance/state/identity"
	"rivulet/appliance/state/paths"
	"rivulet/fabric/peer"
)

// A worker that is no standby gets nothing of the cluster's keys; a standby gets each change.
func TestOnlyAStandbyGetsTheCopy(t *testing.T) {
	state := t.TempDir()
	st, err := bolt.Open(paths.Store(state))
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	for _, err := range []error{
		datastore.SQLCluster{Token: "token", Database: "lab"}.Save(state),
		fixed.Write(state, fixed.Ranges{Pods: fixed.PodCIDR, Services: fixed.ServiceCIDR, Nodes: fixed.NodeRange}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := ids.Load(st); err != nil {
		t.Fatal(err)
	}
	s := &server{Device: New(&Device{State: state, Name: func() string { return "shelf" }, Log: slog.New(slog.DiscardHandler), Failover: Failover{Store: st, Settings: func() string { return "name: shelf\n" }}})}
	var ended atomic.Bool
	s.standby = func(id peer.ID) bool { return id == "b" && !ended.Load() }
	request := func(t *testing.T, worker peer.Record, tag string) *httptest.ResponseRecorder {
		w, r := httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodGet, copyPath, nil)
		r.Header.Set("If-None-Match", tag)
		s.giveCopy(w, r, worker)
		return w
	}
	if w := request(t, peer.Record{ID: "w", Node: "w"}, ""); w.Code != http.StatusForbidden || len(w.Body.String()) > 300 {
		t.Errorf("a worker gets %d %s", w.Code, w.Body)
	}
	standbys := peer.Record{ID: "b", Node: "b", Standby: true}
	first := request(t, standbys, "")
	var c standby.Copy
	if err := json.Unmarshal(first.Body.Bytes(), &c); err != nil || first.Code != http.StatusOK || c.Check() != nil || c.SQL.Token != "token" {
		t.Errorf("a standby gets %d %+v %v", first.Code, c, err)
	}
	tag := first.Header().Get("ETag")
	if s.Ready("b") {
		t.Error("a standby counts as ready before it has the copy")
	}
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		if w := request(t, standbys, tag); w.Code != http.StatusNotModified || time.Since(begun) < viewEvery {
			t.Errorf("without a change it gets %d after %s", w.Code, time.Since(begun))
		}
		if !s.Ready("b") {
			t.Error("a standby that has the present state does not count as ready")
		}
		begun = time.Now()
		time.AfterFunc(viewEvery/2, func() {
			if err := st.PutNote("trust", []byte("somebody is trusted no more")); err != nil {
				t.Error(err)
			}
		})
		if w := request(t, standbys, tag); w.Code != http.StatusOK || time.Since(begun) > viewEvery/2+lease.Every {
			t.Errorf("after a revocation it gets %d after %s", w.Code, time.Since(begun))
		}
		tag = request(t, standbys, "").Header().Get("ETag")
		time.AfterFunc(time.Second, func() { ended.Store(true) })
		if w := request(t, standbys, tag); w.Code != http.StatusForbidden {
			t.Errorf("one that is a standby no more gets %d", w.Code)
		}
		if time.Sleep(current); s.Ready("b") {
			t.Error("a standby that has asked no more counts as ready")
		}
	})
}

// One standby that could take over is enough.
func TestStandbysBehind(t *testing.T) {
	s := &server{Device: New(&Device{NodeName: "a"})}
	nodes := []peer.Record{{ID: "1", Node: "a", Standby: true}, {ID: "2", Node: "b", Standby: true}, {ID: "3", Node: "c", Standby: true}, {ID: "4", Node: "w"}}
	if got := s.behind(nodes); !slices.Equal(got, []string{"b", "c"}) {
		t.Errorf("%q", got)
	}
	if s.had["3"] = time.Now(); s.behind(nodes) != nil {
		t.Errorf("%q, and c could take over", s.behind(nodes))
	}
	if got := s.behind(nodes[3:]); got != nil {
		t.Errorf("%q without a standby", got)
	}
}
