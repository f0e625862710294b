// Package fleet tests, on three devices with the secret of a group, what they show each other of their state, and that
// an owner's no, an end of the peering and a device that is off are seen.
package fleet

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"rivulet/appliance/diagnose/fleet"
	"rivulet/test/harness/await"
	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
)

var (
	suite = labtest.Suite{Prepare: func(ctx context.Context, s *labtest.Suite) error {
		a, b, c = s.Devices["a"], s.Devices["b"], s.Devices["c"]
		return labtest.Peered(ctx, s)
	}}
	a, b, c *lab.Device
)

func TestMain(m *testing.M) {
	suite.Main(m, "fleet", lab.Options{Devices: 3, Env: map[string][]string{"": {"RIVULET_TRUST_MODE=group", "RIVULET_TRUST_SECRET=sixteen-and-more-letters"}}})
}

// configured writes the configuration of a device and has it read, mistakes or not.
func configured(t *testing.T, ctx context.Context, d *lab.Device, text string) {
	t.Helper()
	labtest.Must(t, ctx, d, "sh", "-c", `umask 077 && mkdir -p /etc/rivulet && printf '%s\n' "$1" > /etc/rivulet/config.yaml && chmod 600 /etc/rivulet/config.yaml && { rivulet config reload || true; }`, "sh", text)
}

// shows waits until the page of a device has these lines, in this order: "name state verdict".
func shows(t *testing.T, ctx context.Context, d *lab.Device, want ...string) (raw string) {
	t.Helper()
	await.NoError(t, ctx, time.Minute, fmt.Sprintf("%s shows %q", d.Name, want), func() error {
		out := labtest.On(t, ctx, d, "rivulet", "status", "--fleet", "-o", "json")
		var answer fleet.Answer
		if err := json.Unmarshal([]byte(out.Out), &answer); err != nil {
			return fmt.Errorf("%w: %s%s", err, out.Out, out.ErrOut)
		}
		var got []string
		for _, m := range answer.Members {
			line := m.Name + " " + string(m.State) + " " + m.Verdict()
			if m.Summary != nil && len(m.Problems) > 0 {
				line += " " + m.Problems[0].Code
			}
			got = append(got, line)
		}
		if len(got) != len(want) {
			return fmt.Errorf("%q", got)
		}
		for i := range want {
			if !strings.HasPrefix(got[i], want[i]) {
				return fmt.Errorf("%q", got)
			}
		}
		raw = out.Out
		return nil
	})
	return raw
}

const hidden = " hidden does not show its status"

func TestFleet(t *testing.T) {
	ctx := suite.Bounded(t, 5*time.Minute)
	// Nobody has allowed anything.
	shows(t, ctx, a, "a shown Ready", "b"+hidden, "c"+hidden)
	// Two allow it, and see the third no more than before.
	configured(t, ctx, b, "fleet: true")
	configured(t, ctx, c, "fleet: true")
	shows(t, ctx, a, "a shown Ready", "b shown Ready", "c shown Ready")
	shows(t, ctx, b, "b shown Ready", "c shown Ready", "a"+hidden)
	page := labtest.Must(t, ctx, a, "rivulet", "status", "--fleet")
	for _, want := range []string{"DEVICE", "a (here)", "b ", "c ", "2 of 2", "this device is not shown to the others"} {
		if !strings.Contains(page, want) {
			t.Errorf("%q is not in\n%s", want, page)
		}
	}
	// The worst comes first, by code and title, without the text of the problem.
	configured(t, ctx, c, "fleet: true\ntop-secret-word: 1")
	raw := shows(t, ctx, a, "c shown Ready config-broken", "a shown Ready", "b shown Ready")
	if strings.Contains(raw, "top-secret-word") || strings.Contains(raw, "/etc/rivulet") {
		t.Errorf("the text of a problem is shown: %s", raw)
	}
	configured(t, ctx, c, "fleet: true")
	shows(t, ctx, a, "a shown Ready", "b shown Ready", "c shown Ready")
	// An owner's no counts at once.
	configured(t, ctx, b, "fleet: false")
	shows(t, ctx, a, "a shown Ready", "c shown Ready", "b"+hidden)
	// An end of the peering, too: c is no member any more.
	labtest.Must(t, ctx, c, "rivulet", "unpeer", "a", "--yes")
	shows(t, ctx, a, "a shown Ready", "b"+hidden)
	labtest.Must(t, ctx, c, "rivulet", "peer", "a")
	shows(t, ctx, b, "b shown Ready", "c shown Ready", "a"+hidden)
	// A device that is off is the one to go to.
	if err := b.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	await.NoError(t, ctx, time.Minute, "b is first", func() error {
		page := labtest.On(t, ctx, a, "rivulet", "status", "--fleet").Out
		if lines := strings.Split(page, "\n"); len(lines) < 2 || !strings.HasPrefix(lines[1], "b ") || !strings.Contains(lines[1], "lost") {
			return fmt.Errorf("%s", page)
		}
		return nil
	})
}
