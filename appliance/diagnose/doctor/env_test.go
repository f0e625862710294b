package doctor

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
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

// testEnv is an Env whose Machine has the functions of a test.
type testEnv struct {
	*Env
	supervisor func(ctx context.Context) (api.Status, error)
	exec       func(ctx context.Context, name string, args ...string) (string, error)
	statfs     func(path string) (unix.Statfs_t, error)
	adjtimex   func() (unix.Timex, int, error)
	links      func() ([]Link, error)
	routes     func() ([]Route, error)
	neighbours func() ([]netip.Addr, error)
	api        func() (kubernetes.Interface, error)
	dial       func(ctx context.Context, a netip.AddrPort) error
	queryDNS   func(ctx context.Context, at netip.AddrPort, q dns.Question) error
	listen     func() (Received, error)
	try        func(ctx context.Context) (map[string]error, error)
	asPod      func(ctx context.Context, n podview.Node) (podview.Finding, error)
	routeTo    func(a netip.Addr) (string, error)
	closed     func() ([]Chain, error)
	overlay    func(dir string) error
	fsync      func(ctx context.Context, dir string, n int) ([]time.Duration, error)
}

func (f *testEnv) Supervisor(ctx context.Context) (api.Status, error) { return f.supervisor(ctx) }
func (f *testEnv) Exec(ctx context.Context, name string, args ...string) (string, error) {
	return f.exec(ctx, name, args...)
}
func (f *testEnv) Statfs(path string) (unix.Statfs_t, error)        { return f.statfs(path) }
func (f *testEnv) Adjtimex() (unix.Timex, int, error)               { return f.adjtimex() }
func (f *testEnv) Links() ([]Link, error)                           { return f.links() }
func (f *testEnv) Routes() ([]Route, error)                         { return f.routes() }
func (f *testEnv) Neighbours() ([]netip.Addr, error)                { return f.neighbours() }
func (f *testEnv) API() (kubernetes.Interface, error)               { return f.api() }
func (f *testEnv) Dial(ctx context.Context, a netip.AddrPort) error { return f.dial(ctx, a) }
func (f *testEnv) QueryDNS(ctx context.Context, at netip.AddrPort, q dns.Question) error {
	return f.queryDNS(ctx, at, q)
}
func (f *testEnv) Listen() (Received, error)                         { return f.listen() }
func (f *testEnv) Try(ctx context.Context) (map[string]error, error) { return f.try(ctx) }
func (f *testEnv) AsPod(ctx context.Context, n podview.Node) (podview.Finding, error) {
	return f.asPod(ctx, n)
}
func (f *testEnv) RouteTo(a netip.Addr) (string, error) { return f.routeTo(a) }
func (f *testEnv) Closed() ([]Chain, error)             { return f.closed() }
func (f *testEnv) Overlay(dir string) error             { return f.overlay(dir) }
func (f *testEnv) Fsync(ctx context.Context, dir string, n int) ([]time.Duration, error) {
	return f.fsync(ctx, dir, n)
}

// machine is a healthy one with these files: everything that is not a file answers
// as on a device that is alone and works. Tests change what they are about.
func machine(t *testing.T, tree files) *testEnv {
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
	f := &testEnv{
		Env:        &Env{Root: root, State: "/var/lib/rivulet", Run: "/run/rivulet", Hostname: "pi", Now: func() time.Time { return noon }},
		supervisor: func(context.Context) (api.Status, error) { return api.Status{}, api.ErrNotRunning },
		exec: func(_ context.Context, name string, _ ...string) (string, error) {
			return "", errors.New(name + ": not found")
		},
		statfs:     func(string) (unix.Statfs_t, error) { return disk(50, 50), nil },
		adjtimex:   func() (unix.Timex, int, error) { return unix.Timex{}, 0, nil },
		links:      func() ([]Link, error) { return []Link{{Name: "lo", Up: true, Carrier: true}, eth0}, nil },
		routes:     func() ([]Route, error) { return []Route{viaRouter, onLink}, nil },
		neighbours: func() ([]netip.Addr, error) { return nil, nil },
		api:        func() (kubernetes.Interface, error) { return nil, errors.New("there is none") },
		dial:       func(context.Context, netip.AddrPort) error { return errors.New("no route to host") },
		queryDNS:   func(context.Context, netip.AddrPort, dns.Question) error { return nil },
		asPod:      func(context.Context, podview.Node) (podview.Finding, error) { return podview.Fine, nil },
		routeTo:    func(netip.Addr) (string, error) { return fixed.Bridge, nil },
		closed:     func() ([]Chain, error) { return nil, nil },
		listen:     func() (Received, error) { return Received{}, nil },
		try: func(context.Context) (map[string]error, error) {
			return map[string]error{tryNetns: nil, tryVeth: nil, tryBridge: nil, tryTun: nil, tryNft: nil, tryPolicies: nil, tryIptables: nil}, nil
		},
		overlay: func(string) error { return nil },
		fsync: func(context.Context, string, int) ([]time.Duration, error) {
			return []time.Duration{time.Millisecond}, nil
		},
	}
	f.Machine = f
	return f
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
func found(t *testing.T, e *testEnv, p Probe, want Status, words ...string) Result {
	t.Helper()
	r := p.Run(t.Context(), e.Env)
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
