package labtest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/appliance/api"
	"rivulet/test/harness/await"
	"rivulet/test/harness/lab"
)

// tidyTime is how long what a test removes may take to be gone.
const tidyTime = time.Minute

// leavesNothing fails the test where the lab is not as it was when all of the test's own clean-up is done.
func (s *Suite) leavesNothing(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
	defer cancel()
	before, err := s.fingerprint(ctx)
	if err != nil {
		t.Fatalf("the lab before the test: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), tidyTime)
		defer cancel()
		if err := await.Until(ctx, func() error {
			after, err := s.fingerprint(ctx)
			if err != nil {
				return err
			}
			return left(before, after)
		}); err != nil {
			t.Errorf("the test leaves the lab another: %v", err)
		}
	})
}

// left says what is there now and was not before, and what was and is not.
func left(before, after []string) error {
	var list []string
	for _, line := range after {
		if !slices.Contains(before, line) {
			list = append(list, "+ "+line)
		}
	}
	for _, line := range before {
		if !slices.Contains(after, line) {
			list = append(list, "- "+line)
		}
	}
	if list == nil {
		return nil
	}
	return fmt.Errorf("\n\t%s", strings.Join(list, "\n\t"))
}

// fingerprint lists what may be left of a test, a line each.
func (s *Suite) fingerprint(ctx context.Context) (lines []string, _ error) {
	for _, d := range s.All() {
		outside, err := d.Fingerprint()
		if err != nil {
			return nil, err
		}
		inside, err := inCluster(ctx, d)
		if err != nil {
			return nil, err
		}
		for _, line := range slices.Concat(outside, inside) {
			lines = append(lines, d.Name+": "+line)
		}
	}
	return lines, nil
}

// inCluster lists a device's peers, and of its cluster the namespaces, Nodes and volumes.
func inCluster(ctx context.Context, d *lab.Device) (lines []string, _ error) {
	var st api.Status
	if err := d.Ask(ctx, "/v1/status", &st); err != nil {
		return nil, err
	}
	for _, p := range st.Peers {
		lines = append(lines, fmt.Sprintf("peer %s is %s", p.Name, p.State))
	}
	c, err := Client(d)
	if err != nil {
		return nil, err
	}
	namespaces, err := c.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, o := range namespaces.Items {
		lines = append(lines, "namespace "+o.Name)
	}
	nodes, err := c.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, o := range nodes.Items {
		lines = append(lines, fmt.Sprintf("node %s, unschedulable %v", o.Name, o.Spec.Unschedulable))
	}
	volumes, err := c.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, o := range volumes.Items {
		lines = append(lines, "volume "+o.Name)
	}
	pods, err := c.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, o := range pods.Items {
		if len(o.OwnerReferences) == 0 { // those of controllers have other names when they are made anew
			lines = append(lines, "pod "+o.Namespace+"/"+o.Name)
		}
	}
	return lines, nil
}
