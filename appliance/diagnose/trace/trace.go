// Package trace follows a connection to a Service or a pod hop by hop, with a verdict and a time for each:
//
//	Service   name ─▶ service ─▶ endpoints ─▶ rules ─▶ for each endpoint the hops of a pod
//	pod       translation ─▶ tunnel ─▶ path (of a pod on a peer) ─▶ policy ─▶ container
//
// Facts.Report is pure: what was read and tried goes in, hops come out. Here collects the facts for `rivulet trace` and
// the web console: it reads home's API server, the supervisor's status, the NetworkPolicies and kube-proxy's rules; it
// queries cluster DNS for the Service's name, and opens connections to pods of this cluster and to the cluster IP of the
// Service, and to nothing else. At most maxEndpoints are tried, each for connectLimit; a request takes at most limit,
// and maxRequests run at once. It writes and stores nothing. What cannot be read or tried is a hop with the verdict
// unknown and the reason.
package trace

import (
	"time"
)

// Verdict on a hop.
type Verdict string

const (
	OK      Verdict = "ok"
	Slow    Verdict = "slow"
	Fails   Verdict = "fails"
	Unknown Verdict = "unknown" // it was not possible to find out; Text has the reason
)

// Hop is one step of the way. Names are name, service, endpoints, rules, translation, tunnel, path, policy, container.
type Hop struct {
	Name string `json:"name"`
	// Endpoint is the pod's address and port for hops of one endpoint, Pod its name; both are empty for the Service's.
	Endpoint string        `json:"endpoint,omitempty"`
	Pod      string        `json:"pod,omitempty"`
	Verdict  Verdict       `json:"verdict"`
	Took     time.Duration `json:"took,omitempty"` // nanoseconds; 0: nothing was measured
	Text     string        `json:"text"`
	Cure     string        `json:"cure,omitempty"`

	// follows: the failure is a consequence of one at a later hop.
	follows bool
}

// Report is the answer.
type Report struct {
	Kind      string `json:"kind"` // Service or Pod
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Port      string `json:"port"` // such as 80/TCP; empty if there is none
	// From is the pod from which the way was followed, as namespace/name; empty is this device.
	From    string  `json:"from,omitempty"`
	Verdict Verdict `json:"verdict"` // the worst, where unknown is better than slow
	// Begin is the index of the hop to begin with; -1: no hop fails or is slow.
	Begin int   `json:"begin"`
	Hops  []Hop `json:"hops"`
}

// Bounds of a request.
const (
	maxEndpoints = 8
	maxRequests  = 4
	connectLimit = 3 * time.Second
	limit        = 15 * time.Second
)

// Times above which a hop is slow. A connection to another cluster takes its round trips in addition.
const (
	slowName    = 150 * time.Millisecond
	slowConnect = 250 * time.Millisecond
	slowRTT     = 100 * time.Millisecond
)

// Cause is the hop to begin with; false if no hop fails or is slow.
func (r Report) Cause() (Hop, bool) {
	if r.Begin < 0 || r.Begin >= len(r.Hops) {
		return Hop{}, false
	}
	return r.Hops[r.Begin], true
}

// conclude sets Verdict and Begin: the first hop that fails by itself, else the first that fails, else the first that
// is slow.
func (r *Report) conclude() {
	r.Verdict, r.Begin = OK, -1
	rank := func(h Hop) int {
		switch {
		case h.Verdict == Fails && !h.follows:
			return 3
		case h.Verdict == Fails:
			return 2
		case h.Verdict == Slow:
			return 1
		}
		return 0
	}
	best := 0
	for i, h := range r.Hops {
		if n := rank(h); n > best {
			best, r.Begin, r.Verdict = n, i, h.Verdict
		} else if h.Verdict == Unknown && r.Verdict == OK {
			r.Verdict = Unknown
		}
	}
}
