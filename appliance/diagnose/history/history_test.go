package history

import (
	crand "crypto/rand"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"pgregory.net/rapid"

	"rivulet/appliance/api"
	"rivulet/appliance/health"
	"rivulet/fabric/peer"
	"rivulet/fabric/tunnel"
	"rivulet/fabric/wgkey"
	"rivulet/offload"
)

var begin = time.Date(2026, 5, 4, 3, 2, 0, 0, time.UTC)

// device is what a Recorder reads, under the control of a test.
type device struct {
	now   time.Time
	sure  bool
	st    api.Status
	vc    []api.VCluster
	total Machine
}

func (d *device) recorder(dir string) *Recorder {
	r := New(Config{Dir: dir, Supervisor: d, VClusters: d, Clock: d, Log: slog.New(slog.DiscardHandler)})
	r.machine = d
	return r
}

func (d *device) Status() api.Status           { return d.st }
func (d *device) Usages() []api.VCluster       { return d.vc }
func (d *device) Plausible() (time.Time, bool) { return d.now, d.sure }
func (d *device) read() Machine                { return d.total }

// stop is what Run does at its end.
func stop(r *Recorder) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.close()
	r.flush()
}

func list(cpu, memory string) corev1.ResourceList {
	return corev1.ResourceList{"cpu": resource.MustParse(cpu), "memory": resource.MustParse(memory)}
}

// peers makes a device with so many connected peers.
func newDevice(peers int) *device {
	d := &device{now: begin, sure: true, total: Machine{Memory: 1e9}}
	net := netip.MustParsePrefix("10.42.0.0/16")
	key, _ := wgkey.Generate()
	d.st = api.Status{NodeName: "pi", Room: map[string]api.Room{"pi": {Allocatable: list("4", "4Gi"), Requested: list("1500m", "1Gi")}}, Tunnel: &tunnel.Status{PID: 1},
		Pods: api.Pods{Home: 7, Away: 3, Tenants: 2}, Health: []health.Problem{{Kind: health.Kind{Code: "x", Severity: health.Warning}}},
		Status: offload.Status{VirtualNodes: []offload.VirtualNode{{Name: "b", Allocatable: list("2", "1Gi")}}, Lent: list("2", "2Gi")}}
	for range peers {
		id := peer.ID(strings.ToLower(crand.Text() + crand.Text())[:32])
		d.st.Peers = append(d.st.Peers, peer.View{State: peer.Connected, RTT: time.Millisecond, Record: peer.Record{ID: id, WireGuardKey: key.Public(), PeerCIDR: net, PeerMappedCIDR: net, LocalMappedCIDR: net, TunnelAddress: net.Addr()}})
		d.st.Tunnel.Peers = append(d.st.Tunnel.Peers, tunnel.PeerStatus{ID: string(id)})
	}
	return d
}

// minute passes, with traffic and use at random.
func (d *device) minute() {
	d.now = d.now.Add(Step)
	d.total.CPU += time.Duration(rand.Int64N(int64(4 * Step)))
	d.total.Memory = rand.Uint64N(4e9)
	tun := *d.st.Tunnel
	tun.Peers = append([]tunnel.PeerStatus{}, tun.Peers...)
	d.st.Tunnel = &tun
	d.st.Peers = append([]peer.View{}, d.st.Peers...)
	for i := range tun.Peers {
		tun.Peers[i].Received += rand.Uint64N(1e9)
		tun.Peers[i].Sent += rand.Uint64N(1e9)
		d.st.Peers[i].RTT = time.Duration(rand.Int64N(1e8))
	}
}

func query(t fataler, r *Recorder, since time.Duration, names ...string) map[string]Series {
	a, err := r.Query(names, r.cfgNow().Add(-since))
	if err != nil {
		t.Fatalf("%v", err)
	}
	out := map[string]Series{}
	for _, s := range a.Series {
		id := s.Name
		for k, v := range s.Labels {
			id = key(s.Name, k, v)
		}
		out[id] = s
	}
	return out
}

func (r *Recorder) cfgNow() time.Time { now, _ := r.cfg.Clock.Plausible(); return now }

// What was recorded is answered, from memory and from files, across a restart.
func TestRecorded(t *testing.T) {
	d, dir := newDevice(1), t.TempDir()
	r := d.recorder(dir)
	id := string(d.st.Peers[0].ID)
	d.st.Tunnel.Peers[0].Received, d.st.Tunnel.Peers[0].Sent = 100, 0
	r.Sample()
	d.now = d.now.Add(Step)
	d.total.CPU += 2 * Step
	tun := *d.st.Tunnel
	tun.Peers = []tunnel.PeerStatus{{ID: id, Received: 100 + 60*5000, Sent: 60 * 7}}
	d.st.Tunnel = &tun
	r.Sample()
	r.Sample() // the same minute
	want := map[string][]float64{
		"home_cpu_used_cores": {math.NaN(), 2}, "home_memory_used_bytes": {1e9, 1e9}, "home_cpu_allocatable_cores": {4, 4}, "home_cpu_requested_cores": {1.5, 1.5}, "home_memory_requested_bytes": {1.07e9, 1.07e9},
		key("pods", "where", "home"): {7, 7}, key("pods", "where", "tenants"): {2, 2}, key("health_problems", "severity", "warning"): {1, 1}, key("health_problems", "severity", "error"): {0, 0},
		"peers_connected": {1, 1}, "vclusters_awake": {0, 0}, "borrowed_cpu_allocatable_cores": {2, 2}, "lent_cpu_allocatable_cores": {2, 2},
		key("peer_received_bytes_per_second", "id", id): {math.NaN(), 5000}, key("peer_sent_bytes_per_second", "id", id): {math.NaN(), 7}, key("peer_rtt_seconds", "id", id): {0.001, 0.001},
	}
	for range 2 {
		got := query(t, r, 2*Step)
		for name, points := range want {
			s, ok := got[name]
			if !ok || len(s.Points) != 3 {
				t.Errorf("%s: %v", name, s)
				continue
			}
			for i, v := range points {
				if p := float64(s.Points[i+1]); p != v && !(math.IsNaN(p) && math.IsNaN(v)) {
					t.Errorf("%s: %v, want %v", name, s.Points, points)
				}
			}
		}
		stop(r)
		r = d.recorder(dir)
	}
	if only := query(t, r, time.Hour, "pods"); len(only) != 3 {
		t.Errorf("pods alone: %v", only)
	}
}

// Values keep three digits, counts are exact, and order is kept.
func TestCodes(t *testing.T) {
	for n := range 1000 {
		if got := decodeValue(encodeValue(float64(n))); got != float64(n) {
			t.Fatalf("%d is %v", n, got)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		v := rapid.Float64Range(least, 1e12).Draw(t, "value")
		if got := decodeValue(encodeValue(v)); math.Abs(got-v) > 0.006*v {
			t.Fatalf("%v is %v", v, got)
		}
		w := rapid.Float64Range(0, 1e300).Draw(t, "other")
		if (w <= v) != (encodeValue(w) <= encodeValue(v)) && encodeValue(w) != encodeValue(v) {
			t.Fatalf("the order of %v and %v is lost", v, w)
		}
	})
	if !math.IsNaN(decodeValue(encodeValue(math.NaN()))) || decodeValue(encodeValue(-1)) != 0 || encodeValue(math.Inf(1)) != mostCode {
		t.Error("what is no figure")
	}
}

// More peers than there is room for are left out, those that do not answer first.
func TestMorePeersThanRoom(t *testing.T) {
	d := newDevice(400)
	d.st.Peers[0].State = peer.Lost
	d.minute()
	before := input{at: d.now.Add(-Step), status: d.st}
	got := sample(input{at: d.now, status: d.st}, &before)
	if len(got) > maxSeries {
		t.Errorf("%d series", len(got))
	}
	for _, v := range got {
		if strings.Contains(v.name, string(d.st.Peers[0].ID)) {
			t.Error("a lost peer has the place of one that answers")
		}
		if v.name == "peers_connected" && v.v != 399 {
			t.Errorf("%v are connected", v.v)
		}
	}
}

// A power cut at any byte of an append leaves all that was synced before, and what is recorded afterwards is readable.
func TestPowerCutAtEveryByte(t *testing.T) {
	d, dir := newDevice(2), t.TempDir()
	r := d.recorder(dir)
	for range 2 * maxMinutes {
		d.minute()
		r.Sample()
	}
	if len(r.files.all) != 1 {
		t.Fatalf("%d files", len(r.files.all))
	}
	path := filepath.Join(dir, r.files.all[0].name)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, err := decode(whole)
	if err != nil {
		t.Fatal(err)
	}
	firstLen := len(whole) - len(rest)
	later := *d
	for cut := range len(whole) + 1 {
		torn := append([]byte{}, whole[:cut]...)
		if cut%3 == 0 { // the length is there, and not the content
			torn = append(torn, make([]byte, len(whole)-cut)...)
		}
		if err := os.WriteFile(path, torn, 0o600); err != nil {
			t.Fatal(err)
		}
		now := later
		again := now.recorder(dir)
		now.minute()
		again.Sample()
		stop(again)
		want := 1
		if cut >= firstLen {
			want += maxMinutes
		}
		if cut == len(whole) {
			want += maxMinutes
		}
		have := 0
		for _, p := range query(t, again, time.Hour, "peers_connected")["peers_connected"].Points {
			if !math.IsNaN(float64(p)) {
				have++
			}
		}
		if have != want {
			t.Fatalf("cut at %d of %d: %d minutes, want %d", cut, len(whole), have, want)
		}
		for _, one := range again.files.all {
			if one.name != filepath.Base(path) {
				if err := os.Remove(filepath.Join(dir, one.name)); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

// Whatever a file has, reading it ends, and gives nothing that is out of bounds.
func FuzzDecode(f *testing.F) {
	c := chunk{minute: 7}
	c.add([]value{{"a", 1}})
	c.add([]value{{"a", 1}, {"b", 2}})
	b, err := c.encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add(b[:len(b)-1])
	f.Fuzz(func(t *testing.T, b []byte) {
		for range 100 {
			c, rest, err := decode(b)
			if err != nil {
				return
			}
			if len(rest) >= len(b) || len(c.rows) > maxMinutes || len(c.names) > maxSeries {
				t.Fatalf("%d of %d bytes left, %d minutes, %d series", len(rest), len(b), len(c.rows), len(c.names))
			}
			for _, row := range c.rows {
				if len(row) != len(c.names) {
					t.Fatal("a row of another length")
				}
			}
			b = rest
		}
	})
}

// Through restarts, cuts, jumps of the clock and times when it cannot be right, each minute of the last day that was
// recorded last has its value, and no other has one; what was synced is never lost.
func TestAnyCourse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "history")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		d := newDevice(1)
		r := d.recorder(dir)
		model, pending := map[int64]int{}, map[int64]int{}
		synced := func() {
			for m, v := range pending {
				model[m] = v
			}
			pending = map[int64]int{}
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 9).Draw(t, "what") {
			case 0: // an orderly restart
				stop(r)
				synced()
				r = d.recorder(dir)
			case 1: // a power cut
				r = d.recorder(dir)
				pending = map[int64]int{}
			case 2:
				d.now = d.now.Add(time.Duration(rapid.Int64Range(-int64(30*time.Hour), int64(30*time.Hour)).Draw(t, "jump")))
			case 3:
				d.sure = !d.sure
			default:
				for range rapid.IntRange(1, 40).Draw(t, "minutes") {
					d.now = d.now.Add(Step)
					m := d.now.Unix() / 60
					open := r.open != nil && r.open.minute+int64(len(r.open.rows))-1 == m
					d.st.Pods.Home = rapid.IntRange(0, 999).Draw(t, "pods")
					r.Sample()
					if d.sure && !open {
						pending[m] = d.st.Pods.Home
					}
					if r.open == nil && len(r.closed) == 0 {
						synced()
					}
				}
			}
			last := d.now.Unix() / 60
			a, err := r.Query([]string{"pods"}, d.now.Add(-24*time.Hour))
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range a.Series {
				if s.Labels["where"] != "home" {
					continue
				}
				for i, p := range s.Points {
					m := a.Start/60 + int64(i)
					v, ok := pending[m]
					if !ok {
						v, ok = model[m]
					}
					switch {
					case math.IsNaN(float64(p)):
						if _, now := pending[m]; now {
							t.Fatalf("minute %d of %d is lost", m, last)
						}
					case !ok || float64(v) != float64(p):
						t.Fatalf("minute %d is %v, want %v (%v)", m, p, v, ok)
					}
				}
			}
			if size := onDisk(t, dir); size > budget {
				t.Fatalf("%d bytes", size)
			}
		}
	})
}

// A disk that cannot be written loses nothing while the supervisor runs.
func TestAFullDisk(t *testing.T) {
	d, dir := newDevice(1), t.TempDir()
	blocked := filepath.Join(dir, "history")
	if err := os.WriteFile(blocked, nil, 0o600); err != nil { // in place of the folder
		t.Fatal(err)
	}
	r := d.recorder(blocked)
	for range 3 * maxMinutes {
		d.minute()
		r.Sample()
	}
	if !r.warned || len(r.closed) != 3 {
		t.Errorf("warned: %v, %d chunks in memory", r.warned, len(r.closed))
	}
	if err := os.Remove(blocked); err != nil {
		t.Fatal(err)
	}
	for range maxMinutes {
		d.minute()
		r.Sample()
	}
	if got := query(t, d.recorder(blocked), time.Hour, "peers_connected")["peers_connected"]; r.warned || len(r.closed) > 0 || len(got.Points) != 61 || math.IsNaN(float64(got.Points[1])) && math.IsNaN(float64(got.Points[30])) {
		t.Errorf("%v %d %v", r.warned, len(r.closed), got.Points)
	}
}

func TestRoute(t *testing.T) {
	d := newDevice(1)
	r := d.recorder(t.TempDir())
	for range 5 {
		d.minute()
		r.Sample()
	}
	mux := http.NewServeMux()
	r.Routes(mux)
	ask := func(query string) (int, Answer, string) {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/v1/history"+query, nil))
		var a Answer
		text := w.Body.String()
		if w.Code == http.StatusOK {
			if err := json.Unmarshal(w.Body.Bytes(), &a); err != nil {
				t.Errorf("%v: %s", err, text)
			}
		}
		return w.Code, a, text
	}
	if code, a, text := ask("?series=pods,peers_connected&since=10m"); code != 200 || len(a.Series) != 4 || a.Step != 60 || a.Start != d.now.Add(-10*time.Minute).Unix() || len(a.Series[0].Points) != 11 || !strings.Contains(text, "[null,") {
		t.Errorf("%d %s", code, text)
	}
	if code, a, _ := ask(""); code != 200 || len(a.Series) < 20 || len(a.Series[0].Points) != kept {
		t.Errorf("%d, %d series", code, len(a.Series))
	}
	for _, bad := range []string{"?since=x", "?since=-1h", "?since=0s"} {
		if code, _, text := ask(bad); code == 200 || !strings.Contains(text, "since=6h") {
			t.Errorf("%s: %d %s", bad, code, text)
		}
	}
}

// The figures of this machine are read.
func TestThisMachine(t *testing.T) {
	a := proc{}.read()
	for b := a; b.CPU == a.CPU; b = (proc{}).read() { // this loop takes some
		if b.Memory == 0 {
			t.Fatalf("%+v", b)
		}
	}
}

func onDisk(t fataler, dir string) (size int64) {
	err := filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			info, err := e.Info()
			if err != nil {
				return err
			}
			size += (info.Size() + block - 1) / block * block
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
	if err != nil {
		t.Fatalf("%v", err)
	}
	return size
}

// fataler is a test, of testing or of rapid.
type fataler interface{ Fatalf(string, ...any) }

// After the clock was set back and a restart, what was recorded last is what is shown, whichever file begins earlier.
func TestTheClockIsSetBackBeforeARestart(t *testing.T) {
	dir := t.TempDir()
	d := newDevice(1)
	r := d.recorder(dir)
	record := func(pods, minutes int) {
		for range minutes {
			d.now = d.now.Add(Step)
			d.st.Pods.Home = pods
			r.Sample()
		}
	}
	restart := func() { stop(r); r = d.recorder(dir) }
	record(1, 10)
	restart()
	d.now = d.now.Add(-15 * Step)
	record(2, 15)
	restart()
	a, err := r.Query([]string{"pods{where=home"}, d.now.Add(-9*Step))
	if err != nil || len(a.Series) != 1 {
		t.Fatal(a, err)
	}
	for i, p := range a.Series[0].Points {
		if p != 2 {
			t.Errorf("minute %d of %d is %v", i, len(a.Series[0].Points), p)
		}
	}
}
