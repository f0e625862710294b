// Package summary is what a person sees of a device at one glance: six steps from the
// clock to the peers, addresses, problems with their cures. The status page and the
// console show it, so that both say the same. It is made of a status alone, reads and
// writes nothing, and holds nothing that somebody on the LAN must not know: no key, no
// invite, no address beyond the device's own.
package summary

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"rivulet/appliance/api"
	"rivulet/appliance/diagnose/redact"
	"rivulet/appliance/health"
	"rivulet/appliance/lifecycle"
	"rivulet/fabric/peer"
)

// State is how far a step is.
type State string

// The states of a step.
const (
	Done    State = "done"
	Working State = "working"
	Failed  State = "failed" // and is tried again by itself
	Waiting State = "waiting"
)

// Step is one of the stages between power and peers.
type Step struct {
	Name  string
	State State
	Text  string
}

// Peer is another cluster.
type Peer struct{ Name, State string }

// Problem is what is wrong, and what to do.
type Problem struct {
	Severity          health.Severity
	Title, Text, Cure string
}

// View is all of it.
type View struct {
	Name, ID, Version string
	Ready             bool
	// Summary says in a sentence how the device is.
	Summary string
	// URL is where the status page is, empty if it is off.
	URL       string
	Addresses []string
	Steps     []Step
	Problems  []Problem
	Peers     []Peer
	// More problems and peers there are than are shown.
	MoreProblems, MorePeers int
	Pods                    string
	Now                     time.Time
	Up                      time.Duration
}

// Whatever there is, a screen stays small.
const (
	mostProblems = 20
	mostPeers    = 40
	mostText     = 300
)

// Of makes the view of a status.
func Of(st api.Status, now time.Time) View {
	v := View{
		Name: cut(st.Name), ID: st.ID.Short(), Version: st.Version, Ready: st.Ready, Now: now,
		Up: now.Sub(st.Started).Round(time.Second), Addresses: addresses(st.Addresses), URL: st.StatusPage,
		Pods: fmt.Sprintf("%d here, %d away, %d of peers", st.Pods.Home, st.Pods.Away, st.Pods.Guests),
	}
	stages := map[string]lifecycle.Status{}
	for _, s := range st.Stages {
		stages[s.Name] = s
	}
	v.Steps = []Step{
		clock(st, stages["clock"]), network(v.Addresses), datastore(st, stages["engine"]),
		step("API", stages["engine"], "answers"), step("node", stages["node"], "Ready"), peers(st, stages["fabric"]),
	}
	for _, p := range st.Peers {
		if p.State == peer.Denied {
			continue // somebody has said that it is none
		}
		if len(v.Peers) == mostPeers {
			v.MorePeers++
			continue
		}
		v.Peers = append(v.Peers, Peer{cut(orID(p)), string(p.State)})
	}
	v.problems(st.Health)
	v.Summary = v.summary(st.Waiting)
	return v
}

func orID(p peer.View) string {
	if p.Name != "" {
		return p.Name
	}
	return p.ID.Short()
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
		v.Problems = append(v.Problems, Problem{p.Severity, cut(title), cut(clean.Text(p.Text)), cut(clean.Text(p.Cure))})
	}
}

func (v *View) summary(waiting string) string {
	worst := 0
	for _, p := range v.Problems {
		if p.Severity != health.Info {
			worst++
		}
	}
	switch {
	case !v.Ready && waiting != "":
		return "setting up; waits for " + cut(waiting)
	case !v.Ready:
		return "setting up"
	case worst == 1:
		return "ready, with one problem"
	case worst > 1:
		return fmt.Sprintf("ready, with %d problems", worst)
	}
	return "ready"
}

// step is a component as it stands; done is what to say when it is Ready.
func step(name string, s lifecycle.Status, done string) Step {
	switch s.State {
	case lifecycle.Ready:
		return Step{name, Done, done}
	case lifecycle.Starting:
		return Step{name, Working, orElse(cut(waitsFor(s.Detail)), "starts")}
	case lifecycle.Failed:
		return Step{name, Failed, orElse(cut(redact.New(nil).Text(s.Detail)), "failed; it is tried again by itself")}
	}
	return Step{name, Waiting, orElse(cut(waitsFor(s.Detail)), "comes later")}
}

// waitsFor makes "for the API server" a sentence.
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
		return Step{"clock", Failed, "cannot be right; it is corrected by a time service or a peer"}
	case out.State == Done && st.Clock.Synchronized:
		out.Text = "kept by a time service"
	}
	return out
}

func network(addrs []string) Step {
	if len(addrs) == 0 {
		return Step{"network", Working, "no network yet; plug in a cable, or set up Wi-Fi"}
	}
	return Step{"network", Done, strings.Join(addrs[:min(len(addrs), 3)], ", ")}
}

func datastore(st api.Status, engine lifecycle.Status) Step {
	if st.DatastoreReady {
		return Step{"datastore", Done, "in order"}
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

// addresses puts what a person can type first: IPv4, then IPv6, link-local last.
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

func orElse(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

// cut bounds a text and makes it one line of what can be printed.
func cut(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 {
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
