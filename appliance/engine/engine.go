// Package engine runs the embedded k3s server, or k3s's agent on a worker, as a child process: it writes the files that
// k3s reads, starts it, reports when the API answers, and stops it. It imports nothing of k3s.
//
// It reads the host's facts and the bundle, and alone writes <state>/k3s-* files,
// <state>/k3s/agent/etc/containerd/config-v3.toml.tmpl, <state>/k3s/agent/images and <run>/bin. After a restart of the
// supervisor the engine is started again (the kernel ends it with the supervisor); pods continue, because each has its
// own shim. When the engine ends by itself, Run returns its last error line, and the lifecycle manager starts it again;
// also one whose API hangs (hang.go).
package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	lumberjack "github.com/natefinch/lumberjack"

	"rivulet/appliance/engine/datastore"
	"rivulet/appliance/engine/iptables"
	"rivulet/appliance/machine/host"
	"rivulet/appliance/machine/memory"
	"rivulet/appliance/machine/process"
	"rivulet/appliance/state/paths"
	"rivulet/fabric/changes"
	"rivulet/offload/nodeagent/podgate"
)

// Config is the input of New.
type Config struct {
	// Executable is this program; Argv0 its name as the k3s server.
	Executable, Argv0 string
	// StateDir and RunDir are Rivulet's folders.
	StateDir, RunDir string
	// BundleBin is the folder of the unpacked helpers.
	BundleBin string
	// Images are the bundle's archives of images, imported at each start; the pause image is one of them.
	Images []string
	// Netfilter is the folder of the bundle's iptables.
	Netfilter            string
	NodeName             string
	NodeIP               netip.Addr
	PodCIDR, ServiceCIDR netip.Prefix
	ClusterDNS           netip.Addr
	Facts                host.Facts
	// Join makes this node a worker of another device's cluster; nil is a cluster of its own.
	Join *Join
	// Elect: other devices may become the server of the cluster, so controllers elect leaders.
	Elect bool
	Settings
	Log *slog.Logger
}

// Owner is the device of an engine.
type Owner interface {
	// Settings returns those in force.
	Settings() Settings
	// Config is called before each engine is made, for all but the settings.
	Config() (Config, error)
	// Prepare is called before each start of an engine.
	Prepare(ctx context.Context, e *Engine) error
	// Answered is called with each answer of the API server to a probe, and where a restart would not help to get one.
	Answered()
	// Ended is called at the end of an engine: with nil after a requested stop in which it was not killed.
	Ended(err error)
	// NewVersion is called when the API server's version changed.
	NewVersion()
}

// The engine's ports, all TCP on the node. The host firewall closes them to the LAN, the load balancer does not use
// them for Services, and rivulet doctor reports other processes that hold them.
const (
	PortAPI     = 6443
	PortKubelet = 10250
)

// Engine is the child process and its files.
type Engine struct {
	cfg      Config
	owner    Owner           // nil: nobody is told
	iptables iptables.Choice // of this start
	again    chan string     // reason of a requested restart
	patience patience        // with an engine that does not answer
	// passwordLost: the node's password was damaged and was created again.
	passwordLost bool
	killed       error // why the last child did not end in order though its end was requested
}

// New returns an engine; nothing is started or written yet.
func New(cfg Config) *Engine { return &Engine{cfg: cfg, again: make(chan string, 1)} }

// DataDir is k3s's data folder.
func (e *Engine) DataDir() string { return DataDir(e.cfg.StateDir) }

// DataDir is k3s's data folder in a state folder.
func DataDir(stateDir string) string { return filepath.Join(stateDir, "k3s") }

// Kubeconfig is the path of the administrator's kubeconfig; k3s writes it.
func (e *Engine) Kubeconfig() string { return paths.Kubeconfig(e.cfg.StateDir) }

// CRIConfig is the path of the settings that k3s writes for crictl.
func CRIConfig(stateDir string) string {
	return paths.Agent(stateDir, "etc", "crictl.yaml")
}

// LogFile is the file of the engine's output.
func (e *Engine) LogFile() string { return paths.EngineLog(e.cfg.StateDir) }

// PIDFile has the engine's process number while it runs.
func (e *Engine) PIDFile() string { return filepath.Join(e.cfg.RunDir, "engine.pid") }

// stopGrace is how long k3s may take to end after SIGTERM.
const stopGrace = 15 * time.Second

// Restart stops the running engine in order and starts it again; why is logged. Pods continue. It does not wait.
func (e *Engine) Restart(why string) {
	select {
	case e.again <- why:
	default: // requested already
	}
}

// Run starts the engine and blocks until ctx ends (nil) or the engine does (an error). It calls ready each time the API
// begins to answer, in a new goroutine, with a context that ends with this engine process.
func (e *Engine) Run(ctx context.Context, waiting func(string, ...any), ready func(context.Context)) error {
	for {
		if again, err := e.run(ctx, waiting, ready); !again {
			return err
		}
	}
}

// run is one life of the child; again reports that another one was requested.
func (e *Engine) run(ctx context.Context, waiting func(string, ...any), ready func(context.Context)) (again bool, err error) {
	select {
	case <-e.again: // this start fulfils the request
	default:
	}
	if err := e.prepare(); err != nil {
		return false, err
	}
	if err := e.waitOld(ctx, waiting); err != nil {
		return false, err
	}
	if err := waitTools(ctx, waiting, host.MissingTools); err != nil {
		return false, nil // stopped
	}
	if err := e.waitIptables(ctx, waiting); err != nil {
		return false, nil // stopped
	}
	err = checkPort(e.cfg.NodeIP.String(), PortKubelet)
	if e.cfg.Join == nil {
		err = errors.Join(checkPort("", PortAPI), err)
	}
	if err != nil {
		return false, err
	}
	waiting("for a look at what the last run left")
	if err := e.repairTorn(); err != nil {
		return false, err
	}
	if e.owner != nil {
		if err := e.owner.Prepare(ctx, e); err != nil {
			if e.cfg.Datastore != "" {
				e.owner.Answered() // no restart here brings back a database elsewhere
			}
			return false, err
		}
	}
	waiting("for the API server")
	child, err := e.spawn(e.Args())
	if err != nil {
		return false, err
	}
	defer os.Remove(e.PIDFile())

	pctx, cancel := context.WithCancel(ctx)
	defer cancel()
	e.keepResolv(pctx)
	hung, after, begun := make(chan error, 1), e.patience.now(), time.Now()
	go func() {
		if WaitAPI(pctx, e.Kubeconfig()) != nil {
			return
		}
		if err := e.forgetPassword(pctx); err != nil {
			e.cfg.Log.Warn("the node may be refused", "err", err)
		}
		if err := e.Settle(); err != nil {
			e.cfg.Log.Warn("a power cut now may tear the engine's files", "err", err)
		}
		go ready(pctx) // the API may hang before it returns
		if e.cfg.Join != nil {
			e.answersWhileItRuns(pctx)
			return
		}
		if err := e.watchAPI(pctx, after); err != nil {
			hung <- err
		}
	}()
	select {
	case err := <-hung:
		e.patience.hung(time.Since(begun))
		_ = child.stop(e.cfg.Log) // there is an error already
		return false, fmt.Errorf("engine: %w: it hung and was ended; the whole log is %s", err, e.LogFile())
	case err := <-child.Done:
		return false, fmt.Errorf("engine: ended by itself (%w): %s; the whole log is %s", exitError(err), child.tail.lastWords(), e.LogFile())
	case why := <-e.again:
		waiting("to be started again: %s", why)
		e.cfg.Log.Info("starting the engine again", "why", why)
		e.killed = child.stop(e.cfg.Log)
		return true, nil
	case <-ctx.Done():
		e.killed = child.stop(e.cfg.Log)
		return false, nil
	}
}

// answersWhileItRuns stands in for the answers of an API server: that of a worker is another device's, whose silence is
// no reason to end pods' parts here.
func (e *Engine) answersWhileItRuns(ctx context.Context) {
	for e.owner != nil {
		e.owner.Answered()
		if !changes.Wait(ctx, hangLook) {
			return
		}
	}
}

// watchAPI returns an error once the API server hangs: no answer for the time of patience.
func (e *Engine) watchAPI(ctx context.Context, after time.Duration) error {
	api, err := apiOf(e)
	if err != nil {
		return err
	}
	api.answered()
	return hang{every: hangLook, after: after, api: api}.wait(ctx)
}

type child struct {
	*process.Child
	tail *tail
}

func (e *Engine) spawn(args []string) (*child, error) {
	if err := os.MkdirAll(filepath.Dir(e.LogFile()), 0o700); err != nil {
		return nil, fmt.Errorf("engine: %w", err)
	}
	secrets, err := e.secrets()
	if err != nil {
		return nil, err
	}
	c := &child{tail: &tail{}}
	logs := &lumberjack.Logger{Filename: e.LogFile(), MaxSize: 10, MaxBackups: 2}
	cmd := exec.Command(e.cfg.Executable, args...)
	cmd.Args[0] = e.cfg.Argv0
	cmd.Dir = "/"
	cmd.Env = append(e.environ(), secrets...)
	out := io.MultiWriter(logs, c.tail)
	cmd.Stdout, cmd.Stderr = out, out
	if c.Child, err = process.Start(cmd, syscall.SIGTERM, func() { logs.Close() }); err != nil {
		return nil, fmt.Errorf("engine: %w", err)
	}
	if err := os.WriteFile(e.PIDFile(), []byte(strconv.Itoa(c.Pid)+"\n"), 0o644); err != nil {
		_ = c.stop(e.cfg.Log) // it has not begun to serve
		return nil, fmt.Errorf("engine: %w", err)
	}
	e.cfg.Log.Info("engine started", "pid", c.Pid, "log", e.LogFile())
	return c, nil
}

func exitError(err error) error {
	if err == nil {
		return errors.New("exit status 0")
	}
	return err
}

// stop ends the child, and returns an error if it was killed: then it has not closed its database.
func (c *child) stop(log *slog.Logger) error {
	err := c.Stop(stopGrace, func() { log.Warn("engine does not end; killing it", "pid", c.Pid) })
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL {
		return fmt.Errorf("engine: %w", err)
	}
	return nil
}

// managers are variables of the service manager for the supervisor alone.
var managers = map[string]bool{"NOTIFY_SOCKET": true, "WATCHDOG_USEC": true, "WATCHDOG_PID": true}

// environ is the environment of the engine and its children. Rivulet's helpers come first in PATH, and the bundled
// iptables where the choice wants it.
func (e *Engine) environ() []string {
	path := strings.Join([]string{e.binDir(), e.cfg.BundleBin, e.iptables.PATH(os.Getenv("PATH"))}, ":")
	env := []string{"PATH=" + path, podgate.Env + "=" + podgate.Socket(e.cfg.RunDir)}
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		// May be secret.
		if name != "PATH" && !strings.HasPrefix(name, "RIVULET_") && !managers[name] && !strings.HasPrefix(name, "K3S_") {
			env = append(env, kv)
		}
	}
	// k3s passes variables with the prefix CONTAINERD_ to containerd, without it.
	return e.plan().Engine.Environ(e.plan().Containerd.Environ(env, "CONTAINERD_"), "")
}

// Datastore is the address of the SQL database with the objects, a secret; empty is the file of package kine.
func (e *Engine) Datastore() string { return e.cfg.Datastore }

// secrets are variables of an engine with an SQL server: others could read them in a command line. The engine removes
// them from its environment before it starts programs (package k3s).
func (e *Engine) secrets() ([]string, error) {
	if e.cfg.Datastore == "" || e.cfg.Join != nil { // a worker has no objects
		return nil, nil
	}
	c, err := datastore.LoadSQLCluster(e.cfg.StateDir)
	env := []string{"K3S_DATASTORE_ENDPOINT=" + e.cfg.Datastore, "K3S_TOKEN=" + c.Token}
	if e.cfg.Elect {
		env = append(env, datastore.ElectEnv+"=1")
	}
	return env, err
}

// forced is how long to wait for a killed engine of an earlier supervisor: two on one datastore would damage it.
const forced = 365 * 24 * time.Hour

// waitOld waits for the engine of a supervisor that died: the kernel has signalled it, and it may still be ending.
func (e *Engine) waitOld(ctx context.Context, waiting func(string, ...any)) error {
	err := process.EndOld(ctx, e.PIDFile(), e.cfg.Argv0, stopGrace, forced, func(pid int) {
		waiting("for the engine of an earlier run (pid %d) to end", pid)
	})
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("whether an engine of an earlier run is left is not known: %w; remove that file, when pgrep -f %s shows no process", err, e.cfg.Argv0)
	}
	return err
}

// plan is the memory plan for this machine.
func (e *Engine) plan() memory.Plan { return memory.For(e.cfg.Facts.MemoryBytes) }
