// Package e2e tests Rivulet as its users meet it: the real binary on three
// devices of a lab, one LAN, no configuration, no Internet.
package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"rivulet/test/harness/await"
	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
	"rivulet/test/harness/mainjob"
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

// apply makes objects on the device, as a user does.
func apply(t *testing.T, ctx context.Context, d *lab.Device, items ...string) {
	t.Helper()
	await.NoError(t, ctx, 0, "the objects are made on "+d.Name, func() error {
		_, err := d.Run(ctx, "sh", "-c", `printf %s "$1" | rivulet kubectl apply -f -`, "apply", `{"apiVersion":"v1","kind":"List","items":[`+strings.Join(items, ",")+`]}`)
		return err
	})
}

// noTwins waits until b lends nothing: as long as a consumer has a twin the part of the others is smaller.
func noTwins(t *testing.T, ctx context.Context) {
	t.Helper()
	await.NoError(t, ctx, 0, "no twin is left on b", func() error {
		out, err := devices["b"].Kubectl(ctx, "get", "namespaces", "-l", "rivulet.dev/origin", "-o", "name")
		if err == nil && out != "" {
			err = fmt.Errorf("%s", out)
		}
		return err
	})
}
