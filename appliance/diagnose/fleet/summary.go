package fleet

import (
	"cmp"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"rivulet/appliance/api"
	"rivulet/appliance/health"
	"rivulet/fabric/peer"
)

// Summary is what a device shows of itself.
type Summary struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	// Ready: pods can be scheduled there. Waiting is the stage that it waits for.
	Ready   bool   `json:"ready"`
	Waiting string `json:"waiting,omitempty"`
	// Up is how long its supervisor has run, in seconds.
	Up   int64    `json:"up"`
	Pods api.Pods `json:"pods"`
	// Peers are those that are connected, of those that it has.
	Peers    Count `json:"peers"`
	Capacity Room  `json:"capacity"`
	// Problems are the worst, at most mostProblems; Errors and Warnings count all.
	Problems []Problem `json:"problems,omitempty"`
	Errors   int       `json:"errors"`
	Warnings int       `json:"warnings"`
}

// Count is a part of a number.
type Count struct {
	Connected int `json:"connected"`
	All       int `json:"all"`
}

// Room is the capacity of a device, and what its pods do not request of it.
type Room struct {
	CPU        int64 `json:"cpu"` // thousandths of a core
	CPUFree    int64 `json:"cpuFree"`
	Memory     int64 `json:"memory"` // bytes
	MemoryFree int64 `json:"memoryFree"`
}

// Problem has the constant parts of a problem.
type Problem struct {
	Code     string          `json:"code"`
	Severity health.Severity `json:"severity"`
	Title    string          `json:"title"`
}

// State of a member.
type State string

const (
	Shown  State = "shown"
	Silent State = "silent" // it does not answer; Reason
	Hidden State = "hidden" // its owner does not allow it, or its version cannot
)

// Member is one device.
type Member struct {
	ID     peer.ID       `json:"id"`
	Name   string        `json:"name"` // as this device knows it
	Here   bool          `json:"here,omitempty"`
	State  State         `json:"state"`
	Reason string        `json:"reason,omitempty"`
	RTT    time.Duration `json:"rtt,omitempty"` // nanoseconds
	Seen   time.Time     `json:"seen,omitzero"` // its last answer through the tunnel
	*Summary
}

// Answer are the members, the worst first.
type Answer struct {
	// Allowed: this device shows itself to the others.
	Allowed bool     `json:"allowed"`
	Members []Member `json:"members"`
	More    int      `json:"more,omitempty"` // devices that were not queried
}

const (
	mostProblems = 5
	mostName     = 60
	mostTitle    = 120
	mostCount    = 1 << 20
	mostSeconds  = 100 * 365 * 24 * 3600
	mostBytes    = 1 << 50
)

// Summarize makes the summary of a status.
func Summarize(st api.Status, now time.Time) Summary {
	s := Summary{
		Name: st.Name, Version: st.Version, Ready: st.Ready, Up: max(0, int64(now.Sub(st.Started)/time.Second)), Pods: st.Pods,
	}
	if !st.Ready {
		s.Waiting, _, _ = strings.Cut(st.Waiting, ":") // the name of a stage; what follows may be an error
	}
	for _, v := range st.Peers {
		if !v.State.Apart() {
			s.Peers.All++
		}
		if v.State == peer.Connected {
			s.Peers.Connected++
		}
	}
	home, _ := st.Home()
	free := func(name corev1.ResourceName) (all, left int64) {
		there, used := home.Allocatable[name], home.Requested[name]
		if name == corev1.ResourceCPU {
			return there.MilliValue(), max(0, there.MilliValue()-used.MilliValue())
		}
		return there.Value(), max(0, there.Value()-used.Value())
	}
	s.Capacity.CPU, s.Capacity.CPUFree = free(corev1.ResourceCPU)
	s.Capacity.Memory, s.Capacity.MemoryFree = free(corev1.ResourceMemory)
	for _, p := range st.Health { // the worst first
		switch p.Severity {
		case health.Error:
			s.Errors++
		case health.Warning:
			s.Warnings++
		default:
			continue
		}
		one := Problem{p.Code, p.Severity, p.Title}
		if len(s.Problems) < mostProblems && !slices.Contains(s.Problems, one) {
			s.Problems = append(s.Problems, one)
		}
	}
	return s
}

var codeForm = regexp.MustCompile(`^[a-z][a-z0-9-]{0,39}$`)

// clean bounds what another device has sent. The title of a known code is this device's own.
func (s *Summary) clean() {
	peer.Clean(s, peer.Text)
	s.Name, s.Version, s.Waiting = cut(s.Name, mostName), cut(s.Version, mostName), cut(s.Waiting, mostName)
	for _, n := range []*int{&s.Pods.Home, &s.Pods.Away, &s.Pods.Tenants, &s.Peers.Connected, &s.Peers.All, &s.Errors, &s.Warnings} {
		*n = min(max(*n, 0), mostCount)
	}
	for _, n := range []*int64{&s.Capacity.CPU, &s.Capacity.CPUFree, &s.Capacity.Memory, &s.Capacity.MemoryFree} {
		*n = min(max(*n, 0), mostBytes)
	}
	s.Up = min(max(s.Up, 0), mostSeconds)
	s.Problems = slices.DeleteFunc(s.Problems, func(p Problem) bool {
		return !codeForm.MatchString(p.Code) || p.Severity != health.Error && p.Severity != health.Warning
	})
	s.Problems = s.Problems[:min(len(s.Problems), mostProblems)]
	known := map[string]string{}
	for _, k := range health.Kinds() {
		known[k.Code] = k.Title
	}
	for i := range s.Problems {
		p := &s.Problems[i]
		p.Title = cmp.Or(known[p.Code], cut(p.Title, mostTitle))
	}
}

// cut bounds a cleaned text, in letters.
func cut(s string, most int) string {
	if r := []rune(s); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return s
}

// rank is the order of members: those that somebody has to go to come first, those that show nothing last.
func (m Member) rank() int {
	switch {
	case m.State == Silent:
		return 0
	case m.State == Hidden:
		return 5
	case m.Errors > 0:
		return 1
	case !m.Ready:
		return 2
	case m.Warnings > 0:
		return 3
	}
	return 4
}

// Worst orders members: by rank, then by the number of problems, then by name.
func Worst(a, b Member) int {
	problems := func(m Member) (errors, warnings int) {
		if m.Summary != nil {
			errors, warnings = m.Errors, m.Warnings
		}
		return errors, warnings
	}
	ae, aw := problems(a)
	be, bw := problems(b)
	return cmp.Or(cmp.Compare(a.rank(), b.rank()), cmp.Compare(be, ae), cmp.Compare(bw, aw), strings.Compare(a.Name, b.Name), cmp.Compare(a.ID, b.ID))
}

// Verdict is the state of a member in words.
func (m Member) Verdict() string {
	switch {
	case m.State != Shown:
		return m.Reason
	case !m.Ready && m.Waiting != "":
		return "not ready: " + m.Waiting
	case !m.Ready:
		return "not ready"
	}
	return "Ready"
}
