// Package reset restores a device to its first day, without changes to the operating system or the installation. It
// reads and alone removes files in the state folder, with the supervisor stopped and its traces removed (package
// cleanup); without factory, identity, WireGuard key and configuration are kept. Power cut: it may be run again; the
// datastore is removed first, in one step, so that no cluster is left with half of its objects.
package reset

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"rivulet/appliance/lifetime/cleanup"
	"rivulet/appliance/machine/host"
	"rivulet/appliance/state/bolt"
	"rivulet/appliance/state/paths"
	"rivulet/fabric/peer"
	"rivulet/fabric/trust"
)

// kept is what stays in the state folder: the identity, and what belongs to the installation and not to the cluster.
var kept = []string{"state.db", "state.db.copy", "bundle", "versions", "config.yaml", "config.good.yaml"}

// State removes the cluster from a state folder, or everything with factory.
func State(folder string, factory bool) (removed []string, err error) {
	return state(folder, factory, "")
}

// Worker removes the cluster that a device was before it joined the one of server.
func Worker(folder string, server peer.ID) (removed []string, err error) {
	return state(folder, false, server)
}

func state(folder string, factory bool, server peer.ID) (removed []string, err error) {
	if _, err := os.Stat(folder); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if pid, ok := host.Opener(paths.Store(folder)); ok {
		return nil, fmt.Errorf("reset: process %d, which is no other than Rivulet, uses %s; stop what starts it (with systemd: sudo systemctl stop rivulet) and run this again", pid, folder)
	}
	// k3s would treat a folder with missing files as one to repair.
	gone := filepath.Join(folder, "k3s.removed")
	if err := cleanup.RemoveAll(gone); err != nil { // left by an interrupted reset
		return nil, err
	}
	if err := os.Rename(filepath.Join(folder, "k3s"), gone); err == nil {
		removed = append(removed, "k3s")
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("reset: %w; look at the disk", err)
	}
	if !factory {
		// The cluster goes on with its identity on another device.
		if _, err := os.Stat(paths.DeviceStore(folder)); err == nil {
			if err := bolt.Replace(paths.DeviceStore(folder), paths.Store(folder)); err != nil {
				return removed, err
			}
		}
		if n, err := forgetPeers(filepath.Join(folder, "state.db"), server); err != nil {
			return removed, err
		} else if n > 0 {
			removed = append(removed, fmt.Sprintf("%d peers", n))
		}
	}
	entries, err := os.ReadDir(folder)
	if err != nil {
		return removed, fmt.Errorf("reset: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if !factory && slices.Contains(kept, e.Name()) || server != "" && e.Name() == filepath.Base(paths.Worker(folder)) {
			continue
		}
		if err := cleanup.RemoveAll(filepath.Join(folder, e.Name())); err != nil {
			errs = append(errs, err)
			continue
		}
		if e.Name() != filepath.Base(gone) {
			removed = append(removed, e.Name())
		}
	}
	return removed, errors.Join(errs...)
}

// forgetPeers removes the trust in all peers but one and decisions about others; peers that still exist are discovered
// again.
func forgetPeers(path string, but peer.ID) (n int, err error) {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	st, err := bolt.Open(path)
	if err != nil {
		return 0, fmt.Errorf("%w; or forget who this device is as well: rivulet reset --factory", err)
	}
	defer st.Close()
	peers, err := st.Peers()
	if err != nil {
		return 0, fmt.Errorf("reset: %w; forget who this device is as well: rivulet reset --factory", err)
	}
	if err := trust.Clear(st); err != nil {
		return 0, err
	}
	for _, p := range peers {
		if p.ID == but {
			continue
		}
		if err := st.DeletePeer(p.ID); err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}
