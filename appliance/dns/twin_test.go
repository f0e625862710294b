package dns

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	miekg "github.com/miekg/dns"
	"pgregory.net/rapid"
)

const suffix = ".svc.cluster.local."

func TestNamespaceOf(t *testing.T) {
	for name, want := range map[string]string{
		"web.lab.svc.cluster.local.":            "lab",
		"_http._tcp.web.lab.svc.cluster.local.": "lab",
		"lab.svc.cluster.local.":                "",
		".lab.svc.cluster.local.":               "",
		"svc.cluster.local.":                    "",
		"web.lab.svc.cluster.local.example.":    "",
		"web.lab.pod.cluster.local.":            "",
	} {
		if got, ok := namespaceOf(name, suffix); ok != (want != "") || ok && got != want {
			t.Errorf("%s: %q, %v", name, got, ok)
		}
	}
}

func TestNamesGoThereAndBack(t *testing.T) {
	label := rapid.StringMatching(`[a-z]([a-z0-9-]{0,8}[a-z0-9])?`)
	rapid.Check(t, func(t *rapid.T) {
		home, twin := label.Draw(t, "home"), label.Draw(t, "twin")
		below := strings.Join(rapid.SliceOfN(label, 1, 4).Draw(t, "below"), ".")
		name := below + "." + home + suffix
		there := inNamespace(name, suffix, home, twin)
		if want := below + "." + twin + suffix; there != want {
			t.Fatalf("%s moved to %s, want %s", name, there, want)
		}
		if back := inNamespace(there, suffix, twin, home); back != name {
			t.Fatalf("%s came back as %s", name, back)
		}
		if other := below + ".x" + twin + suffix; inNamespace(other, suffix, twin, home) != other {
			t.Fatalf("%s was moved", other)
		}
	})
}

func TestAnswerInTheNamesAskedFor(t *testing.T) {
	asked := new(miekg.Msg)
	asked.SetQuestion("_Http._tcp.WEB.lab.svc.cluster.local.", miekg.TypeSRV)
	var got *miekg.Msg
	w := &homeward{recorder{to: &got}, asked, suffix, "lab-x7f2", "lab"}
	rr := func(text string) miekg.RR {
		r, err := miekg.NewRR(text)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	from := new(miekg.Msg)
	from.SetQuestion("_http._tcp.web.lab-x7f2.svc.cluster.local.", miekg.TypeSRV)
	from.Answer = []miekg.RR{
		rr("_http._tcp.web.lab-x7f2.svc.cluster.local. 5 IN SRV 0 100 80 pod-0.web.lab-x7f2.svc.cluster.local."),
		rr("db.lab-x7f2.svc.cluster.local. 5 IN CNAME db.example.org."),
	}
	from.Extra = []miekg.RR{rr("pod-0.web.lab-x7f2.svc.cluster.local. 5 IN A 10.42.0.7")}
	before := from.String()
	if err := w.WriteMsg(from); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"_Http._tcp.WEB.lab.svc.cluster.local.\t5\tIN\tSRV\t0 100 80 pod-0.web.lab.svc.cluster.local.",
		"db.lab.svc.cluster.local.\t5\tIN\tCNAME\tdb.example.org.",
		"pod-0.web.lab.svc.cluster.local.\t5\tIN\tA\t10.42.0.7",
	}
	for i, r := range append(got.Answer, got.Extra...) {
		if r.String() != want[i] {
			t.Errorf("got  %s\nwant %s", r, want[i])
		}
	}
	if got.Question[0] != asked.Question[0] || from.String() != before {
		t.Fatalf("question %v, or the message of the plugin below was changed", got.Question)
	}
}

type recorder struct {
	miekg.ResponseWriter
	to **miekg.Msg
}

func (r recorder) WriteMsg(m *miekg.Msg) error { *r.to = m; return nil }

func TestIndex(t *testing.T) {
	x := newIndex()
	away, other, here := netip.MustParseAddr("10.42.0.7"), netip.MustParseAddr("10.42.0.8"), netip.MustParseAddr("10.42.0.9")
	x.setTwin("lab-a", homeName{"a", "lab"})
	x.setTwin("db-a", homeName{"a", "db"})
	x.setTwin("lab-b", homeName{"b", "lab"})
	x.setPod(podName{"lab-a", "p"}, nil, []netip.Addr{away})
	x.setPod(podName{"lab-b", "p"}, nil, []netip.Addr{other})
	x.setPod(podName{"default", "p"}, nil, []netip.Addr{here})
	expect := func(client netip.Addr, home, want string) {
		t.Helper()
		if got, ok := x.twinFor(context.Background(), client, home); got != want || ok != (want != "") {
			t.Errorf("%s asking for %s is led to %q, want %q", client, home, got, want)
		}
	}
	expect(away, "lab", "lab-a")
	expect(away, "db", "db-a")
	expect(away, "kube-system", "")
	expect(other, "lab", "lab-b")
	expect(other, "db", "") // of another origin
	expect(here, "lab", "")

	// The address goes to another pod before the first one's end is heard of.
	x.setPod(podName{"default", "q"}, nil, []netip.Addr{away})
	x.setPod(podName{"lab-a", "p"}, []netip.Addr{away}, nil)
	expect(away, "lab", "")

	x.setPod(podName{"lab-a", "p"}, nil, []netip.Addr{away})
	x.setTwin("lab-a", homeName{})
	expect(away, "lab", "")
	x.setTwin("db-a", homeName{})
	x.setTwin("lab-b", homeName{})
	if len(x.twins)+len(x.homes)+len(x.named) != 0 {
		t.Errorf("left: %v %v %v", x.twins, x.homes, x.named)
	}
}

// The first query of a pod is held back until its address is known, but only
// where that can make a difference, and not for ever.
func TestQueryBeforeThePodIsPublished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newIndex()
		x.setTwin("lab-a", homeName{"a", "lab"})
		fresh, stranger := netip.MustParseAddr("10.42.0.7"), netip.MustParseAddr("10.42.0.8")
		ask := func(client netip.Addr, home string) (string, time.Duration) {
			ctx, cancel := context.WithTimeout(t.Context(), published)
			defer cancel()
			start := time.Now()
			twin, _ := x.twinFor(ctx, client, home)
			return twin, time.Since(start)
		}
		if twin, took := ask(stranger, "shop"); twin != "" || took != 0 {
			t.Errorf("a name that no twin has: %q after %v", twin, took)
		}
		if twin, took := ask(stranger, "lab"); twin != "" || took != published {
			t.Errorf("nobody's address: %q after %v", twin, took)
		}
		go func() {
			time.Sleep(time.Second)
			x.setPod(podName{"lab-a", "p"}, nil, []netip.Addr{fresh})
		}()
		if twin, took := ask(fresh, "lab"); twin != "lab-a" || took != time.Second {
			t.Errorf("published after a second: %q after %v", twin, took)
		}
	})
}
