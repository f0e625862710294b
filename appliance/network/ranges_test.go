package network

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// The first start waits for the LAN's address where one may come, and not longer.
func TestSettle(t *testing.T) {
	after := func(d time.Duration, before, then []lan) func(time.Duration) []lan {
		return func(now time.Duration) []lan {
			if now < d {
				return before
			}
			return then
		}
	}
	for name, c := range map[string]struct {
		look func(time.Duration) []lan
		want time.Duration
	}{
		"an address":   {after(0, nil, []lan{{cable: true, address: true}}), 0},
		"no interface": {after(0, nil, nil), 0},
		"no cable":     {after(0, nil, []lan{{}}), awaitCable},
		"DHCP":         {after(7*time.Second, []lan{{cable: true}}, []lan{{cable: true, address: true}}), 7 * time.Second},
		"a cable comes, DHCP": {func(now time.Duration) []lan {
			return []lan{{cable: now > 2*time.Second, address: now > 9*time.Second}}
		}, 9 * time.Second},
		"no DHCP":                {after(0, nil, []lan{{cable: true}}), awaitAddress},
		"one of two":             {after(3*time.Second, []lan{{cable: true, address: true}, {cable: true}}, []lan{{cable: true, address: true}, {cable: true, address: true}}), 3 * time.Second},
		"Wi-Fi alone":            {after(9*time.Second, []lan{{}, {wireless: true}}, []lan{{}, {wireless: true, address: true}}), 9 * time.Second},
		"Wi-Fi beside a cable":   {after(0, nil, []lan{{cable: true, address: true}, {wireless: true}}), 0},
		"the other has no cable": {after(0, nil, []lan{{cable: true, address: true}, {}}), 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begun := time.Now()
				settle(t.Context(), begun, func() []lan { return c.look(time.Since(begun)) })
				if took := time.Since(begun); took < c.want || took > c.want+2*checkAgain {
					t.Errorf("waited %v, want %v", took, c.want)
				}
			})
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	settle(ctx, time.Now(), func() []lan { return []lan{{cable: true}} }) // it is told to stop
}
