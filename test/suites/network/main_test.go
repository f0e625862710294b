// Package network tests what a device goes through on a shelf in a lab while nobody
// looks after it: cables, addresses, links of other kinds, and clocks. The real
// binary runs on two devices that are peers; the tests share them and leave them
// running and peered.
package network

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"rivulet/appliance/api"
	"rivulet/test/harness/await"
	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
	"rivulet/test/harness/mainjob"
)

var (
	suite = labtest.Suite{Prepare: func(ctx context.Context, s *labtest.Suite) error {
		a, b = s.Devices["a"], s.Devices["b"]
		if err := labtest.PeeredWithImage(ctx, s); err != nil {
			return err
		}
		for _, d := range s.All() { // the pods of each are asked by those of the other
			if _, err := d.Run(ctx, "rivulet", "open", "default", "--to", "all"); err != nil {
				return err
			}
		}
		return nil
	}}
	a, b *lab.Device
)

func TestMain(m *testing.M) { suite.Main(m, "shelf", lab.Options{Devices: 2}) }

// within polls f until it returns nil, and fails after the limit.
func within(t *testing.T, ctx context.Context, limit time.Duration, what string, f func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	await.NoError(t, ctx, 0, what, func() error { return f(ctx) })
}

// ask returns all that the device says of itself, ready or not.
func ask(ctx context.Context, d *lab.Device) (st api.Status, err error) {
	out, err := d.Run(ctx, "rivulet", "status", "-o", "json")
	if bad := json.Unmarshal([]byte(out), &st); bad != nil {
		return st, fmt.Errorf("status of %s: %w", d.Name, errors.Join(bad, err))
	}
	return st, nil
}

// status is ask where rivulet runs.
func status(t *testing.T, ctx context.Context, d *lab.Device) api.Status {
	t.Helper()
	st, err := ask(ctx, d)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// pod makes a pod of a device's own and waits until it is ready.
func pod(t *testing.T, ctx context.Context, d *lab.Device, name string) {
	t.Helper()
	labtest.Kubectl(t, ctx, d, "run", name, "--image="+mainjob.Image, "--overrides",
		`{"spec":{"terminationGracePeriodSeconds":1,"nodeName":"`+d.Name+`"}}`)
	labtest.Kubectl(t, ctx, d, "wait", "--for=condition=Ready", "pod/"+name, "--timeout=60s")
}
