// Package appliance puts Rivulet together: it is the one place where the
// subsystems are made and handed to each other, and only cmd imports it.
//
// It reads the command line's Config and the configuration, and alone writes <state>/state.db (through
// package store) and <run>/supervisor.pid. After a restart everything is found
// again from these and from Kubernetes; pods and the tunnel were not touched.
package appliance

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"k8s.io/client-go/kubernetes"

	"rivulet/appliance/addons/volumes"
	"rivulet/appliance/config"
	"rivulet/appliance/diagnose/problems"
	"rivulet/appliance/health"
	"rivulet/appliance/lifetime/backup"
	"rivulet/appliance/lifetime/firstboot"
	"rivulet/appliance/lifetime/upgrade"
	"rivulet/appliance/machine/host"
	"rivulet/appliance/machine/memory"
	"rivulet/appliance/state/bolt"
	"rivulet/appliance/state/identity"
	"rivulet/fabric/rpc"
)

// Dirs are the folders Rivulet keeps things in.
type Dirs struct {
	State string // kept: state.db, bundle, k3s
	Run   string // gone at boot: sockets, PID files
}

// Config is what the command line says. All of it is needed.
type Config struct {
	Dirs       Dirs
	EngineName string // argv[0] of the engine
	// Source is where the user's settings come from; Run adds where to keep the last good ones.
	Source config.Source
	Log    *slog.Logger
}

// What every cluster uses, so that overlap is the normal case and well tested.
var (
	podCIDR       = netip.MustParsePrefix("10.42.0.0/16")
	serviceCIDR   = netip.MustParsePrefix("10.43.0.0/16")
	clusterDNS    = netip.MustParseAddr("10.43.0.10")
	tunnelAddress = netip.MustParseAddr("10.42.255.254") // in the last /24, which no node gets before 255 others
	nodeRange     = netip.MustParsePrefix("100.127.0.0/16")
)

const (
	storeFile       = "state.db"
	controlPort     = 7442 // TCP control, UDP tunnel
	tunnelInterface = "riv0"
	dnsPort         = 1053
	clusterDomain   = "cluster.local"
)

// ErrRestart is returned by Run when the supervisor stopped in order to be started
// again: an upgrade is staged.
var ErrRestart = errors.New("appliance: to be started again")

// Run is the appliance: it blocks until ctx ends or something fails that
// starting again does not cure.
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
	st, recovered, err := openStore(cfg.Dirs)
	if err != nil {
		return err
	}
	defer st.Close()
	pidFile := filepath.Join(cfg.Dirs.Run, "supervisor.pid")
	if err := writePID(pidFile); err != nil {
		return err
	}
	defer os.Remove(pidFile)

	id, err := identity.Load(st)
	if err != nil {
		return err
	}
	settings := openSettings(cfg, facts)
	nodeName, err := host.NodeName(st, settings.Now().Config.Name, os.Hostname, "rivulet-"+id.ID().Short())
	if err != nil {
		return err
	}
	self, err := rpc.NewIdentity(id.Key, nodeName)
	if err != nil {
		return err
	}
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("appliance: %w", err)
	}
	sys := &System{
		cfg: cfg, exe: exe, facts: facts, store: st, id: id, self: self,
		nodeName: nodeName, nodeIP: identity.NodeAddress(id.ID()),
		volumes:  volumes.NewLocal(filepath.Join(cfg.Dirs.State, "storage"), nodeName),
		settings: newSettings(settings),
	}
	problems.Recovered(&sys.health, recovered, cfg.Log)
	sys.reportSetAside()
	firstboot.ReportInitrd("/", &sys.health, cfg.Log)
	firstboot.Report("/", &sys.health, cfg.Log)
	if tooLow := host.RaiseLimits(); len(tooLow) > 0 {
		sys.health.Set(health.Limits, strings.Join(tooLow, ", ")+" cannot be raised from here; containers may fail with \"too many open files\"",
			"sysctl -w fs.inotify.max_user_instances=8192 fs.inotify.max_user_watches=524288")
	}
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

// openStore opens the store, or its copy in its place where it is damaged: then
// recovered says so.
func openStore(dirs Dirs) (st *bolt.Store, recovered *bolt.Recovered, err error) {
	path := filepath.Join(dirs.State, storeFile)
	st, err = bolt.Open(path)
	switch {
	case errors.Is(err, bolt.ErrInUse):
		return nil, nil, fmt.Errorf("rivulet already runs here (%s has %s): %w; look at it with: rivulet status",
			holder(dirs), dirs.State, err)
	case errors.Is(err, bolt.ErrDamaged):
		r, rerr := bolt.Recover(path, err)
		if rerr != nil {
			return nil, nil, rerr
		}
		st, err = bolt.Open(path)
		return st, &r, err
	}
	return st, nil, err
}

// holder names the process that has the store open.
func holder(dirs Dirs) string {
	if pid, ok := host.Opener(filepath.Join(dirs.State, storeFile)); ok {
		return fmt.Sprintf("pid %d", pid)
	}
	if raw, err := os.ReadFile(filepath.Join(dirs.Run, "supervisor.pid")); err == nil {
		return "pid " + strings.TrimSpace(string(raw))
	}
	return "another process"
}

func writePID(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("appliance: %w; choose another folder with --runtime", err)
	}
	if err := os.WriteFile(path, []byte(strconv.Itoa(os.Getpid())+"\n"), 0o644); err != nil {
		return fmt.Errorf("appliance: %w", err)
	}
	return nil
}
