package peer

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"rivulet/fabric/peer"
	"rivulet/offload/policy"
)

// absence is how long a peer may be out of reach before another takes its place among the nearest.
const absence = 5 * time.Minute

// chooser keeps what a choice depends on beside the links.
type chooser struct {
	chosen map[peer.ID]bool
	lost   map[peer.ID]time.Time // since when they are out of reach
	closed map[peer.ID]time.Time // since when they are not chosen and have a node
}

// choose returns the peers that the rule selects. Of peers that are equally near, those that were chosen before stay.
func (c *chooser) choose(rule policy.Nodes, links []peer.Link, now time.Time) map[peer.ID]bool {
	lost := map[peer.ID]time.Time{}
	absent := func(l peer.Link) int {
		since, ok := lost[l.ID]
		if ok && now.Sub(since) >= absence {
			return 1
		}
		return 0
	}
	var candidates []peer.Link
	for _, l := range links {
		if l.State != peer.Connected {
			lost[l.ID] = now
			if since, ok := c.lost[l.ID]; ok {
				lost[l.ID] = since
			}
		}
		if !l.NoBorrow && rule.Matches(labels(l)) {
			candidates = append(candidates, l)
		}
	}
	kept := func(l peer.Link) int {
		if c.chosen[l.ID] {
			return 0
		}
		return 1
	}
	slices.SortFunc(candidates, func(a, b peer.Link) int {
		return cmp.Or(absent(a)-absent(b), b.Nearness-a.Nearness, kept(a)-kept(b), strings.Compare(string(a.ID), string(b.ID)))
	})
	c.lost, c.chosen = lost, map[peer.ID]bool{}
	for i, l := range candidates {
		if rule.Nearest == 0 || i < rule.Nearest {
			c.chosen[l.ID] = true
		}
	}
	return c.chosen
}

// settled is how long the node of a peer takes no new pods before it may be removed: the scheduler knows that by then.
const settled = 10 * time.Second

// keep reports whether a peer that is not chosen stays a target: it has a node, with home's pods or data.
func (c *chooser) keep(id peer.ID, node, used bool, now time.Time) bool {
	since, ok := c.closed[id]
	if !ok {
		since = now
		c.closed[id] = now
	}
	if node && (used || now.Sub(since) < settled) {
		return true
	}
	delete(c.closed, id)
	return false
}
