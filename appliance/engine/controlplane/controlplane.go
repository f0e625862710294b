// Package controlplane is the process of a virtual cluster: its confinement, its connections, and its end after a time
// without use. Package engine/k3s, which alone links Kubernetes, passes the control plane to Main.
//
// It reads its Settings from the environment, the listening socket from descriptor ListenFD, and the supervisor's files
// in its folder. It alone writes below data, its datastore, and reports on descriptor StatusFD when it is usable and
// when it falls asleep. Restart: all state is in the datastore. A failure ends the process with a line on standard
// error, which the supervisor stores and shows.
package controlplane

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"rivulet/fabric/changes"
)

// Name is argv[0] of the process.
const Name = "rivulet-tenant"

// Env is the variable with the Settings, as JSON.
const Env = "RIVULET_TENANT"

// Descriptors of the process. ReportsFD is the other end of StatusFD: unread reports stay in it for a supervisor that
// starts later.
const (
	ListenFD  = 3
	StatusFD  = 4
	ReportsFD = 5
)

// Reports of a process, one per line. Asleep is followed by the time when it is due again, in seconds since 1970; 0 is
// never, and nothing follows after a requested end.
const (
	Usable = "usable"
	Asleep = "asleep"
)

// Signals to a process. One of a version without SleepSignal ends by it as by a crash.
const (
	ReplaceSignal = syscall.SIGHUP  // end when unused for ReplaceIdle: it is of another version
	SleepSignal   = syscall.SIGUSR1 // sleep now, and say when it is due again
)

// InnerAddress is the API server's address for the parts of the process. The port is always free, because the process
// has its own network namespace.
const InnerAddress = "127.0.0.1:6443"

// Files below the process's root.
const (
	TLS  = "/tls"       // written by the supervisor
	Data = "/data"      // written by the process
	Host = "/host.sock" // the supervisor's socket, which leads to the host
	// Database is its datastore, below Data.
	Database = Data + "/db/state.db"
)

// FrontProxy is the certificate by which API services trust the identity headers of the API server.
const FrontProxy = "front-proxy"

// Settings are the supervisor's settings for the process.
type Settings struct {
	Name string `json:"name"`
	// ID is its identity at the host.
	ID string `json:"id"`
	// UID is user and group of the process.
	UID int `json:"uid"`
	// Idle is the time without use after which it ends; 0 is never.
	Idle time.Duration `json:"idle"`
	// WatchKeepsAwake: watches of clients that are no pods are use as long as they last.
	WatchKeepsAwake bool `json:"watchKeepsAwake,omitempty"`
	// Work: it was started for due work, and ends soon after that is done.
	Work bool `json:"work,omitempty"`
	// Datastore bounds its datastore, bytes; 0 is no limit.
	Datastore int64 `json:"datastore,omitempty"`
	// Advertise is the address of its API server for its own pods and other clients.
	Advertise netip.AddrPort `json:"advertise"`
	// DNS is the resolver of its pods; invalid is unknown.
	DNS netip.Addr `json:"dns,omitzero"`
	// ServiceCIDR is the CIDR of its Services.
	ServiceCIDR string `json:"serviceCIDR"`
	// PodCIDR is the pod CIDR of the host, and so of its own pods.
	PodCIDR string `json:"podCIDR"`
}

// Plane is the input of a control plane.
type Plane struct {
	Settings
	// First: there is no datastore yet.
	First bool
	// Boot is changes.BootID, which the process cannot read.
	Boot string
	// Listener is what the API server serves. From outside it accepts only after Open.
	Listener net.Listener
	// Full returns the error for a write of so many more bytes, nil if there is room; a nil function is no limit.
	Full func(ctx context.Context, more int64) error
	// Use counts requests from outside.
	Use *Use
	// Open is called once the API server can be used.
	Open func()
	// Due returns when the control plane has work of its own again; the zero time is never.
	Due *atomic.Pointer[func(context.Context) (time.Time, error)]
}

const (
	// settled is how long after Open memory is returned and the garbage collector runs more often.
	settled = 10 * time.Second
	// gcPercent is for an idle control plane: half of the heap's growth for little CPU.
	gcPercent = 35
	// endLimit is how long the API server may take to end. It would wait 1 min for its own watches, and requests for
	// the next process would wait, too.
	endLimit = 2 * time.Second
	// ReplaceIdle is the time without use after which a process of an old version ends.
	ReplaceIdle = time.Minute
	// workIdle is Idle of a process that was started for due work.
	workIdle = 30 * time.Second
	// leastSleep is the shortest sleep: with earlier work it does not sleep.
	leastSleep = 20 * time.Second
	// unknown is when it is due again if that cannot be determined.
	unknown = time.Minute
)

// Main runs the control plane until it is unused or receives a signal. It ends the process.
func Main(run func(context.Context, Plane) error) {
	err := serve(run)
	if err == nil || errors.Is(err, context.Canceled) {
		sleep()
	}
	fmt.Fprintf(os.Stderr, "%s: %v\n", Name, err)
	os.Exit(1)
}

func sleep() {
	report(Asleep + again.Load().(string))
	os.Exit(0)
}

// again is the due time for the last report.
var again atomic.Value

// report sends a line to the supervisor and the log. The socket has room for all lines of a process, so it never
// blocks.
func report(what string) {
	fmt.Fprintf(os.Stderr, "%s: %s\n", Name, what)
	_, _ = fmt.Fprintln(status, what)
}

// Kept open for the lifetime of the process, as ReportsFD is, which nothing here uses: a restarted supervisor takes the
// socket and the reports from there.
var listening, status *os.File

func serve(run func(context.Context, Plane) error) error {
	var s Settings
	if err := json.Unmarshal([]byte(os.Getenv(Env)), &s); err != nil {
		return fmt.Errorf("the settings in %s: %w; the supervisor starts this process, nobody else does", Env, err)
	}
	os.Unsetenv(Env)
	again.Store("")
	listening, status = os.NewFile(ListenFD, "listener"), os.NewFile(StatusFD, "status")
	public, err := net.FileListener(listening)
	if err != nil {
		return fmt.Errorf("the listening socket: %w", err)
	}
	boot := changes.BootID()
	if err := confine(s.UID, s.Advertise.Addr()); err != nil {
		return err
	}
	removeTorn(Data)
	inner, err := net.Listen("tcp", InnerAddress)
	if err != nil {
		return err
	}
	_, err = os.Stat(Database)
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer cancel()
	context.AfterFunc(ctx, func() { time.AfterFunc(endLimit, sleep) })
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, ReplaceSignal, SleepSignal)
	both := join(inner, public)
	p := Plane{Settings: s, First: errors.Is(err, os.ErrNotExist), Boot: boot, Listener: both, Use: NewUse(time.Now), Due: new(atomic.Pointer[func(context.Context) (time.Time, error)])}
	p.Open = func() {
		p.Use.reset()
		both.open()
		report(Usable)
		time.AfterFunc(settled, func() {
			debug.SetGCPercent(gcPercent)
			debug.FreeOSMemory()
		})
		go func() {
			if !p.waitDone(ctx, signals) {
				return // it is ended
			}
			both.shut()      // new connections wait in the socket, for the next process
			at := p.due(ctx) // includes the last requests
			if at.IsZero() {
				at = time.Unix(0, 0)
			}
			again.Store(fmt.Sprintf(" %d", at.Unix()))
			cancel()
		}()
	}
	return run(ctx, p)
}

// removeTorn removes certificates that a power cut has left without content or key. The API server makes them for itself,
// and would not start with such files.
func removeTorn(dir string) {
	all, _ := filepath.Glob(dir + "/*.crt") // the pattern is valid
	for _, crt := range all {
		key := strings.TrimSuffix(crt, ".crt") + ".key"
		if _, err := tls.LoadX509KeyPair(crt, key); err != nil {
			_ = os.Remove(crt)
			_ = os.Remove(key)
		}
	}
}

// due returns when the control plane has work of its own again; the zero time is never.
func (p Plane) due(ctx context.Context) time.Time {
	if due := p.Due.Load(); due != nil {
		if at, err := (*due)(ctx); err == nil {
			return at
		}
	}
	return time.Now().Add(unknown)
}

// waitDone returns true when the control plane is unused and has no work soon; false when ctx ends.
func (p Plane) waitDone(ctx context.Context, signals <-chan os.Signal) bool {
	for {
		p.Use.waitIdle(ctx, func(used bool) time.Duration {
			if p.Work && !used {
				return min(p.Idle, workIdle)
			}
			return p.Idle
		}, signals)
		if ctx.Err() != nil {
			return false
		}
		at := p.due(ctx)
		wait := time.Until(at)
		if at.IsZero() || wait >= leastSleep {
			return true
		}
		if !changes.Wait(ctx, max(wait, 0)+workIdle) {
			return false
		}
	}
}
