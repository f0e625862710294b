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

	"golang.org/x/sys/unix"
	"k8s.io/client-go/kubernetes"

	"rivulet/appliance/addons/podview"
	"rivulet/appliance/api"
)

// Env is all that a probe may look at; Here makes the real one. A test puts a tree
// of files below Root and functions of its own beside it.
type Env struct {
	// Root is where the machine's files are: "" for this one.
	Root string
	// State and Run are Rivulet's folders, below Root.
	State, Run string
	Now        func() time.Time
	// User is who looks; 0 is root.
	User int
	// Node is the node's own address; not valid asks the supervisor.
	Node netip.Addr
	// Hostname is the machine's name.
	Hostname string
	// Supervisor asks what only it knows; an error when none answers.
	Supervisor func(context.Context) (api.Status, error)
	// Exec runs a program and returns what it said on standard output.
	Exec func(ctx context.Context, name string, args ...string) (string, error)
	// Statfs and Adjtimex are the system calls.
	Statfs   func(path string) (unix.Statfs_t, error)
	Adjtimex func() (unix.Timex, int, error)
	// Links and Routes are the network's state, Neighbours the addresses that
	// answered on a LAN lately.
	Links      func() ([]Link, error)
	Routes     func() ([]Route, error)
	Neighbours func() ([]netip.Addr, error)
	// API is a client of the API server.
	API func() (kubernetes.Interface, error)
	// Dial says whether a TCP port takes connections.
	Dial func(ctx context.Context, addr netip.AddrPort) error
	// QueryDNS asks a server for the root's name servers, which every resolver knows.
	QueryDNS func(ctx context.Context, server netip.AddrPort) error
	// Listen asks the LANs by multicast who is there, once for all probes.
	Listen func() (Received, error)
	// Try makes, in a network namespace that is thrown away, what the data path is
	// made of, and returns what the kernel said to each.
	Try func(ctx context.Context) (map[string]error, error)
	// AsPod looks at the node as a pod does; InputDrops are the chains of rules, as nft calls them,
	// that drop what comes to the machine and nobody allows.
	AsPod      func(ctx context.Context, node podview.Node) (podview.Finding, error)
	InputDrops func() ([]string, error)
	// Fsync writes and syncs small blocks in the state folder and returns how long each took.
	Fsync func(ctx context.Context, dir string, blocks int) ([]time.Duration, error)
}

// Link is one interface.
type Link struct {
	Name string
	// LAN is false for bridges, tunnels and what containers use.
	LAN, Wireless bool
	Up, Carrier   bool
	Addrs         []netip.Prefix
}

// Route is one unicast route of IPv4; a default route has 0 bits.
type Route struct {
	To   netip.Prefix
	Link string
	Via  netip.Addr // invalid where the destination is on the link
}

// Received is what multicast told.
type Received struct {
	// From are other machines that spoke while we listened.
	From []netip.Addr
	// SameName are those of them that claim to have our host name.
	SameName []netip.Addr
}

// path is where a file of the machine is.
func (e *Env) path(name string) string { return filepath.Join("/", e.Root, name) }

// read returns a file's text without the space around it, "" if there is none.
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

// changed is when a file was written; ok is false when there is none.
func (e *Env) changed(name string) (at time.Time, ok bool) {
	fi, err := os.Stat(e.path(name))
	if err != nil || !fi.Mode().IsRegular() {
		return time.Time{}, false
	}
	return fi.ModTime(), true
}

// glob returns the machine's names of files, sorted.
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

// mountOf is the mount that a path lies on.
func (e *Env) mountOf(path string) (best mount, ok bool) {
	for _, m := range e.mounts() {
		at := strings.TrimSuffix(m.at, "/")
		if (path == m.at || strings.HasPrefix(path, at+"/")) && len(m.at) >= len(best.at) {
			best, ok = m, true
		}
	}
	return best, ok
}

// unescape undoes what the kernel does to spaces in paths.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// running asks the supervisor; ok is false when none answers.
func (e *Env) running(ctx context.Context) (api.Status, bool) {
	st, err := e.Supervisor(ctx)
	return st, err == nil
}

// unasked is the result of a probe that does not get what it looks at. To others than root what a
// program says of that means no more than that they are not.
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

// existing is the nearest folder above path, or path itself, that exists.
func (e *Env) existing(path string) string {
	for path != "/" && !e.exists(path) {
		path = filepath.Dir(path)
	}
	return path
}
