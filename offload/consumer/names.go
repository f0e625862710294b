package consumer

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/offload/consumer/node"
	"rivulet/offload/offer"
)

// nameFor chooses the target's name, and finds its virtual nodes of earlier runs, by platform.
func (c *Consumer) nameFor(ctx context.Context, s *stack) (string, map[offer.Platform]string, error) {
	nodes, err := c.home.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", nil, fmt.Errorf("offload: names of nodes: %w", err)
	}
	name := func() string {
		c.mu.Lock()
		defer c.mu.Unlock()
		if s.name == "" {
			s.name = node.Name(s.spec.Name, s.spec.ID, s.spec.Short, nodes.Items, func(name string) bool { return c.reserved(s, name) })
		}
		return s.name
	}()
	existing := map[offer.Platform]string{}
	for _, n := range nodes.Items {
		if node.Of(&n) != s.spec.ID {
			continue
		}
		p := offer.Platform{OS: n.Labels[corev1.LabelOSStable], Architecture: n.Labels[corev1.LabelArchStable]}
		if other, twice := existing[p]; twice { // cannot happen, and one of the two would get no updates
			if err := node.Remove(ctx, c.home, other); err != nil {
				return "", nil, err
			}
		}
		existing[p] = n.Name
	}
	return name, existing, nil
}

// platformName chooses the name of another virtual node of the target. The first one has the target's name.
func (c *Consumer) platformName(ctx context.Context, s *stack, p offer.Platform) (string, error) {
	nodes, err := c.home.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", fmt.Errorf("offload: names of nodes: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	taken := map[string]bool{}
	for _, n := range nodes.Items {
		taken[n.Name] = true
	}
	for _, one := range s.branches {
		taken[one.name] = true
	}
	if !taken[s.name] {
		return s.name, nil
	}
	return node.PlatformName(s.name, p, s.spec.Short, func(name string) bool { return taken[name] || c.reserved(s, name) }), nil
}

// reserved reports whether another target has the name or may give it to a node, or home's own node has it. mu is held.
func (c *Consumer) reserved(s *stack, name string) bool {
	if name == c.cfg.HomeNode {
		return true
	}
	for _, other := range c.stacks {
		if other == s {
			continue
		}
		if other.name == name {
			return true
		}
		for _, one := range other.branches {
			if one.name == name {
				return true
			}
		}
	}
	return false
}
