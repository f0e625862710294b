package dns

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coredns/coredns/plugin"
	miekg "github.com/miekg/dns"
	"pgregory.net/rapid"

	"rivulet/offload/homeapi"
	"rivulet/offload/nodeagent/homeaddr"
	"rivulet/offload/policy"
)

const domain = "cluster.local."

func nowhere() []netip.Prefix { return nil }

// Whether the informers have told of everything is asked without the lock of the index: an
// informer holds its queue's lock, which HasSynced takes, while it calls a handler that
// takes the index's.
func TestSyncedHoldsNoLock(t *testing.T) {
	x := newIndex()
	var queue sync.Mutex
	asking := make(chan struct{})
	x.informed = func() bool {
		close(asking)
		queue.Lock()
		defer queue.Unlock()
		return true
	}
	queue.Lock()
	synced := make(chan bool)
	go func() { synced <- x.synced() }()
	<-asking
	handled := make(chan struct{})
	go func() {
		x.setMade(podName{"one", "pod"}, "")
		close(handled)
	}()
	select {
	case <-handled:
	case <-time.After(10 * time.Second):
		t.Fatal("the handler waits for the index, and the index for the informer")
	}
	queue.Unlock()
	if !<-synced {
		t.Error("not synced")
	}
}

func TestNamespaceOf(t *testing.T) {
	for name, want := range map[string][2]string{
		"web.lab.svc.cluster.local.":            {"lab", "svc"},
		"_http._tcp.web.lab.svc.cluster.local.": {"lab", "svc"},
		"lab.svc.cluster.local.":                {"lab", "svc"},
		"10-42-0-7.lab.pod.cluster.local.":      {"lab", "pod"},
		".lab.svc.cluster.local.":               {"lab", "svc"},
		"svc.cluster.local.":                    {},
		"cluster.local.":                        {},
		"web.lab.svc.cluster.local.example.":    {},
		"web.lab.any.cluster.local.":            {},
	} {
		if ns, kind := namespaceOf(name, domain); ns != want[0] || kind != want[1] {
			t.Errorf("%s: %q, %q", name, ns, kind)
		}
	}
}

func TestNamesGoThereAndBack(t *testing.T) {
	label := rapid.StringMatching(`[a-z]([a-z0-9-]{0,8}[a-z0-9])?`)
	const suffix = ".svc." + domain
	rapid.Check(t, func(t *rapid.T) {
		home, twin := label.Draw(t, "home"), label.Draw(t, "twin")
		below := strings.Join(append(rapid.SliceOfN(label, 0, 4).Draw(t, "below"), ""), ".")
		name := below + home + suffix
		there := inNamespace(name, domain, home, twin)
		if want := below + twin + suffix; there != want {
			t.Fatalf("%s moved to %s, want %s", name, there, want)
		}
		if back := inNamespace(there, domain, twin, home); back != name {
			t.Fatalf("%s came back as %s", name, back)
		}
		if other := below + "x" + twin + suffix; inNamespace(other, domain, twin, home) != other {
			t.Fatalf("%s was moved", other)
		}
	})
}

func rr(t interface{ Fatal(...any) }, text string) miekg.RR {
	r, err := miekg.NewRR(text)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// recorder is a client at an address.
type recorder struct {
	miekg.ResponseWriter
	from string
	got  *miekg.Msg
}

func (r *recorder) WriteMsg(m *miekg.Msg) error { r.got = m; return nil }
func (r *recorder) RemoteAddr() net.Addr        { return &net.UDPAddr{IP: net.ParseIP(r.from), Port: 1} }

// below answers in the place of the cluster and of the site's DNS.
type below func(q miekg.Question) []miekg.RR

func (below) Name() string { return "below" }

func (b below) ServeDNS(_ context.Context, w miekg.ResponseWriter, r *miekg.Msg) (int, error) {
	m := new(miekg.Msg)
	m.SetReply(r)
	m.Answer = b(r.Question[0])
	return miekg.RcodeSuccess, w.WriteMsg(m)
}

const alices, bobs, own = "10.42.0.7", "10.42.0.8", "10.42.0.9"

// peopled is an index with tenants of two origins that both have a namespace lab.
func peopled() *index {
	x := newIndex()
	x.informed = func() bool { return true }
	x.setTwin("lab-a", homeName{"a", "lab"})
	x.setTwin("db-a", homeName{"a", "db"})
	x.setTwin("lab-b", homeName{"b", "lab"})
	for addr, ns := range map[string]string{alices: "lab-a", bobs: "lab-b", own: "default"} {
		x.setPod(podName{ns, "p"}, nil, []netip.Addr{netip.MustParseAddr(addr)})
	}
	return x
}

func ask(t interface{ Fatal(...any) }, h plugin.Handler, from, name string, qtype uint16) *miekg.Msg {
	r := new(miekg.Msg)
	r.SetQuestion(name, qtype)
	w := &recorder{from: from}
	code, err := h.ServeDNS(context.Background(), w, r)
	if err != nil {
		t.Fatal(err)
	}
	if w.got == nil {
		w.got = new(miekg.Msg)
		w.got.SetRcode(r, code)
	}
	return w.got
}

func TestAnswerInTheNamesAskedFor(t *testing.T) {
	answers := []miekg.RR{
		rr(t, "_http._tcp.web.lab-a.svc.cluster.local. 5 IN SRV 0 100 80 pod-0.web.lab-a.svc.cluster.local."),
		rr(t, "db.lab-a.svc.cluster.local. 5 IN CNAME db.example.org."),
		rr(t, "pod-0.web.lab-a.svc.cluster.local. 5 IN A 10.42.0.7"),
	}
	var asked miekg.Question
	h := &twin{domain: domain, networks: nowhere, index: peopled(), next: below(func(q miekg.Question) []miekg.RR { asked = q; return answers })}
	before := answers[0].String()
	got := ask(t, h, alices, "_Http._tcp.WEB.lab.svc.cluster.local.", miekg.TypeSRV)
	if asked.Name != "_http._tcp.web.lab-a.svc.cluster.local." {
		t.Errorf("the cluster is asked for %s", asked.Name)
	}
	want := []string{
		"_Http._tcp.WEB.lab.svc.cluster.local.\t5\tIN\tSRV\t0 100 80 pod-0.web.lab.svc.cluster.local.",
		"db.lab.svc.cluster.local.\t5\tIN\tCNAME\tdb.example.org.",
		"pod-0.web.lab.svc.cluster.local.\t5\tIN\tA\t10.42.0.7",
	}
	for i, r := range got.Answer {
		if r.String() != want[i] {
			t.Errorf("got  %s\nwant %s", r, want[i])
		}
	}
	if len(got.Answer) != len(want) || got.Question[0].Name != "_Http._tcp.WEB.lab.svc.cluster.local." || answers[0].String() != before {
		t.Fatalf("%v, or the message of the plugin below was changed", got)
	}
}

// A tenant sees the names of its own twins and public ones, and of all others not even
// that there are any.
func TestWhatATenantSees(t *testing.T) {
	h := &twin{domain: domain, networks: nowhere, pods: netip.MustParsePrefix("10.42.0.0/16"), dns: netip.MustParseAddr("10.43.0.10"), index: peopled(), next: below(func(q miekg.Question) []miekg.RR {
		if q.Qtype == miekg.TypePTR {
			names := map[string]string{"7.0.42.10.in-addr.arpa.": "web.db-a.svc." + domain, "9.0.42.10.in-addr.arpa.": "vault.default.svc." + domain, "1.1.168.192.in-addr.arpa.": "router.site.example.", "8.8.8.8.in-addr.arpa.": "dns.example."}
			if to, ok := names[q.Name]; ok {
				return []miekg.RR{rr(t, q.Name+" 5 IN PTR "+to)}
			}
			return nil
		}
		switch q.Name {
		case "alias.lab-a.svc.cluster.local.":
			return []miekg.RR{rr(t, q.Name+" 5 IN CNAME vault.default.svc.cluster.local."), rr(t, "vault.default.svc.cluster.local. 5 IN A 10.43.0.9")}
		case "printer.site.example.":
			return []miekg.RR{rr(t, q.Name+" 5 IN A 192.168.1.9")}
		case "example.org.":
			return []miekg.RR{rr(t, q.Name+" 5 IN A 203.0.113.9")}
		}
		return []miekg.RR{rr(t, q.Name+" 5 IN A 10.43.0.1")}
	})}
	for _, c := range []struct {
		from, name string
		qtype      uint16
		rcode      int
		answers    int
	}{
		{alices, "web.lab.svc.cluster.local.", miekg.TypeA, miekg.RcodeSuccess, 1},
		{alices, "web.db.svc.cluster.local.", miekg.TypeA, miekg.RcodeSuccess, 1},
		{alices, "kube-dns.kube-system.svc.cluster.local.", miekg.TypeA, miekg.RcodeSuccess, 1},
		{alices, "KUBE-DNS.kube-system.svc.cluster.local.", miekg.TypeAAAA, miekg.RcodeSuccess, 0},
		{alices, "10.0.43.10.in-addr.arpa.", miekg.TypePTR, miekg.RcodeSuccess, 1},
		{alices, "other.kube-system.svc.cluster.local.", miekg.TypeA, miekg.RcodeNameError, 0},
		{bobs, "kube-dns.kube-system.svc.cluster.local.", miekg.TypeA, miekg.RcodeSuccess, 1},
		{alices, "web.lab-a.svc.cluster.local.", miekg.TypeA, miekg.RcodeSuccess, 1},
		{alices, "web.lab-b.svc.cluster.local.", miekg.TypeA, miekg.RcodeNameError, 0},
		{alices, "vault.default.svc.cluster.local.", miekg.TypeA, miekg.RcodeNameError, 0},
		{alices, "vault.default.svc.cluster.local.", miekg.TypeANY, miekg.RcodeNameError, 0},
		{alices, "_http._tcp.vault.DEFAULT.svc.cluster.local.", miekg.TypeSRV, miekg.RcodeNameError, 0},
		{alices, "default.svc.cluster.local.", miekg.TypeTXT, miekg.RcodeNameError, 0},
		{alices, "10-42-0-9.default.pod.cluster.local.", miekg.TypeA, miekg.RcodeNameError, 0},
		{alices, "10-42-0-7.lab.pod.cluster.local.", miekg.TypeA, miekg.RcodeNameError, 0},
		{alices, "10-42-0-7.lab-a.pod.cluster.local.", miekg.TypeA, miekg.RcodeSuccess, 1},
		{alices, "*.*.svc.cluster.local.", miekg.TypeA, miekg.RcodeNameError, 0},
		{alices, "svc.cluster.local.", miekg.TypeA, miekg.RcodeNameError, 0},
		{alices, "dns-version.cluster.local.", miekg.TypeTXT, miekg.RcodeNameError, 0},
		{alices, "alias.lab.svc.cluster.local.", miekg.TypeA, miekg.RcodeNameError, 0},
		{alices, "7.0.42.10.in-addr.arpa.", miekg.TypePTR, miekg.RcodeSuccess, 1},
		{alices, "9.0.42.10.in-addr.arpa.", miekg.TypePTR, miekg.RcodeNameError, 0},
		{alices, "1.1.168.192.in-addr.arpa.", miekg.TypePTR, miekg.RcodeNameError, 0},
		{alices, "8.8.8.8.in-addr.arpa.", miekg.TypePTR, miekg.RcodeSuccess, 1},
		{alices, "example.org.", miekg.TypeA, miekg.RcodeSuccess, 1},
		{alices, "printer.site.example.", miekg.TypeA, miekg.RcodeNameError, 0},
		{bobs, "web.db.svc.cluster.local.", miekg.TypeA, miekg.RcodeNameError, 0},
		{bobs, "7.0.42.10.in-addr.arpa.", miekg.TypePTR, miekg.RcodeNameError, 0},
		{own, "vault.default.svc.cluster.local.", miekg.TypeA, miekg.RcodeSuccess, 1},
		{own, "printer.site.example.", miekg.TypeA, miekg.RcodeSuccess, 1},
		{own, "1.1.168.192.in-addr.arpa.", miekg.TypePTR, miekg.RcodeSuccess, 1},
	} {
		got := ask(t, h, c.from, c.name, c.qtype)
		if got.Rcode != c.rcode || len(got.Answer) != c.answers {
			t.Errorf("%s asks for %s %s: %s with %v", c.from, miekg.TypeToString[c.qtype], c.name, miekg.RcodeToString[got.Rcode], got.Answer)
		}
	}
	if p := ask(t, h, alices, "7.0.42.10.in-addr.arpa.", miekg.TypePTR).Answer[0].(*miekg.PTR).Ptr; p != "web.db.svc.cluster.local." {
		t.Errorf("the name of an address is %s, not that of home", p)
	}
	if a := ask(t, h, alices, "kube-dns.kube-system.svc.cluster.local.", miekg.TypeA).Answer[0].(*miekg.A).A.String(); a != "10.43.0.10" {
		t.Errorf("the resolver is at %s", a)
	}
}

// Whatever the cluster would answer, no name of another namespace comes to a tenant.
func TestNothingOfOthersIsTold(t *testing.T) {
	spaces := []string{"lab-a", "db-a", "lab-b", "default", "lab", "kube-system"}
	name := rapid.Custom(func(t *rapid.T) string {
		return rapid.SampledFrom([]string{"", "web.", "_x._tcp.web."}).Draw(t, "below") + rapid.SampledFrom(spaces).Draw(t, "ns") +
			rapid.SampledFrom([]string{".svc.", ".pod.", "."}).Draw(t, "kind") + domain
	})
	rapid.Check(t, func(t *rapid.T) {
		var answer []miekg.RR
		for range rapid.IntRange(0, 4).Draw(t, "n") {
			of, to := name.Draw(t, "of"), name.Draw(t, "to")
			answer = append(answer, rr(t, of+rapid.SampledFrom([]string{" 5 IN A 10.42.0.9", " 5 IN CNAME " + to, " 5 IN SRV 0 1 80 " + to, " 5 IN PTR " + to}).Draw(t, "rr")))
		}
		h := &twin{domain: domain, networks: nowhere, index: peopled(), next: below(func(miekg.Question) []miekg.RR { return answer })}
		q := rapid.OneOf(name, rapid.Just("9.0.42.10.in-addr.arpa.")).Draw(t, "asked")
		text := ask(t, h, alices, q, rapid.SampledFrom([]uint16{miekg.TypeA, miekg.TypePTR, miekg.TypeANY, miekg.TypeSRV}).Draw(t, "type"))
		for _, r := range text.Answer {
			for _, n := range append(targets(r), &r.Header().Name) {
				if ns, _ := namespaceOf(*n, domain); strings.HasSuffix(*n, domain) && ns != "lab" && ns != "lab-a" && ns != "db" && ns != "db-a" {
					t.Fatalf("%s: %s", q, r)
				}
			}
		}
	})
}

func TestIndex(t *testing.T) {
	x := peopled()
	away := netip.MustParseAddr(alices)
	who := func() tenant { w, _ := x.who(t.Context(), away); return w }
	if who() != (tenant{origin: "a", namespace: "lab-a"}) {
		t.Errorf("%v", who())
	}
	// The address goes to another pod before the first one's end is heard of.
	x.setPod(podName{"default", "q"}, nil, []netip.Addr{away})
	x.setPod(podName{"lab-a", "p"}, []netip.Addr{away}, nil)
	if who() != (tenant{namespace: "default"}) {
		t.Errorf("%v", who())
	}
	x.setPod(podName{"lab-a", "p"}, nil, []netip.Addr{away})
	for _, ns := range []string{"lab-a", "db-a", "lab-b"} {
		x.setTwin(ns, homeName{})
	}
	if who().origin != "" || len(x.twins)+len(x.homes) != 0 {
		t.Errorf("left: %v %v %v", who(), x.twins, x.homes)
	}
}

// The first query of a pod that is not known is held back, but only where that can make a
// difference, and not for ever; then it is refused and not taken for the cluster's own.
func TestQueryBeforeThePodIsPublished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := peopled()
		h := &twin{domain: domain, networks: nowhere, pods: netip.MustParsePrefix("10.42.0.0/16"), index: x, next: below(func(q miekg.Question) []miekg.RR {
			return []miekg.RR{rr(t, q.Name+" 5 IN A 203.0.113.1")}
		})}
		try := func(from, name string) (int, time.Duration) {
			start := time.Now()
			return ask(t, h, from, name, miekg.TypeA).Rcode, time.Since(start)
		}
		if code, took := try("10.42.0.70", "example.org."); code != miekg.RcodeSuccess || took != 0 {
			t.Errorf("a public name: %d after %v", code, took)
		}
		if code, took := try("10.42.0.70", "vault.default.svc.cluster.local."); code != miekg.RcodeRefused || took != published {
			t.Errorf("nobody's address: %d after %v", code, took)
		}
		go func() {
			time.Sleep(time.Second)
			x.setPod(podName{"lab-a", "p"}, nil, []netip.Addr{netip.MustParseAddr("10.42.0.71")})
		}()
		if code, took := try("10.42.0.71", "vault.default.svc.cluster.local."); code != miekg.RcodeNameError || took != time.Second {
			t.Errorf("published after a second: %d after %v", code, took)
		}
		x.informed = func() bool { return false }
		if code, _ := try(own, "vault.default.svc.cluster.local."); code != miekg.RcodeServerFailure {
			t.Errorf("before it is known who is whose: %d", code)
		}
	})
}

// A tenant that was made for home's addresses is told these, finds names by them, and is
// told of no others. One that was not is told what is here.
func TestAddressesOfHome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := peopled()
		const news = "10.42.0.17"
		x.setPod(podName{"lab-a", "new"}, nil, []netip.Addr{netip.MustParseAddr(news)})
		x.setMade(podName{"lab-a", "new"}, policy.HomeAddressesOfServices)
		const lives = "10.42.0.19" // in home's addresses
		x.setPod(podName{"lab-a", "lives"}, nil, []netip.Addr{netip.MustParseAddr(lives)})
		x.setMade(podName{"lab-a", "lives"}, policy.HomeAddressesOfPods)
		service := func(ns, name, home, here string) {
			x.setService(podName{ns, name}, homeaddr.Reflected{Namespace: ns, Name: name, Home: netip.MustParseAddr(home), Here: netip.MustParseAddr(here)})
		}
		service("lab-a", "web", "10.43.5.5", "10.43.9.9")
		service("lab-b", "web", "10.43.5.6", "10.43.9.8")
		// All of them stand for the same Service at home: the table has the first one.
		service("db-a", homeapi.Service, "10.43.5.1", "10.43.9.2")
		service("lab-a", homeapi.Service, "10.43.5.1", "10.43.9.3")
		here := map[string]string{"rivulet-home-api.lab-a.": "10.43.9.3", "web.lab-a.": "10.43.9.9", "late.lab-a.": "10.43.9.7", "own.lab-a.": "10.43.9.1", "headless.lab-a.": "10.42.0.7", "athome.lab-a.": "240.5.0.9", "stranger.lab-a.": "240.3.0.9"}
		h := &twin{domain: domain, networks: nowhere, pods: netip.MustParsePrefix("10.42.0.0/16"), services: netip.MustParsePrefix("10.43.0.0/16"), dns: netip.MustParseAddr("10.43.0.10"), index: x,
			sees: func(origin string) homeaddr.View {
				if origin != "a" {
					return nil
				}
				return homeaddr.View{{Home: netip.MustParsePrefix("240.3.0.0/16"), Here: netip.MustParsePrefix("10.42.0.0/16")}, {Home: netip.MustParsePrefix("10.42.0.0/16"), Here: netip.MustParsePrefix("240.5.0.0/16")}}
			},
			next: below(func(q miekg.Question) []miekg.RR {
				switch q.Qtype {
				case miekg.TypePTR:
					if q.Name == "2.9.43.10.in-addr.arpa." {
						return []miekg.RR{rr(t, q.Name+" 5 IN PTR rivulet-home-api.db-a.svc."+domain)}
					}
					if q.Name == "7.0.42.10.in-addr.arpa." {
						return []miekg.RR{rr(t, q.Name+" 5 IN PTR db-0.headless.lab-a.svc."+domain)}
					}
					if q.Name == "9.9.43.10.in-addr.arpa." {
						return []miekg.RR{rr(t, q.Name+" 5 IN PTR web.lab-a.svc."+domain)}
					}
					return nil
				case miekg.TypeSRV:
					return []miekg.RR{rr(t, q.Name+" 5 IN SRV 0 100 80 web.lab-a.svc."+domain), rr(t, "web.lab-a.svc."+domain+" 5 IN A 10.43.9.9")}
				}
				return []miekg.RR{rr(t, q.Name+" 5 IN A "+here[strings.TrimSuffix(q.Name, "svc."+domain)])}
			})}
		for _, c := range []struct {
			from, name string
			qtype      uint16
			want       string // the last answer, or the code
		}{
			{news, "web.lab.svc.cluster.local.", miekg.TypeA, "web.lab.svc.cluster.local.\t5\tIN\tA\t10.43.5.5"},
			{news, "_http._tcp.web.lab.svc.cluster.local.", miekg.TypeSRV, "web.lab.svc.cluster.local.\t5\tIN\tA\t10.43.5.5"},
			{news, "kubernetes.default.svc.cluster.local.", miekg.TypeA, "kubernetes.default.svc.cluster.local.\t5\tIN\tA\t10.43.5.1"},
			{alices, "Kubernetes.default.svc.cluster.local.", miekg.TypeA, "Kubernetes.default.svc.cluster.local.\t5\tIN\tA\t10.43.9.3"},
			{news, "1.5.43.10.in-addr.arpa.", miekg.TypePTR, "1.5.43.10.in-addr.arpa.\t5\tIN\tPTR\tkubernetes.default.svc.cluster.local."},
			{news, "headless.lab.svc.cluster.local.", miekg.TypeA, "headless.lab.svc.cluster.local.\t5\tIN\tA\t10.42.0.7"},
			{news, "5.5.43.10.in-addr.arpa.", miekg.TypePTR, "5.5.43.10.in-addr.arpa.\t5\tIN\tPTR\tweb.lab.svc.cluster.local."},
			{news, "9.9.43.10.in-addr.arpa.", miekg.TypePTR, "NXDOMAIN"},
			{news, "6.5.43.10.in-addr.arpa.", miekg.TypePTR, "NXDOMAIN"},  // another consumer's
			{news, "own.lab.svc.cluster.local.", miekg.TypeA, "SERVFAIL"}, // nothing at home
			{lives, "web.lab.svc.cluster.local.", miekg.TypeA, "web.lab.svc.cluster.local.\t5\tIN\tA\t10.43.5.5"},
			{lives, "headless.lab.svc.cluster.local.", miekg.TypeA, "headless.lab.svc.cluster.local.\t5\tIN\tA\t240.3.0.7"},
			{lives, "athome.lab.svc.cluster.local.", miekg.TypeA, "athome.lab.svc.cluster.local.\t5\tIN\tA\t10.42.0.9"},
			{lives, "stranger.lab.svc.cluster.local.", miekg.TypeA, "SERVFAIL"}, // home calls others so
			{lives, "7.0.3.240.in-addr.arpa.", miekg.TypePTR, "7.0.3.240.in-addr.arpa.\t5\tIN\tPTR\tdb-0.headless.lab.svc.cluster.local."},
			{lives, "7.0.42.10.in-addr.arpa.", miekg.TypePTR, "NXDOMAIN"}, // asked as 240.5.0.7: a pod at home of which nobody knows here
			{alices, "web.lab.svc.cluster.local.", miekg.TypeA, "web.lab.svc.cluster.local.\t5\tIN\tA\t10.43.9.9"},
			{alices, "9.9.43.10.in-addr.arpa.", miekg.TypePTR, "9.9.43.10.in-addr.arpa.\t5\tIN\tPTR\tweb.lab.svc.cluster.local."},
		} {
			m := ask(t, h, c.from, c.name, c.qtype)
			got := miekg.RcodeToString[m.Rcode]
			if n := len(m.Answer); n > 0 {
				got = m.Answer[n-1].String()
			}
			if got != c.want {
				t.Errorf("%s asks for %s: %s, want %s", c.from, c.name, got, c.want)
			}
		}
		// One that the index hears of a moment after the cluster is waited for.
		go func() {
			time.Sleep(time.Second)
			service("lab-a", "late", "10.43.5.9", "10.43.9.7")
		}()
		if m := ask(t, h, news, "late.lab.svc.cluster.local.", miekg.TypeA); len(m.Answer) != 1 || m.Answer[0].(*miekg.A).A.String() != "10.43.5.9" {
			t.Errorf("a Service that was made this moment: %v", m)
		}
	})
}

// What a pod of this device was made for is known before it is told anything.
func TestAPodOfWhichTheAPIServerHasNotToldYet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := peopled()
		x.local = &local{results: "x", of: map[netip.Addr]podName{netip.MustParseAddr("10.42.0.18"): {"lab-a", "new"}}, read: time.Now().Add(time.Hour)}
		go func() {
			time.Sleep(time.Second)
			x.setMade(podName{"lab-a", "new"}, policy.HomeAddressesOfServices)
		}()
		ctx, cancel := context.WithTimeout(t.Context(), published)
		defer cancel()
		if who, known := x.who(ctx, netip.MustParseAddr("10.42.0.18")); !known || !who.homeAddresses {
			t.Errorf("%v %v", who, known)
		}
	})
}
