// Package peering tests how peerings begin and end on running devices: the real binary,
// one lab of two. What each rule of trust does is tested where the rules are.
package peering

import (
	"context"
	"testing"
	"time"

	"rivulet/test/lab"
	"rivulet/test/labtest"
)

var suite labtest.Suite

func TestMain(m *testing.M) { suite.Main(m, "peering", lab.Options{Devices: 2}) }

func eventually(t *testing.T, ctx context.Context, what string, f func() error) {
	t.Helper()
	labtest.Eventually(t, ctx, time.Minute, what, f)
}
