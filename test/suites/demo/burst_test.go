package main

import (
	"context"
	"testing"
	"time"

	"rivulet/test/harness/labtest"
)

var suite labtest.Suite

func TestMain(m *testing.M) { suite.Main(m, "demo", burstLab(), "/var/lib/campus/log") }

// The story of make demo-burst, which fails by itself where home, the peer and the
// campus are not filled in this order, or somebody is not reached.
func TestBurstStory(t *testing.T) {
	if err := playBurst(suite.Bounded(t, 8*time.Minute), suite.Lab, t.Logf); err != nil {
		t.Fatal(err)
	}
}

// playInOwnLab plays a story in a lab of its own, whose folder has that name.
func playInOwnLab(t *testing.T, name string, limit time.Duration, play func(ctx context.Context, dir string) error) {
	t.Helper()
	ctx := suite.Bounded(t, limit)
	for _, d := range suite.All() { // the story of the campus is over, or begins anew, and these are several devices more
		if err := d.Kill(ctx, "power"); err != nil {
			t.Fatal(err)
		}
	}
	if err := play(ctx, labtest.OwnDir(t, name)); err != nil {
		t.Fatal(err)
	}
}
