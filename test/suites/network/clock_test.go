package network

import (
	"context"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/util/cert"

	"rivulet/appliance/health"
	"rivulet/appliance/lifecycle"
	"rivulet/appliance/machine/clock"
	"rivulet/appliance/state/bolt"
	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
)

const year = 365 * 24 * time.Hour

// A device whose certificates, authorities, leases and tokens are of another time is
// what a jump of the clock leaves behind. It heals at its next start, and the pod
// that ran all the while runs on. (The clock itself is this machine's; no test may set it.)
func TestMintedAtAnotherTime(t *testing.T) {
	ctx := suite.Bounded(t, 5*time.Minute)
	pod(t, ctx, a, "keep")
	labtest.CleanUp(t, func(ctx context.Context) { labtest.Kubectl(t, ctx, a, "delete", "pod", "keep", "--wait") })
	now := time.Now()
	for _, tt := range []struct {
		name string
		otherTime
	}{
		{"in 2060, and then the clock was set back", otherTime{caFrom: now.Add(34 * year), caTo: now.Add(44 * year), leafFrom: now.Add(34 * year), leafTo: now.Add(35 * year), by: 34 * year}},
		{"eleven years ago, and then the clock was set", otherTime{caFrom: now.Add(-11 * year), caTo: now.Add(-year), leafFrom: now.Add(-11 * year), leafTo: now.Add(-10 * year), by: -11 * year}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			within(t, ctx, time.Minute, "leases", func(ctx context.Context) error { return leasesOfToday(ctx, a) })
			before := container(t, ctx)
			if err := a.Stop(ctx); err != nil {
				t.Fatal(err)
			}
			stopped := time.Now().Truncate(time.Second)
			tt.t = t
			tt.apply(a)
			if err := a.Start(ctx); err != nil {
				t.Fatal(err)
			}
			within(t, ctx, 90*time.Second, "ready again", a.WaitReady)
			within(t, ctx, 60*time.Second, "certificates of this time", func(ctx context.Context) error { return servesValid(ctx, a) })
			if after := container(t, ctx); after != before {
				t.Errorf("the pod is another: %s, was %s", after, before)
			}
			// As peers and pods see it, and through kubelet and API server.
			within(t, ctx, time.Minute, "commands run in it", func(ctx context.Context) error {
				out, err := a.Run(ctx, "rivulet", "kubectl", "exec", "keep", "--", "busybox", "echo", "here")
				if err == nil && strings.TrimSpace(out) != "here" {
					err = fmt.Errorf("%q", out)
				}
				return err
			})
			within(t, ctx, time.Minute, "leases of this time", func(ctx context.Context) error { return leasesOfToday(ctx, a) })
			within(t, ctx, 2*time.Minute, "the pod has a token of this time", func(ctx context.Context) error { return tokenSince(ctx, stopped) })
			if err := a.WaitPeered(ctx, 1); err != nil {
				t.Error(err)
			}
			for _, p := range status(t, ctx, a).Health {
				if p.Code == health.CertificatesInvalid.Code {
					t.Error(p)
				}
			}
		})
	}
}

// A certificate that ends soon makes the engine start again by itself, once; k3s
// makes a new one then. (This one is not k3s's, so that it is there at a start.)
func TestACertificateThatEndsSoon(t *testing.T) {
	ctx := suite.Bounded(t, 3*time.Minute)
	pod(t, ctx, a, "keep")
	labtest.CleanUp(t, func(ctx context.Context) { labtest.Kubectl(t, ctx, a, "delete", "pod", "keep", "--wait") })
	before := container(t, ctx)
	if err := a.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	stray := a.Path("/var/lib/rivulet/k3s/server/tls/stray.crt")
	defer os.Remove(stray)
	otherTime{t: t}.stray(a, stray, time.Now().Add(10*24*time.Hour))
	if err := os.Truncate(a.Log(), 0); err != nil {
		t.Fatal(err)
	}
	if err := a.Start(ctx); err != nil {
		t.Fatal(err)
	}
	const again = "starting the engine again"
	within(t, ctx, time.Minute, "started again", func(context.Context) error {
		if raw, err := os.ReadFile(a.Log()); err != nil || !strings.Contains(string(raw), again) {
			return fmt.Errorf("not yet (%w)", err)
		}
		return nil
	})
	within(t, ctx, 90*time.Second, "ready", a.WaitReady)
	within(t, ctx, 90*time.Second, "certificates", func(ctx context.Context) error { return servesValid(ctx, a) })
	if err := a.WaitPeered(ctx, 1); err != nil {
		t.Error(err)
	}
	if raw, err := os.ReadFile(a.Log()); err != nil || strings.Count(string(raw), again) != 1 {
		t.Errorf("started again %d times, %v", strings.Count(string(raw), again), err)
	}
	if after := container(t, ctx); after != before {
		t.Errorf("the pod is another: %s, was %s", after, before)
	}
}

// A device whose clock says what cannot be, and may not be set from where rivulet
// runs, mints nothing and says so, while its pods run on.
func TestAClockThatCannotBe(t *testing.T) {
	ctx := suite.Bounded(t, 3*time.Minute)
	pod(t, ctx, a, "keep")
	labtest.CleanUp(t, func(ctx context.Context) { labtest.Kubectl(t, ctx, a, "delete", "pod", "keep", "--wait") })
	before := container(t, ctx)
	if err := a.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	later := time.Now().Add(2 * year)
	note(t, map[string]time.Time{"last": later, "proven": later})
	files := minted(t)
	if err := a.Start(ctx); err != nil {
		t.Fatal(err)
	}
	within(t, ctx, 20*time.Second, "it says so", func(ctx context.Context) error {
		st, err := ask(ctx, a)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(st.Health, func(p health.Problem) bool {
			return p.Code == health.ClockImplausible.Code && strings.Contains(p.Text, "not permitted") && p.Cure != ""
		}) || st.Clock.Plausible || st.Clock.Floor.Before(later.Add(-time.Minute)) {
			return fmt.Errorf("clock %+v, health %v", st.Clock, st.Health)
		}
		return nil
	})
	// Peers do without it: they are what could tell the time.
	within(t, ctx, 30*time.Second, "b is connected", func(ctx context.Context) error {
		st, err := ask(ctx, a)
		if err != nil {
			return err
		}
		if len(st.Peers) != 1 || st.Peers[0].State != "Connected" {
			return fmt.Errorf("%+v", st.Peers)
		}
		return nil
	})
	st := status(t, ctx, a)
	for _, s := range st.Stages {
		if s.Name == "engine" && s.State != lifecycle.Waiting {
			t.Errorf("the engine is %s", s.State)
		}
	}
	if st.PIDs["engine"] != 0 {
		t.Error("an engine runs")
	}
	if got := minted(t); got != files {
		t.Errorf("certificates were made:\n%s\nwas\n%s", got, files)
	}
	if out := labtest.Must(t, ctx, a, "sh", "-c", "pgrep -f containerd-shim | wc -l"); out == "0" {
		t.Error("the pods are gone")
	}
	if err := a.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	note(t, nil)
	if err := a.Start(ctx); err != nil {
		t.Fatal(err)
	}
	within(t, ctx, 90*time.Second, "ready again", a.WaitReady)
	if after := container(t, ctx); after != before {
		t.Errorf("the pod is another: %s, was %s", after, before)
	}
	if st := status(t, ctx, a); !st.Clock.Plausible || st.Clock.Source != clock.FromSystem {
		t.Errorf("clock %+v", st.Clock)
	}
	if err := a.WaitPeered(ctx, 1); err != nil {
		t.Error(err)
	}
}

func container(t *testing.T, ctx context.Context) string {
	t.Helper()
	return labtest.Kubectl(t, ctx, a, "get", "pod", "keep", "-o", "jsonpath={.metadata.uid} {.status.containerStatuses[0].containerID} restarts={.status.containerStatuses[0].restartCount}")
}

// servesValid verifies what is served, as a client does that has the authority.
func servesValid(ctx context.Context, d *lab.Device) error {
	st, err := ask(ctx, d)
	if err != nil {
		return err
	}
	ca, err := cert.CertsFromFile(d.Path("/var/lib/rivulet/k3s/server/tls/server-ca.crt"))
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AddCert(ca[0])
	for _, port := range []int{6443, 10250} {
		c, err := certificate(ctx, d, st.NodeAddress, port)
		if err != nil {
			return err
		}
		if _, err := c.Verify(x509.VerifyOptions{Roots: roots}); err != nil {
			return fmt.Errorf("port %d: %w", port, err)
		}
		if left := time.Until(c.NotAfter); left < 300*24*time.Hour || c.NotBefore.After(time.Unix(0, 0)) {
			return fmt.Errorf("port %d: valid from %s to %s", port, c.NotBefore, c.NotAfter)
		}
	}
	return nil
}

func leasesOfToday(ctx context.Context, d *lab.Device) error {
	out, err := d.Kubectl(ctx, "get", "leases", "-A", "-o", `jsonpath={range .items[*]}{.metadata.name} {.spec.renewTime}{"\n"}{end}`)
	if err != nil {
		return err
	}
	found := false
	for line := range strings.Lines(out) {
		name, at, _ := strings.Cut(strings.TrimSpace(line), " ")
		renewed, err := time.Parse(time.RFC3339Nano, at)
		if err != nil {
			return fmt.Errorf("%s: %w", line, err)
		}
		if time.Until(renewed) > time.Minute || name == d.Name && time.Since(renewed) > 5*time.Minute {
			return fmt.Errorf("lease %s was renewed at %s", name, at)
		}
		found = found || name == d.Name
	}
	if !found {
		return fmt.Errorf("the node has no lease: %q", out)
	}
	return nil
}

// tokenSince looks at when the token in the pod was made.
func tokenSince(ctx context.Context, since time.Time) error {
	out, err := a.Kubectl(ctx, "exec", "keep", "--", "busybox", "cat", "/var/run/secrets/kubernetes.io/serviceaccount/token")
	if err != nil {
		return err
	}
	parts := strings.Split(out, ".")
	if len(parts) != 3 {
		return fmt.Errorf("no token: %q", out)
	}
	raw, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return err
	}
	var claims struct {
		IssuedAt int64 `json:"iat"`
	}
	if err := json.Unmarshal(raw, &claims); err != nil {
		return err
	}
	if at := time.Unix(claims.IssuedAt, 0); at.Before(since) {
		return fmt.Errorf("its token was made at %s, before the stop at %s", at, since)
	}
	return nil
}

// note writes what the device has saved of the time; nil is nothing.
func note(t *testing.T, saved map[string]time.Time) {
	t.Helper()
	st, err := bolt.Open(a.Path("/var/lib/rivulet/state.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	var blob []byte
	if saved != nil {
		if blob, err = json.Marshal(saved); err != nil {
			t.Fatal(err)
		}
	}
	if err := st.PutNote("clock", blob); err != nil {
		t.Fatal(err)
	}
}

// minted are the engine's certificates with their times of change.
func minted(t *testing.T) string {
	t.Helper()
	files, err := filepath.Glob(a.Path("/var/lib/rivulet/k3s/server/tls/*.crt"))
	if err != nil || len(files) == 0 {
		t.Fatal("no certificates", err)
	}
	var out []string
	for _, f := range files {
		fi, err := os.Stat(f)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, fmt.Sprint(filepath.Base(f), " ", fi.ModTime()))
	}
	return strings.Join(out, "\n")
}
