package doctor

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"
	"k8s.io/client-go/kubernetes"

	"rivulet/appliance/addons/podview"
	"rivulet/appliance/api"
)

// Env is the environment of probes; Here returns the real one. A test has files below Root and its own Machine.
type Env struct {
	Machine
	// Root is the root of the machine's files: "" for this machine.
	Root string
	// State and Run are Rivulet's folders, below Root.
	State, Run string
	Now        func() time.Time
	// User is the user who runs the probes; 0 is root.
	User int
	// Node is the node's address; if it is not valid, the supervisor is queried.
	Node netip.Addr
	// Hostname is the machine's name.
	Hostname string
}

// Machine is what probes query beside files: the kernel, the network, programs and Rivulet.
type Machine interface {
	// Supervisor queries the supervisor; an error if none answers.
	Supervisor(context.Context) (api.Status, error)
	// Exec runs a program and returns its standard output.
	Exec(ctx context.Context, name string, args ...string) (string, error)
	// Statfs and Adjtimex are the system calls.
	Statfs(path string) (unix.Statfs_t, error)
	Adjtimex() (unix.Timex, int, error)
	// Links and Routes are the network's state, Neighbours the addresses that answered on a LAN recently.
	Links() ([]Link, error)
	Routes() ([]Route, error)
	Neighbours() ([]netip.Addr, error)
	// API is a client of the API server.
	API() (kubernetes.Interface, error)
	// Dial reports whether a TCP port accepts connections.
	Dial(ctx context.Context, addr netip.AddrPort) error
	// QueryDNS sends a server a question. Any answer is a success.
	QueryDNS(ctx context.Context, server netip.AddrPort, question dns.Question) error
	// Listen finds hosts on the LANs by multicast, once for all probes.
	Listen() (Received, error)
	// Try creates the parts of the data path in a temporary network namespace, and returns the kernel's error for each.
	Try(ctx context.Context) (map[string]error, error)
	// AsPod checks the node from a pod's position.
	AsPod(ctx context.Context, node podview.Node) (podview.Finding, error)
	// RouteTo is the interface by which the kernel sends packets to an address.
	RouteTo(netip.Addr) (string, error)
	// Closed are the chains of nftables that refuse what no rule is for.
	Closed() ([]Chain, error)
	// Overlay mounts an overlayfs in a folder, and takes it away.
	Overlay(dir string) error
	// Fsync writes and syncs small blocks in the state folder and returns how long each took.
	Fsync(ctx context.Context, dir string, blocks int) ([]time.Duration, error)
}

// Link is one interface.
type Link struct {
	Name string
	// LAN is false for bridges, tunnels and container interfaces.
	LAN, Wireless bool
	Up, Carrier   bool
	Addrs         []netip.Prefix
}

// Route is one unicast route of IPv4; a default route has 0 bits.
type Route struct {
	To   netip.Prefix
	Link string
	Via  netip.Addr // invalid if the destination is on the link
}

// Received is the result of multicast.
type Received struct {
	// From are other hosts whose packets were received.
	From []netip.Addr
	// SameName are those of them with this host's name.
	SameName []netip.Addr
}

// path is the path of a file of the machine.
func (e *Env) path(name string) string { return filepath.Join("/", e.Root, name) }

// read returns a file's text without surrounding space, "" if there is none.
func (e *Env) read(name string) string {
	raw, err := os.ReadFile(e.path(name))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(strings.ReplaceAll(string(raw), "\x00", "\n"))
}

func (e *Env) exists(name string) bool {
	_, err := os.Stat(e.path(name))
	return err == nil
}

// changed is when a file was written; ok is false if there is none.
func (e *Env) changed(name string) (at time.Time, ok bool) {
	fi, err := os.Stat(e.path(name))
	if err != nil || !fi.Mode().IsRegular() {
		return time.Time{}, false
	}
	return fi.ModTime(), true
}

// glob returns the machine's file names, sorted.
func (e *Env) glob(pattern string) []string {
	found, _ := filepath.Glob(e.path(pattern))
	for i, f := range found {
		found[i] = "/" + strings.TrimPrefix(strings.TrimPrefix(f, e.path("/")), "/")
	}
	return found
}

// mount is a line of /proc/mounts.
type mount struct {
	device, at, kind string
	options          []string
}

func (e *Env) mounts() (out []mount) {
	for line := range strings.Lines(e.read("/proc/mounts")) {
		if f := strings.Fields(line); len(f) >= 4 {
			out = append(out, mount{f[0], unescape(f[1]), f[2], strings.Split(f[3], ",")})
		}
	}
	return out
}

// mountOf is the mount that contains a path.
func (e *Env) mountOf(path string) (best mount, ok bool) {
	for _, m := range e.mounts() {
		at := strings.TrimSuffix(m.at, "/")
		if (path == m.at || strings.HasPrefix(path, at+"/")) && len(m.at) >= len(best.at) {
			best, ok = m, true
		}
	}
	return best, ok
}

// together reports whether two paths are on one disk, also where a mount cannot be seen.
func (e *Env) together(a, b string) bool {
	x, seen := e.mountOf(e.existing(a))
	y, also := e.mountOf(e.existing(b))
	return !seen || !also || x.at == y.at || x.device == y.device && strings.HasPrefix(x.device, "/")
}

// unescape decodes the kernel's escapes for spaces in paths.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// running queries the supervisor; ok is false if none answers.
func (e *Env) running(ctx context.Context) (api.Status, bool) {
	st, err := e.Supervisor(ctx)
	return st, err == nil
}

// unasked is the result of a probe whose input is not available. For users other than root an error of a program
// usually means a missing permission.
func (e *Env) unasked(what string, err error) Result {
	switch {
	case e.User != 0:
		return Skipf("only root can look at it: sudo rivulet doctor")
	case errors.Is(err, syscall.ECONNREFUSED):
		return Skipf("%s: it does not run", what)
	case err != nil:
		return Skipf("%s: %v", what, err)
	}
	return Skipf("%s", what)
}

// existing is path itself, or the nearest folder above it that exists.
func (e *Env) existing(path string) string {
	for path != "/" && !e.exists(path) {
		path = filepath.Dir(path)
	}
	return path
}
