package paths

import "time"

type Kind string

// The kinds, the preferred one first.
const (
	Direct Kind = "direct" // UDP to its address
	Relay  Kind = "relay"  // through a peer of both
	Stream Kind = "stream" // a TLS connection that carries datagrams
)

// bias is added to the round trip time of a path, for its other costs: a relay uses a third device, and in a stream one
// lost segment delays all behind it.
func (k Kind) bias() time.Duration {
	switch k {
	case Relay:
		return 20 * time.Millisecond
	case Stream:
		return 40 * time.Millisecond
	}
	return 0
}

// option is one path as the choice sees it.
type option struct {
	kind   Kind
	broker bool // a relay that is a broker
	alive  bool
	rtt    time.Duration // smoothed
}

// brokerBias is added to a relay by a broker: it is a site's link that others pay for, and the last way.
const brokerBias = 40 * time.Millisecond

func (o option) bias() time.Duration {
	if o.broker {
		return o.kind.bias() + brokerBias
	}
	return o.kind.bias()
}

func (o option) cost() time.Duration { return o.rtt + o.bias() }

// margin is by how much another path must be better than the one in use: a fifth, and more than noise.
func margin(cost time.Duration) time.Duration { return max(cost/5, 3*time.Millisecond) }

// choose returns the index of the path to use, or -1 if none has ever worked. A working path stays unless another is
// clearly better; until settled (the one in use has been so for a while) only a better kind counts. A dead path stays
// while there is no other: it may recover first.
func choose(options []option, current int, settled bool) int {
	best := -1
	for i, o := range options {
		if o.alive && (best < 0 || o.cost() < options[best].cost()) {
			best = i
		}
	}
	if best < 0 || current < 0 || !options[current].alive {
		if best < 0 {
			return current
		}
		return best
	}
	have, found := options[current], options[best]
	if found.cost()+margin(have.cost()) > have.cost() || !settled && found.bias() >= have.bias() {
		return current
	}
	return best
}
