package main

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"rivulet/test/harness/labtest"
	"rivulet/test/harness/tree"
)

// The story of make demo-pilot with shorter loads and, as one request is a large share of those, a higher target. It
// fails by itself where a pod is not where it has room, a request fails that should not, or an order that was confirmed
// is not in the database.
func TestPilotStory(t *testing.T) {
	for _, f := range []string{"shop", "shop.tar", "shop-stores.tar"} {
		if _, err := os.Stat(tree.Path("bin", f)); err != nil {
			t.Skipf("needs bin/%s: make shop", f)
		}
	}
	playInOwnLab(t, "pilot", 12*time.Minute, func(ctx context.Context, dir string) error {
		return makePilot(ctx, dir, labtest.Binary(), 36*time.Second, 10*pilotTarget, t.Logf)
	})
}

func TestTargetsThatAreMissed(t *testing.T) {
	begin := func(context.Context) error { return nil }
	for name, c := range map[string]struct {
		target           float64
		requests, failed int
		want             string
	}{
		"none failed":       {0, 1800, 0, ""},
		"one failed":        {0, 1800, 1, "1 of 1800 requests failed, 0.06 %, and the target is 0 %"},
		"one within bounds": {pilotTarget, 1800, 1, ""},
		"two of too few":    {pilotTarget, 1800, 2, "0.11 %"},
		"no requests":       {pilotTarget, 0, 0, "no request"},
	} {
		p := &pilot{results: []result{{fault{name: name, begin: begin, target: c.target}, loadReport{Requests: c.requests, Failed: c.failed}}}}
		err := p.missed(t.Context())
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func TestAFaultBeginsInTheMiddleAndIsUndone(t *testing.T) {
	var order []string
	note := func(what string, err error) func(context.Context) error {
		return func(context.Context) error { order = append(order, what); return err }
	}
	broken := errors.New("no cable")
	for _, c := range []struct {
		f    fault
		want string
		err  error
	}{
		{fault{}, "", nil},
		{fault{begin: note("cut", nil), undo: note("heal", nil)}, "cut heal", nil},
		{fault{begin: note("cut", broken), undo: note("heal", nil)}, "cut", broken},
	} {
		order = nil
		if err := c.f.happen(t.Context()); !errors.Is(err, c.err) || strings.Join(order, " ") != c.want {
			t.Errorf("%v, %v; want %q, %v", order, err, c.want, c.err)
		}
	}
}
