package doctor

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"
	"k8s.io/client-go/kubernetes"

	"rivulet/appliance/addons/podview"
	"rivulet/appliance/api"
	"rivulet/appliance/config/fixed"
)

// files are a machine's, by path; a value that begins with "-> " is a symbolic link.
type files map[string]string

var noon = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)

// machine is a healthy one with these files: everything that is not a file answers
// as on a device that is alone and works. Tests change what they are about.
func machine(t *testing.T, tree files) *Env {
	t.Helper()
	root := t.TempDir()
	for name, text := range tree {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if to, ok := strings.CutPrefix(text, "-> "); ok {
			err = os.Symlink(to, path)
		} else {
			err = os.WriteFile(path, []byte(text), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return &Env{
		Root: root, State: "/var/lib/rivulet", Run: "/run/rivulet", Hostname: "pi",
		Now:        func() time.Time { return noon },
		Supervisor: func(context.Context) (api.Status, error) { return api.Status{}, api.ErrNotRunning },
		Exec: func(_ context.Context, name string, _ ...string) (string, error) {
			return "", errors.New(name + ": not found")
		},
		Statfs:     func(string) (unix.Statfs_t, error) { return disk(50, 50), nil },
		Adjtimex:   func() (unix.Timex, int, error) { return unix.Timex{}, 0, nil },
		Links:      func() ([]Link, error) { return []Link{{Name: "lo", Up: true, Carrier: true}, eth0}, nil },
		Routes:     func() ([]Route, error) { return []Route{viaRouter, onLink}, nil },
		Neighbours: func() ([]netip.Addr, error) { return nil, nil },
		API:        func() (kubernetes.Interface, error) { return nil, errors.New("there is none") },
		Dial:       func(context.Context, netip.AddrPort) error { return errors.New("no route to host") },
		QueryDNS:   func(context.Context, netip.AddrPort, dns.Question) error { return nil },
		AsPod:      func(context.Context, podview.Node) (podview.Finding, error) { return podview.Fine, nil },
		RouteTo:    func(netip.Addr) (string, error) { return fixed.Bridge, nil },
		Closed:     func() ([]Chain, error) { return nil, nil },
		Listen:     func() (Received, error) { return Received{}, nil },
		Try: func(context.Context) (map[string]error, error) {
			return map[string]error{tryNetns: nil, tryVeth: nil, tryBridge: nil, tryTun: nil, tryNft: nil, tryPolicies: nil, tryIptables: nil}, nil
		},
		Overlay: func(string) error { return nil },
		Fsync: func(context.Context, string, int) ([]time.Duration, error) {
			return []time.Duration{time.Millisecond}, nil
		},
	}
}

var (
	eth0      = Link{Name: "eth0", LAN: true, Up: true, Carrier: true, Addrs: []netip.Prefix{netip.MustParsePrefix("192.168.1.7/24")}}
	wlan0     = Link{Name: "wlan0", LAN: true, Wireless: true, Up: true, Carrier: true, Addrs: []netip.Prefix{netip.MustParsePrefix("192.168.1.8/24")}}
	router    = netip.MustParseAddr("192.168.1.1")
	viaRouter = Route{To: netip.MustParsePrefix("0.0.0.0/0"), Link: "eth0", Via: router}
	onLink    = Route{To: netip.MustParsePrefix("192.168.1.0/24"), Link: "eth0"}
)

// disk is 100 GiB with so many per cent of space and inodes free.
func disk(space, inodes uint64) unix.Statfs_t {
	return unix.Statfs_t{Bsize: 4096, Blocks: 25 << 20, Bavail: (25 << 20) / 100 * space, Files: 1e6, Ffree: 1e4 * inodes}
}

func links2(l ...Link) func() ([]Link, error) { return func() ([]Link, error) { return l, nil } }
func routes2(r ...Route) func() ([]Route, error) {
	return func() ([]Route, error) { return r, nil }
}

// says answers programs by their whole command line.
func says(answers map[string]string) func(context.Context, string, ...string) (string, error) {
	return func(_ context.Context, name string, args ...string) (string, error) {
		if out, ok := answers[strings.Join(append([]string{name}, args...), " ")]; ok {
			return out, nil
		}
		return "", errors.New(name + ": not found")
	}
}

func status(st api.Status) func(context.Context) (api.Status, error) {
	return func(context.Context) (api.Status, error) { return st, nil }
}

// found runs a probe and checks how it ended, what it says and that there is a cure.
func found(t *testing.T, e *Env, p Probe, want Status, words ...string) Result {
	t.Helper()
	r := p.Run(t.Context(), e)
	all := r.Text + " → " + r.Cure
	if r.Status != want {
		t.Errorf("%s: %s (%s), want %s", p.Name(), r.Status, all, want)
	}
	for _, w := range words {
		if !strings.Contains(all, w) {
			t.Errorf("%s says %q, want %q in it", p.Name(), all, w)
		}
	}
	if bad := r.Status == Warn || r.Status == Fail; bad != (r.Cure != "") {
		t.Errorf("%s: %s with the cure %q", p.Name(), r.Status, r.Cure)
	}
	if r.Text == "" || strings.Contains(all, "\n") {
		t.Errorf("%s says %q, want one line", p.Name(), all)
	}
	return r
}

// Here gives every function of an Env: a probe that finds none panics.
func TestHereHasAll(t *testing.T) {
	e := reflect.ValueOf(Here(t.TempDir(), t.TempDir(), nil)).Elem()
	for i := range e.NumField() {
		if f := e.Field(i); f.Kind() == reflect.Func && f.IsNil() {
			t.Errorf("Here has no %s", e.Type().Field(i).Name)
		}
	}
}
