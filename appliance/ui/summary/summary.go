// Package summary is the overview of a device: six steps from the clock to the peers, addresses, problems with their
// cures. The status page and the console show it, so that both agree. It is derived from a status alone, reads and
// writes nothing, and has no secret for hosts on the LAN: no key, no invite, no address beyond the device's own.
package summary

import (
	"cmp"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode"

	"rivulet/appliance/api"
	"rivulet/appliance/diagnose/redact"
	"rivulet/appliance/health"
	"rivulet/appliance/lifecycle"
	"rivulet/fabric/peer"
)

// State is the state of a step.
type State string

const (
	Done    State = "done"
	Working State = "working"
	Failed  State = "failed" // retried by itself
	Waiting State = "waiting"
)

// Step is one of the stages between power and peers.
type Step struct {
	Name  string
	State State
	Text  string
	// Cure is the cure in the error of a failed one, if it has one; Details is the error.
	Cure, Details string
}

// Peer is another cluster.
type Peer struct{ Name, State string }

// Problem is a problem and its cure.
type Problem struct {
	Severity                health.Severity
	Code, Title, Text, Cure string
	// Details is the error of a program, in place of Text.
	Details string
}

// View is all of it.
type View struct {
	Name, ID, Version string
	Ready             bool
	// Summary is the state of the device in one sentence.
	Summary string
	// URL is the address of the status page, Console that of the web console; empty if it is off.
	URL, Console string
	Addresses    []string
	Steps        []Step
	Problems     []Problem
	Peers        []Peer
	// MoreProblems and MorePeers count those that are not shown.
	MoreProblems, MorePeers int
	Pods                    string
	Now                     time.Time
	Up                      time.Duration
	// LAN are the devices that this one sees on its LANs, itself included, by name; MoreLAN counts the others.
	LAN     []Neighbour
	MoreLAN int

	failures []string // failed components
}

// Bounds, because a screen is small.
const (
	mostProblems = 20
	mostPeers    = 40
	mostText     = 300
)

// Of makes the view of a status.
func Of(st api.Status, now time.Time) View {
	v := View{
		Name: Line(st.Name), ID: st.ID.Short(), Version: st.Version, Ready: st.Ready, Now: now,
		Up: now.Sub(st.Started).Round(time.Second), Addresses: addresses(st.Addresses), URL: st.StatusPage, Console: st.Console,
		Pods: st.Pods.String(),
	}
	stages := map[string]lifecycle.Status{}
	for _, s := range st.Stages {
		stages[s.Name] = s
		if s.State == lifecycle.Failed {
			v.failures = append(v.failures, s.Name)
		}
	}
	v.Steps = []Step{
		clock(st, stages["clock"]), network(v.Addresses), datastore(st, stages["engine"]),
		step("API", stages["engine"], "answers"), step("node", stages["node"], "Ready"), peers(st, stages["fabric"]),
	}
	for _, p := range st.Peers {
		if p.State == peer.Denied {
			continue // operator decision: no peer
		}
		if len(v.Peers) == mostPeers {
			v.MorePeers++
			continue
		}
		v.Peers = append(v.Peers, Peer{Line(cmp.Or(p.Name, p.ID.Short())), string(p.State)})
	}
	v.problems(st.Health)
	v.Summary = v.summary(st.Waiting)
	v.neighbours(st.Peers)
	return v
}

func (v *View) problems(list []health.Problem) {
	clean := redact.New(nil)
	for _, p := range list {
		if len(v.Problems) == mostProblems {
			v.MoreProblems++
			continue
		}
		title := p.Title
		if p.Subject != "" {
			title += " (" + p.Subject + ")"
		}
		shown := Problem{Severity: p.Severity, Code: p.Code, Title: Line(title), Text: Line(clean.Text(p.Text)), Cure: Line(clean.Text(p.Cure))}
		if raw().MatchString(shown.Text) {
			shown.Text, shown.Details = "", shown.Text
		}
		v.Problems = append(v.Problems, shown)
	}
}

// raw matches errors of programs: they contain texts of the kernel or of Go's libraries. All other texts are written
// for the owner.
var raw = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`\b(dial|read|write|listen) (tcp|udp|unix)|: (` + errnos() + `|i/o timeout|EOF|unexpected EOF)\b|\b(x509|tls|json|yaml|http2): |context (deadline exceeded|canceled)|exit status [0-9]|signal: |rpc error`)
})

// errnos are the kernel's error texts, as alternatives of a regular expression.
func errnos() string {
	var all []string
	for e := syscall.Errno(1); e <= syscall.ERFKILL; e++ {
		all = append(all, regexp.QuoteMeta(e.Error()))
	}
	return strings.Join(all, "|")
}

func (v *View) summary(waiting string) string {
	worst := 0
	for _, p := range v.Problems {
		if p.Severity != health.Info {
			worst++
		}
	}
	switch {
	case !v.Ready && v.failed(waiting):
		return "setting up; a step failed and is tried again by itself"
	case !v.Ready && waiting != "":
		return "setting up; waits for " + Line(waiting)
	case !v.Ready:
		return "setting up"
	case worst == 1:
		return "ready, with one problem"
	case worst > 1:
		return fmt.Sprintf("ready, with %d problems", worst)
	}
	return "ready"
}

// failed reports whether the awaited component has failed: then the text ends in its error.
func (v *View) failed(waiting string) bool {
	name, _, _ := strings.Cut(waiting, ": ")
	return slices.Contains(v.failures, name)
}

// step shows the state of a component; done is the text when it is Ready.
func step(name string, s lifecycle.Status, done string) Step {
	switch s.State {
	case lifecycle.Ready:
		return Step{Name: name, State: Done, Text: done}
	case lifecycle.Starting:
		return Step{Name: name, State: Working, Text: cmp.Or(Line(waitsFor(s.Detail)), "starts")}
	case lifecycle.Failed:
		out := Step{Name: name, State: Failed, Text: "failed; it is tried again by itself", Details: Line(redact.New(nil).Text(s.Detail))}
		if _, cure, ok := strings.Cut(again.ReplaceAllString(out.Details, ""), "; "); ok { // errors end in a cure
			out.Cure = cure
		}
		return out
	}
	return Step{Name: name, State: Waiting, Text: cmp.Or(Line(waitsFor(s.Detail)), "comes later")}
}

// again matches what package lifecycle adds to an error.
var again = regexp.MustCompile(` \(again in [^)]*\)$`)

// waitsFor completes "for the API server" to a sentence.
func waitsFor(detail string) string {
	if strings.HasPrefix(detail, "for ") {
		return "waits " + detail
	}
	return detail
}

func clock(st api.Status, s lifecycle.Status) Step {
	out := step("clock", s, "set, no time service keeps it")
	switch {
	case out.State == Done && !st.Clock.Plausible:
		return Step{Name: "clock", State: Failed, Text: "cannot be right; it is corrected by a time service or a peer"}
	case out.State == Done && st.Clock.Synchronized:
		out.Text = "kept by a time service"
	}
	return out
}

func network(addrs []string) Step {
	if len(addrs) == 0 {
		return Step{Name: "network", State: Working, Text: "no network yet; plug in a cable, or set up Wi-Fi"}
	}
	return Step{Name: "network", State: Done, Text: strings.Join(addrs[:min(len(addrs), 3)], ", ")}
}

func datastore(st api.Status, engine lifecycle.Status) Step {
	if st.DatastoreReady {
		return Step{Name: "datastore", State: Done, Text: "in order"}
	}
	return step("datastore", engine, "in order")
}

func peers(st api.Status, fabric lifecycle.Status) Step {
	connected, known := 0, 0
	for _, p := range st.Peers {
		switch p.State {
		case peer.Connected:
			connected++
			known++
		case peer.Connecting, peer.Lost:
			known++
		}
	}
	out := step("peers", fabric, "none found yet; another device on this LAN is found by itself")
	if out.State == Done && known > 0 {
		out.Text = fmt.Sprintf("%d of %d connected", connected, known)
		if connected == 0 {
			out.State = Working
		}
	}
	return out
}

// addresses sorts by ease of typing: IPv4, then IPv6, link-local last.
func addresses(prefixes []netip.Addr) []string {
	var four, six, link []string
	for _, a := range prefixes {
		switch a = a.Unmap(); {
		case a.Is4():
			four = append(four, a.String())
		case a.IsLinkLocalUnicast():
			link = append(link, a.String())
		default:
			six = append(six, a.String())
		}
	}
	out := append(four, six...)
	if len(out) == 0 {
		out = link
	}
	return out[:min(len(out), 8)]
}

// Line bounds a text and reduces it to one printable line, without characters that change the order of others.
func Line(s string) string {
	s = strings.Map(func(r rune) rune {
		if unicode.Is(unicode.Cc, r) || unicode.Is(unicode.Cf, r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	s = strings.Join(strings.Fields(s), " ")
	if r := []rune(s); len(r) > mostText {
		return string(r[:mostText-1]) + "…"
	}
	return s
}
