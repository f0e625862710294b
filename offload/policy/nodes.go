package policy

import (
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"rivulet/fabric/cure"
)

// AllNodes is the rule of Nodes that selects every peer.
const AllNodes = "all"

// Nodes selects the peers that get a virtual node. Its zero value selects all.
type Nodes struct {
	// Nearest is how many; 0 is no bound.
	Nearest  int
	selector labels.Selector
}

// ParseNodes reads "all", "10 nearest" or a label selector, such as "room=lab,tier!=old".
func ParseNodes(s string) (Nodes, error) {
	if s == "" || s == AllNodes {
		return Nodes{}, nil
	}
	if number, ok := strings.CutSuffix(s, " nearest"); ok {
		n, err := strconv.Atoi(number)
		if err != nil || n < 1 {
			return Nodes{}, cure.Errorf("%.40q does not say how many; write a number of at least 1, such as 10 nearest", s)
		}
		return Nodes{Nearest: n}, nil
	}
	selector, err := labels.Parse(s)
	if err != nil || !strings.ContainsAny(s, "=!( ") {
		return Nodes{}, cure.Errorf("%.80q is no rule; write all, 10 nearest, or labels of peers (rivulet peer NAME --label room=lab), such as room=lab", s)
	}
	return Nodes{selector: selector}, nil
}

// Matches reports whether the rule's selector allows a peer with these labels.
func (n Nodes) Matches(of map[string]string) bool {
	return n.selector == nil || n.selector.Matches(labels.Set(of))
}

// All reports whether every peer is selected.
func (n Nodes) All() bool { return n.Nearest == 0 && n.selector == nil }
