package cli

import (
	"bytes"
	"errors"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"rivulet/appliance/api"
	"rivulet/appliance/ui/console"
	"rivulet/appliance/ui/summary"
	"rivulet/appliance/ui/webconsole"
	"rivulet/fabric/peer"
	"rivulet/fabric/trust"
)

// supervisor answers as one does, and makes invites.
func supervisor(t *testing.T, st func() api.Status) (run string, invites *atomic.Int32, last *atomic.Pointer[trust.Invite]) {
	t.Helper()
	run, invites, last = t.TempDir(), new(atomic.Int32), new(atomic.Pointer[trust.Invite])
	mux := http.NewServeMux()
	mux.Handle("GET /v1/status", api.JSON(func(*http.Request) (any, error) { return st(), nil }))
	mux.Handle("POST /v1/invites", api.JSON(func(*http.Request) (any, error) {
		n := invites.Add(1)
		i := trust.Invite{ID: strings.Repeat("i", int(n)), Made: time.Now(), Expires: time.Now().Add(10 * time.Minute)}
		last.Store(&i)
		return api.Invited{Invite: i, Code: "CODE-" + i.ID, URL: "https://rivulet.dev/p#CODE"}, nil
	}))
	mux.Handle("POST /v1/console/codes", api.JSON(func(*http.Request) (any, error) {
		return webconsole.Login{Code: "7K2M-9QRT-0XYZ-ABCD", URL: "https://lab-1.local:7443", Link: "https://lab-1.local:7443/#code=7K2M-9QRT-0XYZ-ABCD", Expires: time.Now().Add(10 * time.Minute)}, nil
	}))
	mux.Handle("GET /v1/invites", api.JSON(func(*http.Request) (any, error) {
		return api.Invites{Now: time.Now(), Invites: []trust.Invite{*last.Load()}}, nil
	}))
	ready := make(chan struct{})
	go api.Serve(t.Context(), run, mux, func() { close(ready) })
	<-ready
	return run, invites, last
}

// The screen shows a code while somebody wants one, makes another when it was used or
// ends soon, and prints nothing as long as nothing changes.
func TestConsole(t *testing.T) {
	name := atomic.Pointer[string]{}
	call := func(s string) { name.Store(&s) }
	call("lab-1")
	run, invites, last := supervisor(t, func() api.Status {
		return api.Status{Name: *name.Load(), Started: time.Now(), Waiting: "engine: starts", Console: "https://lab-1.local:7443"}
	})
	var out bytes.Buffer
	s := &screen{run: run, out: &out}
	next := func() string { out.Reset(); s.draw(t.Context()); return out.String() }

	if got := next(); !strings.Contains(got, "lab-1") || !strings.Contains(got, "setting up; waits for engine: starts") || !strings.Contains(got, "press Enter") || invites.Load() != 0 {
		t.Errorf("%d invites, first picture:\n%s", invites.Load(), got)
	}
	if got := next(); got != "" {
		t.Errorf("nothing has changed, and this is drawn: %q", got)
	}
	s.until = time.Now().Add(time.Hour) // Enter
	if got := next(); !strings.Contains(got, "rivulet peer --invite CODE-i") || !strings.Contains(got, "▀") {
		t.Errorf("with a code:\n%s", got)
	}
	next()
	if invites.Load() != 1 {
		t.Errorf("%d invites, want one", invites.Load())
	}
	used := *last.Load()
	used.UsedBy = "somebody"
	last.Store(&used)
	if got := next(); !strings.Contains(got, "CODE-ii") {
		t.Errorf("after the code was used:\n%s", got)
	}
	soon := *last.Load()
	soon.Expires = time.Now().Add(time.Minute)
	last.Store(&soon)
	if got := next(); !strings.Contains(got, "CODE-iii") {
		t.Errorf("with a code that ends soon:\n%s", got)
	}
	s.until = time.Time{}
	if got := next(); strings.Contains(got, "CODE") || strings.Contains(got, "▀") {
		t.Errorf("nobody wants a code any more:\n%s", got)
	}
	s.press(time.Now())
	if got := next(); !strings.Contains(got, "CODE-iii") || strings.Contains(got, "sign in") {
		t.Errorf("after Enter:\n%s", got)
	}
	s.press(time.Now())
	if got := next(); !strings.Contains(got, "to sign in") || !strings.Contains(got, "7K2M-9QRT-0XYZ-ABCD") || !strings.Contains(got, "https://lab-1.local:7443") || !strings.Contains(got, "▀") {
		t.Errorf("after another Enter:\n%s", got)
	}
	s.until = time.Time{}
	next()
	call("lab-2\x1b[2J")
	if got := next(); !strings.Contains(got, "lab-2") || strings.Contains(got, "\x1b[2J") {
		t.Errorf("after another name: %q", got)
	}
}

func TestConsoleWithoutASupervisor(t *testing.T) {
	var out bytes.Buffer
	s := &screen{run: t.TempDir(), out: &out, pair: true}
	s.draw(t.Context())
	if !strings.Contains(out.String(), "journalctl -u rivulet") {
		t.Error(out.String())
	}
	if err := s.once(t.Context()); !errors.Is(err, api.ErrNotRunning) {
		t.Errorf("once: %v", err)
	}
}

func TestDisplayConnected(t *testing.T) {
	drm := t.TempDir()
	if !displayConnected(drm) {
		t.Error("a machine that does not know has no display")
	}
	for _, tt := range []struct {
		connector, status string
		want              bool
	}{{"card0-HDMI-A-1", "disconnected\n", false}, {"card0-HDMI-A-2", "connected\n", true}} {
		if err := errors.Join(os.MkdirAll(filepath.Join(drm, tt.connector), 0o755), os.WriteFile(filepath.Join(drm, tt.connector, "status"), []byte(tt.status), 0o644)); err != nil {
			t.Fatal(err)
		}
		if got := displayConnected(drm); got != tt.want {
			t.Errorf("with %s %s: %v", tt.connector, tt.status, got)
		}
	}
}

// The code of a real invite fits beside the text on 80 columns and 25 rows.
func TestTheQRCodeFitsOnASmallScreen(t *testing.T) {
	for _, addrs := range [][]string{{"192.168.178.201:7442"}, {"192.168.178.201:7442", "10.77.0.5:7442"}, {"192.168.178.201:7442", "[2001:db8:1234:5678:9abc:def0:1234:5678]:7442"}} {
		code := trust.Code{ID: peer.ID(strings.Repeat("a", 32)), Secret: make([]byte, trust.SecretLen)}
		for _, a := range addrs {
			code.Addrs = append(code.Addrs, netip.MustParseAddrPort(a))
		}
		drawn, err := drawQR(code.URL())
		if err != nil {
			t.Fatal(err)
		}
		i := picture(code.URL(), code.String(), time.Now())
		if i.Width == 0 || len(i.QR) != strings.Count(drawn, "\n") {
			t.Fatalf("%d rows, %d columns", len(i.QR), i.Width)
		}
		rows := console.Draw(&summary.View{Name: "lab-1", Summary: "ready"}, "", i, console.Least)
		if all := strings.Join(rows, "\n"); !strings.Contains(all, i.QR[len(i.QR)-1]) || len(rows) != console.Least.Rows {
			t.Errorf("%v: a QR code of %d rows and %d columns does not fit:\n%s", addrs, len(i.QR), i.Width, all)
		}
	}
}
