package main

import (
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
