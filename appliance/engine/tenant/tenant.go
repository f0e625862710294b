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
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"
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

// What a process reports, a line each.
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

// Settings are what the supervisor tells the process.
type Settings struct {
	Name string `json:"name"`
	// ID is what the host knows it by.
	ID string `json:"id"`
	// UID is user and group of the process.
	UID int `json:"uid"`
	// Idle is how long nobody may use it before it ends; 0 is for ever. After SIGHUP that is ReplaceIdle at most.
	Idle time.Duration `json:"idle"`
	// Advertise is the address that the API server names as its own.
	Advertise string `json:"advertise"`
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
	// Use counts requests from outside.
	Use *Use
	// Open is called once the API server can be used.
	Open func()
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
	report(Asleep)
	os.Exit(0)
}

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
	p := Plane{Settings: s, First: errors.Is(err, os.ErrNotExist), Listener: both, Use: NewUse(time.Now)}
	p.Open = func() {
		p.Use.touch()
		both.open()
		report(Usable)
		time.AfterFunc(settled, func() {
			debug.SetGCPercent(gcPercent)
			debug.FreeOSMemory()
		})
		go func() {
			p.Use.waitIdle(ctx, s.Idle, replaced)
			both.shut() // what comes from here on waits in the socket, for the next process
			cancel()
		}()
	}
	return run(ctx, p)
}
