package dns

import (
	"context"
	"net/netip"
	"strings"
	"testing"

	"github.com/coredns/coredns/plugin"
	miekg "github.com/miekg/dns"
)

// site is the site's DNS server: it has public names and its own, and tells of both all that a
// server can tell.
type site struct {
	zone  map[string]string // records by "name type", lines of a zone file
	asked []*miekg.Msg
}

func (*site) Name() string { return "site" }

func (s *site) ServeDNS(_ context.Context, w miekg.ResponseWriter, r *miekg.Msg) (int, error) {
	s.asked = append(s.asked, r)
	m := new(miekg.Msg)
	m.SetReply(r)
	q := r.Question[0]
	name := strings.ToLower(q.Name)
	exists := false
	for key, records := range s.zone {
		of, qtype, _ := strings.Cut(key, " ")
		exists = exists || of == name
		if of != name || qtype != miekg.TypeToString[q.Qtype] && qtype != "CNAME" && q.Qtype != miekg.TypeANY {
			continue
		}
		for line := range strings.SplitSeq(records, "\n") {
			rr, err := miekg.NewRR(line)
			if err != nil {
				panic(line + ": " + err.Error())
			}
			m.Answer = append(m.Answer, rr)
		}
	}
	if !exists {
		m.Rcode = miekg.RcodeNameError
	}
	soa, _ := miekg.NewRR("site.example. 60 IN SOA dc1.site.example. admin.site.example. 1 2 3 4 5")
	glue, _ := miekg.NewRR("dc1.site.example. 60 IN A 192.168.1.2")
	m.Ns, m.Extra = []miekg.RR{soa}, []miekg.RR{glue}
	return m.Rcode, w.WriteMsg(m)
}

func siteDNS() *site {
	return &site{zone: map[string]string{
		"web.example. A":                 "web.example. 60 IN A 203.0.113.9\nweb.example. 60 IN A 192.168.1.7",
		"web.example. AAAA":              "web.example. 60 IN AAAA 2606:4700::1111\nweb.example. 60 IN AAAA fd00::7\nweb.example. 60 IN AAAA 2606:4700:5::7",
		"web.example. TXT":               `web.example. 60 IN TXT "v=spf1 -all"`,
		"web.example. CAA":               `web.example. 60 IN CAA 0 issue "ca.example"`,
		"web.example. MX":                "web.example. 60 IN MX 10 web.example.\nweb.example. 60 IN MX 20 mail.site.example.",
		"web.example. NS":                "web.example. 60 IN NS web.example.\nweb.example. 60 IN NS dc1.site.example.",
		"web.example. SOA":               "web.example. 60 IN SOA dc1.site.example. admin.site.example. 1 2 3 4 5",
		"web.example. HTTPS":             "web.example. 60 IN HTTPS 1 . alpn=h2 ipv4hint=203.0.113.9\nweb.example. 60 IN HTTPS 2 . ipv4hint=192.168.1.7\nweb.example. 60 IN HTTPS 3 nas.site.example.",
		"web.example. SVCB":              "web.example. 60 IN SVCB 1 web.example. ipv6hint=fd00::7\nweb.example. 60 IN SVCB 2 web.example.",
		"web.example. NAPTR":             `web.example. 60 IN NAPTR 1 1 "s" "SIP+D2U" "" _sip._udp.site.example.`,
		"_s._tcp.example. SRV":           "_s._tcp.example. 60 IN SRV 0 0 80 web.example.\n_s._tcp.example. 60 IN SRV 0 0 80 nas.site.example.",
		"www.example. CNAME":             "www.example. 60 IN CNAME web.example.\nweb.example. 60 IN A 203.0.113.9",
		"old.example. CNAME":             "old.example. 60 IN CNAME nas.site.example.\nnas.site.example. 60 IN A 192.168.1.7",
		"nas.site.example. A":            "nas.site.example. 60 IN A 192.168.1.7",
		"nas.site.example. TXT":          `nas.site.example. 60 IN TXT "rack 3"`,
		"nas.site.example. CAA":          `nas.site.example. 60 IN CAA 0 issue "ca.example"`,
		"nas.site.example. MX":           "nas.site.example. 60 IN MX 10 mail.site.example.",
		"nas.site.example. SRV":          "nas.site.example. 60 IN SRV 0 0 80 nas.site.example.",
		"nas.site.example. HTTPS":        "nas.site.example. 60 IN HTTPS 1 .",
		"nas.site.example. SVCB":         "nas.site.example. 60 IN SVCB 1 .",
		"nas.site.example. NS":           "nas.site.example. 60 IN NS dc1.site.example.",
		"nas.site.example. SOA":          "nas.site.example. 60 IN SOA dc1.site.example. admin.site.example. 1 2 3 4 5",
		"nas.site.example. NAPTR":        `nas.site.example. 60 IN NAPTR 1 1 "s" "SIP+D2U" "" _sip._udp.site.example.`,
		"nas.site.example. PTR":          "nas.site.example. 60 IN PTR nas.site.example.",
		"lan.site.example. A":            "lan.site.example. 60 IN A 198.51.100.4", // public, and of the device's own network
		"4.100.51.198.in-addr.arpa. PTR": "4.100.51.198.in-addr.arpa. 60 IN PTR lan.site.example.",
		"9.113.0.203.in-addr.arpa. PTR":  "9.113.0.203.in-addr.arpa. 60 IN PTR web.example.",
		"168.192.in-addr.arpa. SOA":      "168.192.in-addr.arpa. 60 IN SOA dc1.site.example. admin.site.example. 1 2 3 4 5",
		"7.1.168.192.in-addr.arpa. TXT":  `7.1.168.192.in-addr.arpa. 60 IN TXT "rack 3"`,
	}}
}

func siteTwin(s *site) *twin {
	return &twin{domain: domain, pods: netip.MustParsePrefix("10.42.0.0/16"), index: peopled(), next: s,
		networks: func() []netip.Prefix {
			return []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("2606:4700:5::/64")}
		}}
}

// Of a name of the site's a tenant is told what it is told of one that nobody has, whatever the
// type of record.
func TestTheSitesNamesDoNotExistForTenants(t *testing.T) {
	h := siteTwin(siteDNS())
	for name := range h.next.(*site).zone {
		name, _, _ := strings.Cut(name, " ")
		if !strings.Contains(name, "site.example.") && name != "old.example." && !strings.HasSuffix(name, "168.192.in-addr.arpa.") && name != "4.100.51.198.in-addr.arpa." {
			continue
		}
		nobodys := "nobody.nowhere.example."
		if strings.HasSuffix(name, "arpa.") {
			nobodys = "250.9.168.192.in-addr.arpa."
		}
		for qtype, text := range miekg.TypeToString {
			got, want := ask(t, h, alices, name, qtype), ask(t, h, alices, nobodys, qtype)
			got.Id, want.Id = 0, 0
			if a, b := strings.ReplaceAll(got.String(), name, "NAME"), strings.ReplaceAll(want.String(), nobodys, "NAME"); a != b {
				t.Errorf("%s %s is told apart from a name that nobody has:\n%s\n%s", name, text, a, b)
			}
			if got.Rcode != miekg.RcodeNameError {
				t.Errorf("%s %s: %s", name, text, miekg.RcodeToString[got.Rcode])
			}
		}
		if name == "nas.site.example." && len(ask(t, h, own, name, miekg.TypeTXT).Answer) != 1 {
			t.Errorf("the owner's own pods are not told of %s", name)
		}
	}
}

// So it is for a pod of which nobody says yet whose it is, and for no other.
func TestTheSitesNamesBeforeThePodIsKnown(t *testing.T) {
	h := siteTwin(siteDNS())
	for from, want := range map[string]int{"10.42.0.70": 0, own: 1, "192.168.1.9": 1} {
		if got := ask(t, h, from, "nas.site.example.", miekg.TypeA); len(got.Answer) != want {
			t.Errorf("%s: %s", from, got)
		}
		if got := ask(t, h, from, "web.example.", miekg.TypeA); len(got.Answer) == 0 {
			t.Errorf("%s: %s", from, got)
		}
	}
}

// A public name works, record by record: what leads to the site is left out.
func TestPublicNamesOfTenants(t *testing.T) {
	h := siteTwin(siteDNS())
	for _, c := range []struct {
		name  string
		qtype uint16
		want  []string // the ends of the records
	}{
		{"web.example.", miekg.TypeA, []string{"203.0.113.9"}},
		{"web.example.", miekg.TypeANY, []string{"203.0.113.9"}},
		{"web.example.", miekg.TypeAAAA, []string{"2606:4700::1111"}},
		{"www.example.", miekg.TypeA, []string{"web.example.", "203.0.113.9"}},
		{"www.example.", miekg.TypeCNAME, []string{"web.example.", "203.0.113.9"}},
		{"web.example.", miekg.TypeTXT, []string{`"v=spf1 -all"`}},
		{"web.example.", miekg.TypeCAA, []string{`"ca.example"`}},
		{"web.example.", miekg.TypeMX, []string{"10 web.example."}},
		{"web.example.", miekg.TypeNS, []string{"web.example."}},
		{"_s._tcp.example.", miekg.TypeSRV, []string{"0 0 80 web.example."}},
		{"web.example.", miekg.TypeHTTPS, []string{`1 . alpn="h2" ipv4hint="203.0.113.9"`}},
		{"web.example.", miekg.TypeSVCB, []string{"2 web.example."}},
		{"web.example.", miekg.TypeSOA, nil},
		{"web.example.", miekg.TypeNAPTR, nil},
		{"web.example.", miekg.TypeLOC, nil},
		{"9.113.0.203.in-addr.arpa.", miekg.TypePTR, []string{"web.example."}},
	} {
		got := ask(t, h, alices, c.name, c.qtype)
		var ends []string
		for i, rr := range got.Answer {
			if i < len(c.want) && strings.HasSuffix(rr.String(), c.want[i]) {
				ends = append(ends, c.want[i])
			} else {
				ends = append(ends, rr.String())
			}
		}
		if got.Rcode != miekg.RcodeSuccess || strings.Join(ends, "|") != strings.Join(c.want, "|") || len(got.Ns)+len(got.Extra) != 0 {
			t.Errorf("%s %s:\n%s", c.name, miekg.TypeToString[c.qtype], got)
		}
	}
}

// What is asked of the site's server has nothing of the tenant's message but name and type: no
// question for what the server has in its cache, no options.
func TestWhatIsAskedForATenant(t *testing.T) {
	s := siteDNS()
	r := new(miekg.Msg)
	r.SetQuestion("web.example.", miekg.TypeA)
	r.RecursionDesired, r.CheckingDisabled, r.AuthenticatedData = false, true, true
	r.SetEdns0(4096, true)
	r.IsEdns0().Option = []miekg.EDNS0{&miekg.EDNS0_NSID{Code: miekg.EDNS0NSID}, &miekg.EDNS0_SUBNET{Code: miekg.EDNS0SUBNET, Family: 1, Address: []byte{1, 2, 3, 4}}}
	if _, err := siteTwin(s).ServeDNS(t.Context(), &recorder{from: alices}, r); err != nil || len(s.asked) == 0 {
		t.Fatal(err, s.asked)
	}
	for _, q := range s.asked {
		if o := q.IsEdns0(); !q.RecursionDesired || q.CheckingDisabled || q.AuthenticatedData || o == nil || o.Do() || len(o.Option) != 0 {
			t.Errorf("asked: %s", q)
		}
	}
}

// One question of a tenant's is a bounded number of questions to the site's server.
func TestOneQuestionIsFew(t *testing.T) {
	s := siteDNS()
	var many []string
	for i := range 100 {
		many = append(many, "many.example. 60 IN MX 10 "+strings.Repeat("x", i%60+1)+".nowhere.example.")
	}
	s.zone["many.example. MX"] = strings.Join(many, "\n")
	ask(t, siteTwin(s), alices, "many.example.", miekg.TypeMX)
	if n := len(s.asked); n > 1+2*maxTargets {
		t.Errorf("%d questions", n)
	}
}

// Only questions are answered, or passed on: a NOTIFY or UPDATE would go out as the device's.
func TestOnlyQuestionsAreTaken(t *testing.T) {
	s := siteDNS()
	server := &Server{chain: s}
	for _, opcode := range []int{miekg.OpcodeNotify, miekg.OpcodeUpdate, miekg.OpcodeIQuery, miekg.OpcodeStatus} {
		for _, from := range []string{alices, own} {
			r := new(miekg.Msg)
			r.SetQuestion("site.example.", miekg.TypeSOA)
			r.Opcode = opcode
			w := &recorder{from: from}
			server.handle(w, r)
			if w.got == nil || w.got.Rcode != miekg.RcodeNotImplemented || len(s.asked) != 0 {
				t.Errorf("%s from %s: %v, passed on: %v", miekg.OpcodeToString[opcode], from, w.got, s.asked)
			}
		}
	}
}

var _ plugin.Handler = (*site)(nil)
