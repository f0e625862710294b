package clusterset

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"pgregory.net/rapid"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"rivulet/fabric/peer"
)

// drawn is an export as a cluster may send it: valid, of few values, so that clusters often agree.
func drawn(t *rapid.T, name string) Export {
	e := Export{Namespace: "shop", Name: "web", Headless: rapid.Bool().Draw(t, name+" headless"),
		SessionAffinity: rapid.SampledFrom([]corev1.ServiceAffinity{"", corev1.ServiceAffinityNone, corev1.ServiceAffinityClientIP}).Draw(t, name+" affinity")}
	for i := range rapid.IntRange(1, 3).Draw(t, name+" ports") {
		e.Ports = append(e.Ports, mcs.ServicePort{Name: fmt.Sprint("p", i), Protocol: corev1.ProtocolTCP, Port: rapid.Int32Range(80, 82).Draw(t, name+" port") + int32(10*i),
			AppProtocol: rapid.SampledFrom([]*string{nil, new("http"), new("h2c")}).Draw(t, name+" application")})
	}
	if rapid.Bool().Draw(t, name+" labelled") {
		e.Labels = map[string]string{"a": "b"}
	}
	var s Slice
	for _, p := range e.Ports {
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: new(p.Name), Protocol: new(p.Protocol), Port: new(int32(8080))})
	}
	for i := range rapid.IntRange(0, 2).Draw(t, name+" endpoints") {
		ready := rapid.Bool().Draw(t, name+" ready")
		s.Endpoints = append(s.Endpoints, Endpoint{Address: netip.AddrFrom4([4]byte{10, 42, 0, byte(2 + i)}), Ready: ready, Serving: ready})
	}
	if len(s.Endpoints) > 0 {
		e.Slices = []Slice{s}
	}
	return e
}

// Whatever clusters export, in whatever order it is seen: it is a Service that Kubernetes takes; the first decides its type,
// and this cluster's own export, else the first, all the rest; a difference is a conflict and nothing else is; and traffic
// goes only to connected clusters that serve the port, to this one first, and to ready endpoints while there are any.
func TestMerge(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var all []contribution
		sites, own := map[string]site{}, strings.Repeat("a", 32)
		for i := range rapid.IntRange(1, 4).Draw(t, "clusters") {
			id := strings.Repeat(string(rune('a'+i)), 32)
			if i > 0 || rapid.Bool().Draw(t, "exported here") {
				all = append(all, contribution{Cluster: id, Own: i == 0, Export: drawn(t, id[:1])})
			}
			sites[id] = site{Own: i == 0, Connected: i == 0 || rapid.Bool().Draw(t, id[:1]+" connected"), Nearness: rapid.IntRange(0, 2).Draw(t, id[:1]+" nearness"), Cordoned: i > 0 && rapid.Bool().Draw(t, id[:1]+" cordoned")}
		}
		if len(all) == 0 {
			return
		}
		rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		weights := map[string]uint64{}
		for _, c := range all {
			if rapid.Bool().Draw(t, c.Cluster[:1]+" weighted") {
				weights[c.Cluster] = rapid.Uint64Range(0, 3).Draw(t, c.Cluster[:1]+" weight")
			}
		}
		m := merge(all)
		first, decides := all[0], all[0]
		if i := slices.IndexFunc(all, func(c contribution) bool { return c.Own }); i >= 0 {
			decides = all[i]
		}
		differ := false
		for _, c := range all {
			differ = differ || c.Headless != first.Headless || affinity(c.SessionAffinity) != affinity(decides.SessionAffinity) || !reflect.DeepEqual(c.Labels, decides.Labels) || !reflect.DeepEqual(c.Ports, decides.Ports)
		}
		if differ != (len(m.Reasons) > 0) || differ != (m.Message != "") {
			t.Fatalf("differ: %t, conflicts: %v %q", differ, m.Reasons, m.Message)
		}
		if (m.Spec.Type == mcs.Headless) != first.Headless || !reflect.DeepEqual(m.Spec.Ports[:len(decides.Ports)], decides.Ports) || !maps.Equal(m.Labels, decides.Labels) {
			t.Fatalf("%+v of the first %+v and of %+v", m.Spec, first, decides)
		}
		names, numbers := map[string]bool{}, map[int32]bool{}
		for _, p := range m.Spec.Ports {
			if names[p.Name] || numbers[p.Port] {
				t.Fatalf("ports %+v", m.Spec.Ports)
			}
			names[p.Name], numbers[p.Port] = true, true
			used := m.used(p, sites)
			able, ready := map[string]bool{}, map[string]bool{}
			for _, c := range all {
				same := func(o mcs.ServicePort) bool { return o.Name == p.Name && o.Port == p.Port && o.Protocol == p.Protocol }
				if s := sites[c.Cluster]; (s.Own || s.Connected) && slices.ContainsFunc(c.Ports, same) {
					able[c.Cluster] = true
					if c.ready() {
						ready[c.Cluster] = true
					}
				}
			}
			for id := range used {
				switch {
				case !able[id]:
					t.Fatalf("%s gets traffic to %+v", id, p)
				case len(ready) > 0 && !ready[id]:
					t.Fatalf("%s gets traffic, and %v are ready", id, ready)
				case len(ready) > 0 && sites[id].Cordoned && slices.ContainsFunc(all, func(c contribution) bool { return ready[c.Cluster] && !sites[c.Cluster].Cordoned }):
					t.Fatalf("%s gets traffic, and is cordoned", id)
				case ready[own] && id != own:
					t.Fatalf("%s gets traffic, and this cluster is ready", id)
				}
			}
			if len(able) > 0 && len(used) == 0 {
				t.Fatalf("nobody gets traffic to %+v of %v", p, able)
			}
			m := m
			m.Weights = weights
			weighed(t, m, p, sites, ready, used)
		}
	})
}

// weighed checks the traffic to a port with weights: each cluster with a weight and ready endpoints gets its share of the
// sum of these, cordoned ones only if there is no other; if there is none, clusters of weight 0 get nothing and the others
// what they get without weights.
func weighed(t *rapid.T, m merged, p mcs.ServicePort, sites map[string]site, ready, unweighted map[string]bool) {
	var sum, cordoned uint64
	never := false
	for id := range ready {
		if sites[id].Cordoned {
			cordoned += m.Weights[id]
		} else {
			sum += m.Weights[id]
		}
	}
	for _, w := range m.Weights {
		never = never || w == 0
	}
	used, shares, all := m.used(p, sites), m.shares(p, sites), 0.0
	for id, share := range shares {
		w, named := m.Weights[id]
		switch all += share; {
		case !ready[id] || !used[id] || named && w == 0:
			t.Fatalf("%s of weight %d gets %v; used %v, ready %v", id, w, share, used, ready)
		case sum > 0 && (sites[id].Cordoned || share != float64(w)/float64(sum)), sum == 0 && cordoned > 0 && share != float64(w)/float64(cordoned):
			t.Fatalf("%s of weight %d has the share %v of %d, cordoned %t", id, w, share, sum, sites[id].Cordoned)
		}
	}
	if len(shares) > 0 && (all < 0.999999 || all > 1.000001) || sum+cordoned > 0 && len(shares) == 0 {
		t.Fatalf("all shares are %v", all)
	}
	if sum+cordoned == 0 && !never && !reflect.DeepEqual(used, unweighted) {
		t.Fatalf("%v get the traffic, without weights %v", used, unweighted)
	}
}

// The place of a cluster is when it was first seen here: what it says has no part in that, its export's end does, and a
// restart does not until it was heard.
func TestPlace(t *testing.T) {
	of := func(ids ...string) (out []contribution) {
		for _, id := range ids {
			out = append(out, contribution{Cluster: id, Own: id == "home"})
		}
		return out
	}
	var seen []string
	for _, step := range []struct {
		now   []contribution
		heard bool
		want  []string // the order of now
		seen  []string
	}{
		{of("c", "home", "b"), true, []string{"home", "b", "c"}, []string{"home", "b", "c"}},
		{of("a", "c", "home"), true, []string{"home", "c", "a"}, []string{"home", "c", "a"}},
		{of("a"), false, []string{"a"}, []string{"home", "c", "a"}}, // after a restart
		{of("c", "home", "a", "b"), true, []string{"home", "c", "a", "b"}, []string{"home", "c", "a", "b"}},
		{of("a", "b"), true, []string{"a", "b"}, []string{"a", "b"}},
		{of("home", "b", "a"), true, []string{"a", "b", "home"}, []string{"a", "b", "home"}},
	} {
		seen = place(seen, step.now, step.heard)
		var got []string
		for _, c := range step.now {
			got = append(got, c.Cluster)
		}
		if !slices.Equal(got, step.want) || !slices.Equal(seen, step.seen) {
			t.Fatalf("%v, seen %v; want %v, %v", got, seen, step.want, step.seen)
		}
	}
}

// A peer that was first does not take the traffic of a Service that this cluster exports, by an application protocol, a
// number or a policy; nor does one peer take that of another by an application protocol.
func TestAPeerTakesNoTrafficOfAnOwnService(t *testing.T) {
	export := func(app *string, port int32) Export {
		e := theirs("shop", "web", true)
		e.Ports[0].AppProtocol, e.Ports[0].Port, e.SessionAffinity = app, port, corev1.ServiceAffinityClientIP
		return e
	}
	sites := map[string]site{"b": {Connected: true}, "c": {Connected: true}, "home": {Own: true, Connected: true}}
	mine := theirs("shop", "web", true)
	for _, b := range []Export{export(new("h2c"), 80), export(nil, 8080)} {
		m := merge([]contribution{{Cluster: "b", Export: b}, {Cluster: "home", Own: true, Export: mine}})
		if used := m.used(m.Spec.Ports[0], sites); !reflect.DeepEqual(m.Spec.Ports, mine.Ports) || !maps.Equal(used, map[string]bool{"home": true}) || m.Spec.SessionAffinity != "" || len(m.Reasons) == 0 {
			t.Errorf("%+v goes to %v, conflicts %v", m.Spec, used, m.Reasons)
		}
	}
	m := merge([]contribution{{Cluster: "b", Export: export(new("h2c"), 80)}, {Cluster: "c", Export: mine}})
	if used := m.used(m.Spec.Ports[0], sites); !maps.Equal(used, map[string]bool{"b": true, "c": true}) || *m.Spec.Ports[0].AppProtocol != "h2c" {
		t.Errorf("%+v goes to %v", m.Spec, used)
	}
}

// Weights are read as they are meant, or refused with a cure.
func TestWeights(t *testing.T) {
	b, c, d := peer.ID(strings.Repeat("b", 32)), peer.ID(strings.Repeat("c", 32)), peer.ID(strings.Repeat("d", 32))
	links := map[peer.ID]peer.Link{b: {ID: b, Name: "b"}, c: {ID: c, Name: "lab"}, d: {ID: d, Name: "lab"}}
	for text, want := range map[string]map[string]uint64{
		"home=90,b=10":                  {string(mine): 90, string(b): 10},
		" home=1 , " + string(c) + "=0": {string(mine): 1, string(c): 0},
		"b=1000000":                     {string(b): 1_000_000},
		"home=1,gone=5":                 {string(mine): 1},
	} {
		named, err := parseWeights(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		got, unknown, err := resolve(named, mine, links)
		if err != nil || !maps.Equal(got, want) || len(unknown) != len(named)-len(want) {
			t.Errorf("%q: %v, unknown %v, %v", text, got, unknown, err)
		}
	}
	for _, text := range []string{"", "home", "home=", "=1", "home=-1", "home=1.5", "home=90%", "home=1000001", "home=1,home=2", "home=0,b=0", "home=1,", "home=1 b=2", "home=1,lab=1",
		"b=1," + string(b) + "=2", strings.Repeat("x", 64) + "=1", "home=99999999999999999999", "home=0" + strings.Repeat(",x=1", 3)} {
		named, err := parseWeights(text)
		if err == nil {
			_, _, err = resolve(named, mine, links)
		}
		if err == nil || !strings.Contains(err.Error(), "; ") {
			t.Errorf("%q: %v", text, err)
		}
	}
	many := "home=1"
	for i := range maxWeights {
		many += fmt.Sprintf(",c%d=1", i)
	}
	if _, err := parseWeights(many); err == nil {
		t.Errorf("%d weights are taken", maxWeights+1)
	}
}

// What a peer sends is taken as it was meant, or refused with a reason; the valid exports beside it count.
func TestChecked(t *testing.T) {
	good := Export{Namespace: "shop", Name: "web", Ports: []mcs.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}},
		Slices: []Slice{{Ports: []discoveryv1.EndpointPort{{Name: new("http"), Protocol: new(corev1.ProtocolTCP), Port: new(int32(8080))}}, Endpoints: []Endpoint{{Address: netip.MustParseAddr("10.42.0.2"), Ready: true}}}}}
	if valid, err := checked([]Export{good, good}); err != nil || len(valid) != 1 {
		t.Fatalf("%v, %v", valid, err)
	}
	for name, change := range map[string]func(*Export){
		"namespace":            func(e *Export) { e.Namespace = "../kube-system" },
		"name":                 func(e *Export) { e.Name = "Web" },
		"no ports":             func(e *Export) { e.Ports = nil },
		"a port twice":         func(e *Export) { e.Ports = append(e.Ports, e.Ports[0]) },
		"port 0":               func(e *Export) { e.Ports[0].Port = 0 },
		"protocol":             func(e *Export) { e.Ports[0].Protocol = "ICMP" },
		"application":          func(e *Export) { e.Ports[0].AppProtocol = new("a b") },
		"many ports":           func(e *Export) { e.Ports = slices.Repeat(e.Ports, maxPorts+1) },
		"affinity":             func(e *Export) { e.SessionAffinity = "Sticky" },
		"config alone":         func(e *Export) { e.AffinityConfig = &corev1.SessionAffinityConfig{} },
		"internal":             func(e *Export) { e.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicy("x")) },
		"distribution":         func(e *Export) { e.TrafficDistribution = new("a b") },
		"a label of Rivulet":   func(e *Export) { e.Labels = map[string]string{ObjectLabel: "other"} },
		"a label of the API":   func(e *Export) { e.Labels = map[string]string{mcs.LabelSourceCluster: "x"} },
		"weights":              func(e *Export) { e.Annotations = map[string]string{WeightsAnnotation: "home=0,b=1"} },
		"a label of Kubernets": func(e *Export) { e.Labels = map[string]string{"kubernetes.io/x": "x"} },
		"an annotation":        func(e *Export) { e.Annotations = map[string]string{"a": strings.Repeat("x", maxValue+1)} },
		"many annotations": func(e *Export) {
			e.Annotations = map[string]string{}
			for i := range maxMeta + 1 {
				e.Annotations[fmt.Sprint("a", i)] = ""
			}
		},
		"a port of a slice twice": func(e *Export) { e.Slices[0].Ports = append(e.Slices[0].Ports, e.Slices[0].Ports[0]) },
		"no address":              func(e *Export) { e.Slices[0].Endpoints[0].Address = netip.Addr{} },
		"IPv6":                    func(e *Export) { e.Slices[0].Endpoints[0].Address = netip.MustParseAddr("fd00::1") },
		"hostname":                func(e *Export) { e.Slices[0].Endpoints[0].Hostname = "a.b" },
		"no port":                 func(e *Export) { e.Slices[0].Ports[0].Port = nil },
		"endpoint's port":         func(e *Export) { e.Slices[0].Ports[0].Port = new(int32(70000)) },
	} {
		t.Run(name, func(t *testing.T) {
			raw, err := json.Marshal(good)
			if err != nil {
				t.Fatal(err)
			}
			var bad Export
			if err := json.Unmarshal(raw, &bad); err != nil {
				t.Fatal(err)
			}
			change(&bad)
			other := good
			other.Name = "other"
			if valid, err := checked([]Export{bad, other}); err == nil || len(valid) != 1 || valid[0].Name != "other" {
				t.Errorf("%v, %v", valid, err)
			}
		})
	}
	many := make([]Export, maxExports+1)
	for i := range many {
		many[i] = good
		many[i].Name = fmt.Sprint("web-", i)
	}
	if valid, err := checked(many); err == nil || len(valid) != maxExports {
		t.Errorf("%d exports, %v", len(valid), err)
	}
}
