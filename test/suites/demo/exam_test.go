package main

import (
	"context"
	"os"
	"testing"
	"time"

	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
)

// The story of make demo-exam on real devices, which fails by itself where a session is moved, lost or cut off, an
// answer is not kept, a session too many is admitted, or the end leaves something.
func TestExamStory(t *testing.T) {
	ctx := suite.Bounded(t, 8*time.Minute)
	for _, d := range suite.All() { // the story of the campus is over, and these are four devices more
		if err := d.Kill(ctx, "power"); err != nil {
			t.Fatal(err)
		}
	}
	dir, err := os.MkdirTemp("/var/lib", "rivulet-lab-exam-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		clean, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := lab.Down(clean, dir); err != nil {
			t.Error(err)
		}
	})
	if err := makeExam(ctx, dir, labtest.Binary(), t.Logf); err != nil {
		t.Fatal(err)
	}
}
