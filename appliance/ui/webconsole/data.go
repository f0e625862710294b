package webconsole

import (
	"cmp"
	"context"
	"fmt"
	"html/template"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"rivulet/appliance/api"
	"rivulet/appliance/diagnose/fleet"
	"rivulet/appliance/diagnose/trace"
	"rivulet/appliance/operate"
	"rivulet/appliance/ui/summary"
	"rivulet/appliance/vcluster"
	"rivulet/fabric/peer"
	"rivulet/offload"
	"rivulet/offload/consumer"
	"rivulet/offload/consumer/explain"
	"rivulet/offload/policy"
)

// pages are all pages, in the order of the menu.
var pages = []page{
	{pattern: "/", name: "overview", title: "Overview", section: "/", least: View, data: overview},
	{pattern: "/map", name: "map", title: "Map", section: "/map", least: View, data: mapOf},
	{pattern: "/peers/{id}", name: "peer", title: "Peer", section: "/map", least: View, data: peerOf},
	{pattern: "/fleet", name: "fleet", title: "Fleet", section: "/fleet", least: View, life: 5 * time.Second, data: fleetOf},
	{pattern: "/workloads", name: "workloads", title: "Workloads", section: "/workloads", least: View, life: 5 * time.Second, data: workloads},
	{pattern: "/pods/{namespace}/{name}", name: "pod", title: "Pod", section: "/workloads", least: View, life: 3 * time.Second, data: podOf},
	{pattern: "/vclusters", name: "vclusters", title: "Virtual clusters", section: "/vclusters", least: View, data: vclusters},
	{pattern: "/people", name: "people", title: "People", section: "/people", least: Admin, own: true, data: people},
	{pattern: "/invite", name: "invite", title: "Invite and join", section: "/invite", least: Operate, data: invites},
	{pattern: "/device", name: "device", title: "This device", section: "/device", least: View, own: true, data: device},
	{pattern: "/tour", name: "tour", title: "First steps", section: "/", least: View, data: nothing},
}

func nothing(context.Context, *Console, *visit) (any, error) { return nil, nil }

// place is a place for pods, with its room.
type place struct {
	Name, Link, Detail string
	Ready              bool
	Pods               int
	CPU, Memory        meter
}

// meter is the use of a resource: by requests of pods.
type meter struct{ Used, All float64 }

// Percent is the use, at most 100.
func (m meter) Percent() int {
	if m.All <= 0 {
		return 0
	}
	return int(min(100, math.Round(100*m.Used/m.All)))
}

func meterOf(name corev1.ResourceName, all, used corev1.ResourceList) meter {
	a, u := all[name], used[name]
	return meter{u.AsApproximateFloat64(), a.AsApproximateFloat64()}
}

func placeOf(name string, all, used corev1.ResourceList) place {
	return place{Name: name, CPU: meterOf(corev1.ResourceCPU, all, used), Memory: meterOf(corev1.ResourceMemory, all, used)}
}

// maxRows bounds each list of a page.
const maxRows = 200

func overview(ctx context.Context, c *Console, v *visit) (any, error) {
	st := v.Status
	out := struct {
		Places []place
		Lent   []place
		Update string
		Fixes  map[string]string
		Graphs []graph
		// Missing are the parts that cannot be read now; the others are shown.
		Missing []string
	}{}
	if err := c.get(ctx, "/v1/doctor/fixes", &out.Fixes); err != nil {
		out.Missing = append(out.Missing, "what can be repaired from here: "+summary.Line(err.Error()))
	}
	day, err := c.figures(ctx, "home_cpu_used_cores", "home_memory_used_bytes", "pods", "peers_connected", "vclusters_awake")
	if err != nil {
		out.Missing = append(out.Missing, "the last 24 hours: "+summary.Line(err.Error()))
	}
	out.Graphs = graphsOf(day, lineOf("CPU in use", "home_cpu_used_cores", "", cores), lineOf("Memory in use", "home_memory_used_bytes", "", bytesOf),
		lineOf("Pods at home", "pods", "home", number), lineOf("Pods away", "pods", "away", number), lineOf("Connected peers", "peers_connected", "", number), lineOf("Virtual clusters awake", "vclusters_awake", "", number))
	if home, ok := st.Room[st.NodeName]; ok {
		p := placeOf("home", home.Allocatable, home.Requested)
		p.Ready, p.Pods, p.Detail = st.Ready && len(home.Pressure) == 0, home.Pods, strings.Join(home.Pressure, ", ")
		out.Places = append(out.Places, p)
	}
	for _, n := range st.VirtualNodes[:min(len(st.VirtualNodes), maxRows)] {
		p := placeOf(n.Name, n.Allocatable, st.Room[n.Name].Requested)
		p.Ready, p.Pods, p.Detail = n.Ready, n.Pods, n.Reason
		if n.Cordoned {
			p.Detail = strings.TrimPrefix(p.Detail+"; cordoned", "; ")
		}
		p.Link = peerLink(st, n)
		out.Places = append(out.Places, p)
	}
	for _, t := range st.Consumers[:min(len(st.Consumers), maxRows)] {
		p := place{Name: cmp.Or(t.Name, t.ID.Short()), Pods: t.Pods, Link: "/peers/" + string(t.ID), Ready: t.Silent == 0}
		if !slices.ContainsFunc(st.Peers, func(v peer.View) bool { return v.ID == t.ID }) {
			p.Name, p.Link = "virtual cluster "+p.Name, "/vclusters"
		}
		if t.Silent > 0 {
			p.Detail = fmt.Sprintf("silent for %s", t.Silent.Round(time.Second))
		}
		out.Lent = append(out.Lent, p)
	}
	if u := st.Upgrade; u != nil && u.Phase != "idle" {
		out.Update = u.Phase
	}
	return out, nil
}

// peerLink is the page of the peer behind a virtual node; empty for other targets.
func peerLink(st api.Status, n consumer.VirtualNode) string {
	if slices.ContainsFunc(st.Peers, func(p peer.View) bool { return string(p.ID) == n.ID }) {
		return "/peers/" + n.ID
	}
	return ""
}

// spot is a cluster on the map.
type spot struct {
	X, Y          int
	Name, Link    string
	State         string // css class
	Way, Trip     string
	Borrows, Lent int // pods of this cluster there, and of it here
	Rate          string
}

// The size of the map, in its own units, and how many clusters it shows; the table has all.
const (
	mapWidth, mapHeight = 800, 440
	maxSpots            = 24
)

func mapOf(_ context.Context, c *Console, v *visit) (any, error) {
	st := v.Status
	type row struct {
		api.Peer
		Way, State string
		Rate       rate
		There      int
		Here       int
	}
	out := struct {
		Spots         []spot
		Rows          []row
		More          int
		Others        []consumer.VirtualNode
		Width, Height int
		Top           int
		X, Y          int
	}{Width: mapWidth, X: mapWidth / 2, Y: mapHeight / 2}
	list := peers(st)
	there, here := podsOf(st)
	var near []row
	for _, p := range list {
		r := row{Peer: p, Way: wayOf(st, p), State: stateClass(p.State), Rate: v.Rates[string(p.ID)], There: there[string(p.ID)], Here: here[string(p.ID)]}
		if len(out.Rows) < maxRows {
			out.Rows = append(out.Rows, r)
		} else {
			out.More++
		}
		if p.State != peer.Denied && len(near) < maxSpots {
			near = append(near, r)
		}
	}
	for _, n := range st.VirtualNodes {
		if peerLink(st, n) == "" && len(out.Others) < maxRows {
			out.Others = append(out.Others, n)
		}
	}
	total := len(near) + min(len(out.Others), maxSpots)
	at := func(i int) (x, y int) {
		angle := 2 * math.Pi * float64(i) / float64(max(total, 1)) // the first is to the right
		wide := 0.40 - 0.08*float64(i%2)*map[bool]float64{true: 1}[total > 8]
		return mapWidth/2 + int(wide*mapWidth*math.Cos(angle)), mapHeight/2 + int((wide-0.02)*mapHeight*math.Sin(angle))
	}
	for i, r := range near {
		x, y := at(i)
		s := spot{X: x, Y: y, Name: short(cmp.Or(r.Name, r.ID.Short())), Link: "/peers/" + string(r.ID), State: r.State, Way: r.Way, Borrows: r.There, Lent: r.Here}
		if r.RTT > 0 {
			s.Trip = trip(r.RTT)
		}
		out.Spots = append(out.Spots, s)
	}
	for i, n := range out.Others[:min(len(out.Others), maxSpots)] {
		x, y := at(len(near) + i)
		state := "warning"
		if n.Ready {
			state = "done"
		}
		out.Spots = append(out.Spots, spot{X: x, Y: y, Name: short(n.Target), State: state, Way: string(n.Kind), Borrows: n.Pods})
	}
	top, bottom := out.Y, out.Y
	for _, s := range out.Spots {
		top, bottom = min(top, s.Y), max(bottom, s.Y)
	}
	out.Top, out.Height = top-30, bottom-top+100
	return out, nil
}

// short fits a name on the map.
func short(name string) string {
	name = summary.Line(name)
	if r := []rune(name); len(r) > 18 {
		return string(r[:17]) + "…"
	}
	return name
}

// podsOf counts pods by cluster: of this cluster there, and of the others here.
func podsOf(st api.Status) (there, here map[string]int) {
	there, here = map[string]int{}, map[string]int{}
	for _, n := range st.VirtualNodes {
		there[n.ID] += n.Pods
	}
	for _, t := range st.Consumers {
		here[string(t.ID)] += t.Pods
	}
	return there, here
}

// wayOf is the path of the packets to a peer, in words.
func wayOf(st api.Status, p api.Peer) string {
	if p.Way == nil || p.State != peer.Connected {
		return ""
	}
	if p.Way.Via == "" {
		return p.Way.Path
	}
	via := peer.ID(p.Way.Via).Short()
	for _, other := range st.Peers {
		if string(other.ID) == p.Way.Via {
			via = other.Name
		}
	}
	return p.Way.Path + " via " + summary.Line(via)
}

func stateClass(s peer.State) string {
	switch s {
	case peer.Connected:
		return "done"
	case peer.Waiting, peer.Connecting, peer.Discovered:
		return "waiting"
	case peer.Denied:
		return "off"
	}
	return "error"
}

func peerOf(ctx context.Context, c *Console, v *visit) (any, error) {
	st := v.Status
	list := st.PeerList()
	i := slices.IndexFunc(list, func(p api.Peer) bool { return string(p.ID) == v.Path["id"] })
	if i < 0 {
		return nil, fmt.Errorf("%w: this device knows no cluster with that ID; see the map", errNoPage)
	}
	p := list[i]
	out := struct {
		api.Peer
		Key, Way, State string
		Peered          bool
		Rate            rate
		Nodes           []place
		Lent            *offload.Consumer
		Twins           []string
		Graphs          []graph
		Missing         []string
	}{Peer: p, Key: string(p.ID), Way: wayOf(st, p), State: stateClass(p.State), Peered: !p.State.Apart(), Rate: v.Rates[string(p.ID)]}
	for _, n := range st.VirtualNodes {
		if n.ID == string(p.ID) {
			one := placeOf(n.Name, n.Allocatable, st.Room[n.Name].Requested)
			one.Ready, one.Pods, one.Detail = n.Ready, n.Pods, n.Reason
			out.Nodes = append(out.Nodes, one)
		}
	}
	if out.Peered {
		id := "{id=" + string(p.ID) + "}"
		day, err := c.figures(ctx, "peer_rtt_seconds"+id, "peer_received_bytes_per_second"+id, "peer_sent_bytes_per_second"+id)
		if err != nil {
			out.Missing = append(out.Missing, "the last 24 hours: "+summary.Line(err.Error()))
		}
		out.Graphs = graphsOf(day, lineOf("RTT", "peer_rtt_seconds", string(p.ID), millis), lineOf("Received", "peer_received_bytes_per_second", string(p.ID), speed), lineOf("Sent", "peer_sent_bytes_per_second", string(p.ID), speed))
	}
	for i := range st.Consumers {
		if t := &st.Consumers[i]; t.ID == p.ID {
			out.Lent = t
			for home := range t.Twins {
				out.Twins = append(out.Twins, home)
			}
			slices.Sort(out.Twins)
		}
	}
	return out, nil
}

func fleetOf(ctx context.Context, c *Console, _ *visit) (any, error) {
	var a fleet.Answer
	if err := c.get(ctx, fleet.Path, &a); err != nil {
		return nil, err
	}
	a.More += max(0, len(a.Members)-maxRows)
	a.Members = a.Members[:min(len(a.Members), maxRows)]
	return a, nil
}

func workloads(ctx context.Context, c *Console, v *visit) (any, error) {
	cluster, namespace := c.cluster(), v.Query.Get("namespace")
	s := operate.Selection{Namespace: namespace, Filter: v.Query.Get("filter")}
	if n, err := strconv.ParseUint(v.Query.Get("from"), 10, 31); err == nil {
		s.From = int(n)
	}
	w, err := cluster.Workloads(ctx, s)
	if err != nil {
		return nil, err
	}
	targets, err := cluster.Targets(ctx)
	out := struct {
		operate.Workloads
		Namespace, Filter string
		Modes             []policy.When
		Targets           []string
		Next, Before      string // pages
	}{Workloads: w, Namespace: summary.Line(namespace), Filter: summary.Line(s.Filter), Modes: []policy.When{policy.Off, policy.Burst, policy.Remote, policy.Any, policy.Services}, Targets: targets}
	at := func(from int) string {
		return "/workloads?" + url.Values{"namespace": {namespace}, "filter": {s.Filter}, "from": {strconv.Itoa(from)}}.Encode()
	}
	if w.More > 0 || w.MoreNamespaces > 0 {
		out.Next = at(s.From + operate.PageOfWorkloads)
	}
	if s.From > 0 {
		out.Before = at(max(0, s.From-operate.PageOfWorkloads))
	}
	return out, err
}

// stateOf is the colour of a pod's state.
func stateOf(p operate.Pod) string {
	switch s := p.State; {
	case p.Ended && s != "Completed" && s != "Succeeded", strings.HasSuffix(s, "Error"), strings.Contains(s, "BackOff"), s == "OOMKilled", s == "Evicted", s == "Failed", strings.HasPrefix(s, "ErrImage"), strings.HasPrefix(s, "Invalid"):
		return "failed"
	case p.Ended:
		return "off"
	case s == "Running" && p.Ready == p.Containers:
		return "done"
	}
	return "waiting"
}

func podOf(ctx context.Context, c *Console, v *visit) (any, error) {
	cluster, namespace, name := c.cluster(), v.Path["namespace"], v.Path["name"]
	details, err := cluster.PodDetails(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	out := struct {
		Pod                 operate.PodDetails
		Reasons             []explain.Reason
		Stream, StreamTitle string
		Shell               bool
	}{Pod: details}
	if details.Waits() {
		a, err := cluster.Why(ctx, namespace, name, nil)
		if err != nil {
			return nil, err
		}
		out.Reasons = a.Reasons
	}
	out.Stream, out.StreamTitle, out.Shell = streamOf(namespace, name, v.Query)
	return out, nil
}

func vclusters(ctx context.Context, c *Console, v *visit) (any, error) {
	var all []vcluster.View
	if err := c.get(ctx, "/v1/vclusters", &all); err != nil {
		return nil, err
	}
	return struct {
		All     []vcluster.View
		More    int
		Colours map[vcluster.State]string
	}{all[:min(len(all), maxRows)], max(0, len(all)-maxRows), map[vcluster.State]string{vcluster.Awake: "done", vcluster.Asleep: "off", vcluster.Paused: "warning", vcluster.Failed: "failed"}}, nil
}

func people(ctx context.Context, c *Console, v *visit) (any, error) {
	var users api.Kubeconfigs
	if err := c.get(ctx, "/v1/kubeconfigs", &users); err != nil {
		return nil, err
	}
	return struct {
		Users    []api.Kubeconfig
		Sessions []Session
		This     string
	}{users.Kubeconfigs[:min(len(users.Kubeconfigs), maxRows)], c.access.list(), v.Session.ID}, nil
}

func invites(ctx context.Context, c *Console, v *visit) (any, error) {
	var l api.Invites
	if err := c.get(ctx, "/v1/invites", &l); err != nil {
		return nil, err
	}
	return l, nil
}

func device(_ context.Context, c *Console, v *visit) (any, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return struct{ Fingerprint, This string }{fingerprint(c.cert), v.Session.ID}, nil
}

// formats are the functions of templates.
var formats = template.FuncMap{
	"bytes": bytesOf, "cpu": func(n float64) string { return trimmed(n, 1) }, "trip": trip, "rate": func(n float64) string { return bytesOf(n) + "/s" },
	"ago": func(now, t time.Time) string { return span(now.Sub(t)) }, "time": timeOf, "stateOf": stateOf,
	"line": summary.Line, "zero": time.Time.IsZero, "half": func(a, b int) int { return (a + b) / 2 }, "add": func(a, b int) int { return a + b },
	"float": func(n int64) float64 { return float64(n) }, "ufloat": func(n uint64) float64 { return float64(n) },
	"milli": func(n int64) string { return trimmed(float64(n)/1000, 1) }, "up": func(n int64) string { return span(time.Duration(n) * time.Second) },
	"count": count, "mode": func(m policy.When) string { return modes[m] },
	"verdict": func(v trace.Verdict) string {
		return map[trace.Verdict]string{trace.OK: "done", trace.Slow: "warning", trace.Fails: "error"}[v]
	},
}

// timeOf is a time that the script shows as the browser's clock does.
func timeOf(t time.Time) template.HTML {
	return template.HTML(fmt.Sprintf(`<time datetime="%s">%s</time>`, t.UTC().Format(time.RFC3339), t.UTC().Format("2006-01-02 15:04 UTC"))) //nolint:gosec // digits
}

// modes are the ways of offloading, in words.
var modes = map[policy.When]string{policy.Off: "at home only", policy.Burst: "at home first, then away", policy.Remote: "away only", policy.Any: "anywhere", policy.Services: "at home only, its Services everywhere"}

// count is a number of things.
func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func trimmed(n float64, digits int) string {
	return strings.TrimSuffix(fmt.Sprintf("%.*f", digits, n), "."+strings.Repeat("0", digits))
}

// bytesOf is a number of bytes in binary units.
func bytesOf(n float64) string {
	for i, unit := range []string{"B", "KiB", "MiB", "GiB", "TiB"} {
		if n < 1024 || unit == "TiB" {
			return trimmed(n, min(i, 1)) + " " + unit
		}
		n /= 1024
	}
	return ""
}

func trip(d time.Duration) string {
	if d == 0 {
		return "–"
	}
	return trimmed(float64(d.Microseconds())/1000, 1) + " ms"
}

// span is a duration in one unit.
func span(d time.Duration) string {
	switch d = max(d, 0); {
	case d < 2*time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", int(d.Hours()))
	}
	return fmt.Sprintf("%d days", int(d.Hours()/24))
}
