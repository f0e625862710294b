package main

import (
	"context"
	"testing"
	"time"

	"rivulet/test/harness/labtest"
)

// The story of make demo-course with four students on two devices, which fails by itself where an application does not
// run, an attempt to break out is not refused, or the end leaves something.
func TestCourseStory(t *testing.T) {
	playInOwnLab(t, "course", 8*time.Minute, func(ctx context.Context, dir string) error {
		return makeCourse(ctx, dir, labtest.Binary(), 2, 4, t.Logf)
	})
}
