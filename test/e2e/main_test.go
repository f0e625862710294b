// Package e2e tests Rivulet as its users meet it: the real binary on three
// devices of a lab, one LAN, no configuration, no Internet.
package e2e

import (
	"context"
	"testing"
	"time"

	"rivulet/test/lab"
	"rivulet/test/labtest"
	"rivulet/test/mainjob"
)

// devices are a, b and c, peered; the tests share them and leave them peered.
var devices map[string]*lab.Device

var suite = labtest.Suite{Prepare: func(ctx context.Context, s *labtest.Suite) error {
	devices = s.Devices
	return labtest.PeeredWithImage(ctx, s)
}}

func TestMain(m *testing.M) {
	suite.Main(m, "e2e", lab.Options{Devices: 3, Env: map[string][]string{"": {"RIVULET_RESERVE_CPU=" + mainjob.ReserveCPU()}}})
}

// need skips without a lab and bounds the test.
func need(t *testing.T, limit time.Duration) context.Context {
	t.Helper()
	return suite.Bounded(t, limit)
}
