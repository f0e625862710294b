package main

import (
	"context"
	"os"
	"testing"
	"time"

	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
)

// The story of make demo-course with four students on two devices, which fails by itself where an application does not
// run, an attempt to break out is not refused, or the end leaves something.
func TestCourseStory(t *testing.T) {
	ctx := suite.Bounded(t, 8*time.Minute)
	dir, err := os.MkdirTemp("/var/lib", "rivulet-lab-course-")
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
	if err := makeCourse(ctx, dir, labtest.Binary(), 2, 4, t.Logf); err != nil {
		t.Fatal(err)
	}
}
