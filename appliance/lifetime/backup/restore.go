package backup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"rivulet/appliance/engine/datastore"
	"rivulet/appliance/machine/host"
	"rivulet/appliance/state/bolt"
	"rivulet/appliance/state/durable"
	"rivulet/appliance/state/paths"
	"rivulet/appliance/state/role"
	"rivulet/fabric/changes"
)

// Options are those of a restore.
type Options struct {
	// Over allows an existing cluster to be set aside.
	Over bool
	// Name is another name of the cluster for its peers; empty keeps the old one.
	Name       string
	Passphrase string
	Kubernetes string    // version in this program
	Now        time.Time // for names of what is set aside
	// DataOnly keeps the configuration, volumes and the agent's files: for an update that is undone on its own device.
	DataOnly bool
}

// Report is the result of a restore.
type Report struct {
	Manifest Manifest `json:"manifest"`
	// Aside is where the old cluster is now, empty if there was none.
	Aside string `json:"aside,omitempty"`
}

// ErrExists is returned if there is a cluster and Options.Over is not set.
var ErrExists = errors.New("a cluster is here already")

// Restore replaces the cluster here by that of a stream. Nothing is changed until all of it was read, checked and
// written beside the old. Rivulet must not be running.
func Restore(ctx context.Context, in io.Reader, at Paths, o Options) (Report, error) {
	if err := os.MkdirAll(at.State, 0o700); err != nil {
		return Report{}, fmt.Errorf("backup: %w; run as root", err)
	}
	release, err := lockFile(filepath.Join(at.State, workDir) + ".lock")
	if err != nil {
		return Report{}, err
	}
	defer release()
	if _, err := finish(at.State); err != nil { // completes an earlier one first
		return Report{}, err
	}
	// All files of the role are set aside below, so that a step which can never be done is over.
	if step := role.Of(at.State).Step; step != "" && !role.Stuck(at.State) {
		return Report{}, fmt.Errorf("backup: this device is in the middle of a change of what it is in its cluster (%s); nothing was changed; have that finished first: systemctl start rivulet, and when rivulet status answers: systemctl stop rivulet", step)
	}
	there := exists(at.State)
	if there && !o.Over {
		return Report{}, fmt.Errorf("backup: %w (%s); add --yes to set it aside (it is kept) and take the backup's place", ErrExists, at.State)
	}
	unlock, err := lockStore(filepath.Join(at.State, storeName))
	if err != nil {
		return Report{}, err
	}
	defer unlock()

	if err := waitEngine(ctx, at.State); err != nil {
		return Report{}, err
	}
	staged := filepath.Join(at.State, workDir, "new")
	if err := os.MkdirAll(staged, 0o700); err != nil {
		return Report{}, fmt.Errorf("backup: %w; nothing was changed", durable.Cure(err))
	}
	m, err := prepare(ctx, in, at, staged, o)
	if err != nil {
		os.RemoveAll(filepath.Join(at.State, workDir))
		return Report{}, err
	}
	p, err := steps(at, staged, m, o)
	if err == nil {
		err = p.decide(at.State)
	}
	if err != nil {
		os.RemoveAll(filepath.Join(at.State, workDir))
		clearStaged(at.Config)
		return Report{}, fmt.Errorf("backup: %w; nothing was changed", durable.Cure(err))
	}
	if _, err := finish(at.State); err != nil {
		return Report{}, err
	}
	r := Report{Manifest: m}
	if there {
		r.Aside = aside(at.State, o)
	}
	return r, nil
}

// exists reports whether a cluster was ever started here.
func exists(state string) bool {
	for _, file := range append(role.Files(state), paths.Store(state), bolt.CopyOf(paths.Store(state)), paths.Datastore(state)) {
		if _, err := os.Lstat(file); err == nil {
			return true
		}
	}
	return false
}

// lockStore holds the supervisor's lock, even on a damaged state.db, so that none runs and none starts meanwhile.
func lockStore(path string) (unlock func(), err error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return func() {}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("backup: %w; run as root", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, errors.New("backup: rivulet is running here; stop it first (pods go on meanwhile): systemctl stop rivulet")
	}
	return func() { f.Close() }, nil
}

// engineEnd is how long the engine of a killed supervisor may take to end.
const engineEnd = 20 * time.Second

// waitEngine returns once no process has the datastore open.
func waitEngine(ctx context.Context, state string) error {
	deadline := time.Now().Add(engineEnd)
	for {
		pid, ok := host.Opener(paths.Datastore(state))
		if !ok {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("backup: the engine (pid %d) still has the datastore open; nothing was changed; stop it first: systemctl stop rivulet", pid)
		}
		if !changes.Wait(ctx, 100*time.Millisecond) {
			return ctx.Err()
		}
	}
}

// prepare stages the stream and adapts it to this device.
func prepare(ctx context.Context, in io.Reader, at Paths, staged string, o Options) (Manifest, error) {
	m, err := stage(ctx, in, o.Passphrase, o.Kubernetes, staged)
	if err != nil {
		return m, err
	}
	if m.SQL == "" {
		if err := placeDatabase(ctx, staged); err != nil {
			return m, err
		}
	}
	if o.Name != "" {
		if err := rename(filepath.Join(staged, configDir, configFile), o.Name); err != nil {
			return m, err
		}
	}
	return m, nil
}

// placeDatabase moves the database to its place in the folder of the engine's server.
func placeDatabase(ctx context.Context, staged string) error {
	database := filepath.Join(staged, datastoreName)
	if err := datastore.PutBack(ctx, database); err != nil {
		return err
	}
	db := filepath.Join(staged, serverDir, "db")
	if err := os.MkdirAll(db, 0o700); err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	if err := os.Rename(database, filepath.Join(db, "state.db")); err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	return nil
}

func aside(state string, o Options) string {
	name := asidePrefix + o.Now.UTC().Format("20060102T150405Z")
	if o.DataOnly {
		name = "before-rollback-" + o.Now.UTC().Format("20060102T150405Z")
	}
	return filepath.Join(state, name)
}

// steps returns the moves. The datastore is the last part of the state: without it there is nothing that could be
// started as a cluster.
func steps(at Paths, staged string, m Manifest, o Options) (plan, error) {
	old := aside(at.State, o)
	p := plan{Format: Format, Begun: o.Now}
	put := func(name, place string) {
		p.Steps = append(p.Steps, step{New: filepath.Join(staged, name), Place: filepath.Join(at.State, place), Aside: filepath.Join(old, place)})
	}
	put(storeName, storeName)
	for _, file := range append(role.Files(at.State), bolt.CopyOf(paths.Store(at.State))) { // the old ones must not outlive what they belong to
		name := filepath.Base(file)
		put(name, name)
		if _, err := os.Lstat(filepath.Join(staged, name)); err != nil {
			p.Steps[len(p.Steps)-1].New = ""
		}
	}
	// Snapshots of the old datastore must not be used to recover the restored one.
	p.Steps = append(p.Steps, step{Place: datastore.Snapshots(at.State), Aside: filepath.Join(old, "snapshots")})
	put("node", "k3s-node")
	// It has served, though not here: damage does not make the engine begin it anew.
	settled := filepath.Base(paths.Settled(at.State))
	if err := os.WriteFile(filepath.Join(staged, settled), nil, 0o600); err != nil {
		return p, err
	}
	put(settled, settled)
	if m.Volumes && !o.DataOnly {
		if err := os.MkdirAll(filepath.Join(staged, storageDir), 0o755); err != nil { // the backup may contain none
			return p, err
		}
		put(storageDir, "storage")
	}
	if m.VClusters {
		if err := os.MkdirAll(filepath.Join(staged, vclustersDir), 0o700); err != nil { // the backup may contain none
			return p, err
		}
		if !o.DataOnly {
			put(vclustersDir, vclustersDir)
		} else if err := p.putEach(put, staged, filepath.Join(at.State, vclustersDir), filepath.Join(old, vclustersDir)); err != nil {
			return p, err
		}
	}
	if !o.DataOnly {
		// The agent's certificates are of the old cluster; its images and pods stay, and the kubelet ends pods that are
		// unknown in the restored cluster.
		for _, pattern := range []string{"*.crt", "*.key", "*.kubeconfig"} {
			found, err := filepath.Glob(paths.Agent(at.State, pattern))
			if err != nil {
				return p, err
			}
			for _, f := range found {
				p.Steps = append(p.Steps, step{Place: f, Aside: filepath.Join(old, "k3s/agent", filepath.Base(f))})
			}
		}
		config, err := stageConfig(at.Config, filepath.Join(staged, configDir), filepath.Base(old), o.Now)
		if err != nil {
			return p, err
		}
		p.Steps = append(p.Steps, config...)
		if s, ok := foreignNode(at, staged, old); ok {
			p.Steps = append(p.Steps, s...)
		}
	}
	put(serverDir, "k3s/server")
	return p, nil
}

// putEach moves the virtual clusters of an update that is undone, one by one: one that is not in its snapshot, for want of
// a copy or because it was made since, stays where it is. One with the UID of another in the snapshot was made in the place
// of that one, when it had been deleted: it is set aside, as two would have one user and one port.
func (p *plan) putEach(put func(name, place string), staged, here, old string) error {
	back, err := users(filepath.Join(staged, vclustersDir))
	if err != nil {
		return err
	}
	present, err := users(here)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	taken := map[int]bool{}
	for _, uid := range back {
		taken[uid] = uid != 0
	}
	for name, uid := range present {
		if _, replaced := back[name]; !replaced && taken[uid] {
			p.Steps = append(p.Steps, step{Place: filepath.Join(here, name), Aside: filepath.Join(old, name)})
		}
	}
	for name := range back {
		name := filepath.Join(vclustersDir, name)
		put(name, name)
	}
	return nil
}

// users returns the UIDs of the virtual clusters in a folder; 0 if a record cannot be read.
func users(dir string) (map[string]int, error) {
	entries, err := os.ReadDir(dir)
	out := map[string]int{}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		var r struct{ UID int }
		raw, err := os.ReadFile(filepath.Join(dir, e.Name(), "vcluster.json"))
		if err != nil || json.Unmarshal(raw, &r) != nil {
			r.UID = 0
		}
		out[e.Name()] = r.UID
	}
	return out, err
}

// foreignNode is for a host whose /etc/rancher/node is a separate folder, where k3s reads the node's password.
func foreignNode(at Paths, staged, old string) ([]step, bool) {
	fi, err := os.Lstat(at.Node)
	if err != nil || !fi.IsDir() {
		return nil, false
	}
	fresh := filepath.Join(at.Node, stagePrefix+"password")
	raw, err := os.ReadFile(filepath.Join(staged, passwordName))
	if err != nil || os.WriteFile(fresh, raw, 0o600) != nil {
		return nil, false
	}
	return []step{{New: fresh, Place: filepath.Join(at.Node, "password"), Aside: filepath.Join(at.Node, filepath.Base(old), "password")}}, true
}
