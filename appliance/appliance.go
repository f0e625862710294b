// Package appliance connects the subsystems of Rivulet: it is the only place that creates them and passes them to each
// other, and only cmd imports it.
//
// It reads the command line's Config, and alone has <state>/state.db (package bolt) and <run>/supervisor.pid open. A
// subsystem is a type with a Run in one of the groups below; its Run is a component of System. Restart: all state is
// read from state.db and from Kubernetes; pods and the tunnel continue meanwhile.
package appliance

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"time"

	"k8s.io/client-go/kubernetes"

	"rivulet/appliance/addons/volumes"
	"rivulet/appliance/config"
	"rivulet/appliance/diagnose/problems"
	"rivulet/appliance/lifetime/backup"
	"rivulet/appliance/lifetime/firstboot"
	"rivulet/appliance/lifetime/nodes"
	"rivulet/appliance/lifetime/upgrade"
	"rivulet/appliance/machine/host"
	"rivulet/appliance/machine/memory"
	"rivulet/appliance/machine/usage"
	"rivulet/appliance/network"
	"rivulet/appliance/state/bolt"
	"rivulet/appliance/state/identity"
	"rivulet/appliance/state/paths"
	"rivulet/appliance/state/quarantine"
	"rivulet/fabric/rpc"
)

// Dirs are Rivulet's folders.
type Dirs struct {
	State string // permanent: state.db, bundle, k3s
	Run   string // empty after a boot: sockets, PID files
}

// Config has the settings of the command line. All of it is required.
type Config struct {
	Dirs       Dirs
	EngineName string // argv[0] of the engine
	// Source is the source of the user's settings; Run adds where to store the last good ones.
	Source config.Source
	Log    *slog.Logger
}

// ErrRestart is returned by Run when the supervisor stopped for a restart into a staged upgrade.
var ErrRestart = errors.New("appliance: to be started again")

// Run is the appliance: it blocks until ctx ends or a failure that a restart does not cure.
func Run(ctx context.Context, cfg Config) error {
	host.CompletePath()
	facts, err := host.Probe()
	if err != nil {
		return err
	}
	memory.For(facts.MemoryBytes).Supervisor.Breathe()
	go memory.KeepTrimmed(ctx)
	if err := bolt.MakeFolder(cfg.Dirs.State); err != nil {
		return err
	}
	if done, err := backup.Finish(cfg.Dirs.State); err != nil {
		return err
	} else if done {
		cfg.Log.Info("a restore that was interrupted is finished")
	}
	role, err := nodes.Begin(ctx, cfg.Dirs.State, cfg.Dirs.Run, cfg.EngineName, cfg.Log)
	if err != nil {
		return err
	}
	st, recovered, err := openStore(cfg.Dirs)
	if err != nil {
		return err
	}
	defer st.Close()
	if err := errors.Join(usage.WritePID(cfg.Dirs.Run), network.UseRanges(ctx, cfg.Dirs.State, cfg.Log)); err != nil {
		return err
	}
	defer os.Remove(usage.PIDFile(cfg.Dirs.Run))
	id, err := identity.Load(st)
	if err != nil {
		return err
	}
	cfg.Source.Keep, cfg.Source.Host, cfg.Source.Cluster = paths.GoodConfig(cfg.Dirs.State), config.Host{CPUs: runtime.NumCPU(), MemoryBytes: facts.MemoryBytes}, role.ClusterSettings()
	settings := config.Open(cfg.Source)
	settings.Now().Config.UseProxy() // before the first request of anybody
	nodeName, err := host.NodeName(st, settings.Now().Config.Name, os.Hostname, "rivulet-"+id.ID().Short())
	if err != nil {
		return err
	}
	self, err := rpc.NewIdentity(id.Key, nodeName)
	exe, xerr := os.Executable()
	if err := errors.Join(err, xerr); err != nil {
		return fmt.Errorf("appliance: %w", err)
	}
	sys := &System{
		cfg: cfg, exe: exe, facts: facts, store: st, id: id, self: self, worker: role, begun: time.Now(),
		nodeName: nodeName, nodeIP: network.NodeAddress(id.ID()), virtual: network.VirtualAddresses(id.ID()),
		volumes:  volumes.NewLocal(paths.Volumes(cfg.Dirs.State), nodeName),
		settings: &config.Follower{Current: settings, NodeName: nodeName, Log: cfg.Log},
	}
	problems.Recovered(&sys.health, recovered, cfg.Log)
	sys.health.SetAside(quarantine.All(cfg.Dirs.State))
	role.Report(&sys.health)
	firstboot.Follow(ctx, &sys.health, cfg.Log)
	host.RaiseLimits(&sys.health)
	cfg.Log.Info("rivulet starts", "name", sys.name(), "node", nodeName, "id", id.ID(), "node_address", sys.nodeIP)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	sys.upgrade = &upgrade.Handover{
		State: cfg.Dirs.State, Client: func() kubernetes.Interface { return sys.engine.Client() }, Restart: func() { cancel(ErrRestart) }, Health: &sys.health, Log: cfg.Log,
	}
	if err = sys.run(ctx); err == nil && errors.Is(context.Cause(ctx), ErrRestart) {
		return ErrRestart
	}
	if err == nil {
		cfg.Log.Info("rivulet stops; pods and the tunnel stay as they are")
	}
	return err
}

// openStore opens the store, or replaces a damaged one by its copy; then recovered is set.
func openStore(dirs Dirs) (st *bolt.Store, recovered *bolt.Recovered, err error) {
	path := paths.Store(dirs.State)
	if st, recovered, err = bolt.OpenOrRecover(path); errors.Is(err, bolt.ErrInUse) {
		err = fmt.Errorf("rivulet already runs here (%s has %s): %w; look at it with: rivulet status", usage.Holder(path, dirs.Run), dirs.State, err)
	}
	return st, recovered, err
}
