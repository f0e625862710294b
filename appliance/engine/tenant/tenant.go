// Package tenant is a virtual cluster's own process: what confines it, which connections it
// answers, and when it ends because nobody uses it. The control plane itself is given to
// Main by package engine/k3s, which alone links Kubernetes.
//
// It reads its Settings from the environment, the listening socket as descriptor ListenFD, and the
// files that the supervisor laid into its folder. It alone writes below data, its datastore, and says
// on descriptor StatusFD when it is usable and when it falls asleep.
// A restart loses nothing: all is in the datastore. A failure ends the process with a line
// on standard error, which the supervisor keeps and shows.
package tenant

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"runtime/debug"
	"sync/atomic"
	"syscall"
	"time"

	"rivulet/fabric/changes"
)

// Name is argv[0] of the process.
const Name = "rivulet-tenant"

// Env is the variable that carries the Settings, as JSON.
const Env = "RIVULET_TENANT"

// Descriptors of the process. ReportsFD is the other end of StatusFD: what was written stays in it for a
// supervisor that starts later.
const (
	ListenFD  = 3
	StatusFD  = 4
	ReportsFD = 5
)

// What a process reports, a line each. After Asleep comes when it is due again, in seconds since 1970, 0 is never; nothing where
// it was told to end.
const (
	Usable = "usable"
	Asleep = "asleep"
)

// InnerAddress is where the parts of the process find its API server. The process has a
// network namespace of its own, so that the port is always free.
const InnerAddress = "127.0.0.1:6443"

// Files below the process's root.
const (
	TLS  = "/tls"       // written by the supervisor
	Data = "/data"      // the process's own
	Host = "/host.sock" // the way to its host, of the supervisor
)

// FrontProxy is by whose certificate API services take its API server's word for who sends a request.
const FrontProxy = "front-proxy"

// Settings are what the supervisor tells the process.
type Settings struct {
	Name string `json:"name"`
	// ID is what the host knows it by.
	ID string `json:"id"`
	// UID is user and group of the process.
	UID int `json:"uid"`
	// Idle is how long nobody may use it before it ends; 0 is for ever. After SIGHUP that is ReplaceIdle at most.
	Idle time.Duration `json:"idle"`
	// Work says that nobody asked for it: it ends soon after it has done what was due.
	Work bool `json:"work,omitempty"`
	// Datastore is how much its datastore may take, bytes; 0 is no limit.
	Datastore int64 `json:"datastore,omitempty"`
	// Advertise is where clients find its API server: its own pods, and others.
	Advertise netip.AddrPort `json:"advertise"`
	// ServiceCIDR has the addresses of its Services.
	ServiceCIDR string `json:"serviceCIDR"`
	// PodCIDR has the addresses of the host's pods, and so of its own.
	PodCIDR string `json:"podCIDR"`
}

// Plane is what a control plane is made of.
type Plane struct {
	Settings
	// First says that the datastore is not there yet.
	First bool
	// Listener is what the API server serves. From outside it accepts only after Open.
	Listener net.Listener
	// Full is the error for who would store so many bytes more, nil if there is room; nil is no limit.
	Full func(ctx context.Context, more int64) error
	// Use counts requests from outside.
	Use *Use
	// Open is called once the API server can be used.
	Open func()
	// Due has when the control plane has work of its own again; the zero time is never.
	Due *atomic.Pointer[func(context.Context) (time.Time, error)]
}

const (
	// settled is how long after Open memory is given back and the collector takes more trouble.
	settled = 10 * time.Second
	// gcPercent is for an idle control plane: half of the heap's growth for little CPU.
	gcPercent = 35
	// endLimit is how long the API server may take to end. It would wait a minute for its own
	// parts' watches, and requests for the next process with it.
	endLimit = 2 * time.Second
	// ReplaceIdle is how long nobody may use one of an old version before it ends.
	ReplaceIdle = time.Minute
	// workIdle is Idle of a process that was started for work of its own.
	workIdle = 30 * time.Second
	// leastSleep is how long it has to be until the next work: less is no sleep.
	leastSleep = 20 * time.Second
	// unknown is when it is due again where that cannot be found out.
	unknown = time.Minute
)

// Main runs the control plane until nobody uses it, or a signal comes. It ends the process.
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

// again is what is said of when it is due.
var again atomic.Value

// report tells the supervisor, and the log. Of the few lines of a process none waits.
func report(what string) {
	fmt.Fprintf(os.Stderr, "%s: %s\n", Name, what)
	_, _ = fmt.Fprintln(status, what)
}

// Kept open for as long as the process lives, as ReportsFD is, which nothing here touches: a supervisor that starts again
// takes the socket and the reports from there.
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
	if err := confine(s.UID); err != nil {
		return err
	}
	inner, err := net.Listen("tcp", InnerAddress)
	if err != nil {
		return err
	}
	_, err = os.Stat(Data + "/db/state.db")
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer cancel()
	context.AfterFunc(ctx, func() { time.AfterFunc(endLimit, sleep) })
	replaced := make(chan os.Signal, 1)
	signal.Notify(replaced, syscall.SIGHUP)
	both := join(inner, public)
	p := Plane{Settings: s, First: errors.Is(err, os.ErrNotExist), Listener: both, Use: NewUse(time.Now), Due: new(atomic.Pointer[func(context.Context) (time.Time, error)])}
	p.Open = func() {
		p.Use.reset()
		both.open()
		report(Usable)
		time.AfterFunc(settled, func() {
			debug.SetGCPercent(gcPercent)
			debug.FreeOSMemory()
		})
		go func() {
			if !p.waitDone(ctx, replaced) {
				return // it is ended
			}
			both.shut()      // what comes from here on waits in the socket, for the next process
			at := p.due(ctx) // what was asked for a moment ago is in it
			if at.IsZero() {
				at = time.Unix(0, 0)
			}
			again.Store(fmt.Sprintf(" %d", at.Unix()))
			cancel()
		}()
	}
	return run(ctx, p)
}

// due is when the control plane has work of its own again; the zero time is never.
func (p Plane) due(ctx context.Context) time.Time {
	if due := p.Due.Load(); due != nil {
		if at, err := (*due)(ctx); err == nil {
			return at
		}
	}
	return time.Now().Add(unknown)
}

// waitDone returns when nobody uses the control plane and it has nothing to do soon; false when ctx ends.
func (p Plane) waitDone(ctx context.Context, replaced <-chan os.Signal) bool {
	for {
		p.Use.waitIdle(ctx, func(used bool) time.Duration {
			if p.Work && !used {
				return min(p.Idle, workIdle)
			}
			return p.Idle
		}, replaced)
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
