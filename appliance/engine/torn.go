package engine

import (
	"context"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"rivulet/appliance/state/paths"
	"rivulet/appliance/state/quarantine"
)

// k3s writes keys, certificates and passwords without syncing them. After a power cut they may exist without content,
// and k3s, which trusts every existing file, then ends at every start. So they are synced once the API serves (Settle),
// and damaged ones are removed before the next start (repairTorn): k3s creates leaf certificates again. What it cannot
// create again (authorities, the key of service accounts) can only be damaged before the first Settle of a cluster,
// when no user has used it: then it is set aside and the cluster is created again. A restored cluster is settled from
// the start.

// settledFile marks that a cluster's keys are on the disk. A restore of a backup writes it, too: that cluster has served
// elsewhere.
func (e *Engine) settledFile() string { return paths.Settled(e.cfg.StateDir) }

// Settle makes all files of the engine so far survive a power cut. It is called when the API serves.
func (e *Engine) Settle() error {
	dir, err := os.Open(e.cfg.StateDir)
	if err != nil {
		return fmt.Errorf("engine: %w", err)
	}
	defer dir.Close()
	if err := unix.Syncfs(int(dir.Fd())); err != nil {
		return fmt.Errorf("engine: %w; look at the disk", err)
	}
	if _, err := os.Stat(e.settledFile()); err == nil {
		return nil
	}
	return writeFile(e.settledFile(), "")
}

// Settled reports whether the cluster has served at least once, here or where it was restored from.
func (e *Engine) Settled() bool {
	_, err := os.Stat(e.settledFile())
	return err == nil
}

// ErrKeysLost is returned for damage to what k3s cannot create again.
var ErrKeysLost = errors.New("the cluster's own keys are damaged")

// repairTorn removes files that lost their content in a power cut.
func (e *Engine) repairTorn() error {
	torn, lasting, err := findTorn(e.DataDir())
	if err != nil {
		return err
	}
	if len(lasting) > 0 {
		return e.BeginAnew(strings.Join(lasting, ", "))
	}
	for _, path := range torn {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("engine: %w; look at the disk (read-only mount)", err)
		}
	}
	if len(torn) > 0 {
		e.cfg.Log.Warn("files that a power cut has torn were removed; the engine makes them anew", "files", torn)
	}
	return e.repairPassword()
}

// BeginAnew sets a cluster aside that was damaged before it ever served, so that another begins; for one that has served
// it returns ErrKeysLost and changes nothing. That a cluster is not known to have served does not prove that it has not, so
// what is set aside is for a person to delete.
func (e *Engine) BeginAnew(torn string) error {
	if e.Settled() {
		return fmt.Errorf("engine: %w (%s); restore a backup, or begin anew with an empty cluster by moving %s away",
			ErrKeysLost, torn, e.DataDir())
	}
	aside, err := quarantine.Move(filepath.Join(e.DataDir(), "server"))
	if err != nil {
		return err
	}
	e.cfg.Log.Warn("the power was cut before the cluster was made; it is begun anew", "torn", torn, "set_aside", aside)
	return e.prepareFiles()
}

// findTorn returns the damaged key and certificate files: those that k3s creates again, each with the other half of its
// pair, and those that it does not.
func findTorn(dataDir string) (torn, lasting []string, err error) {
	for _, root := range []string{"server/tls", "agent"} {
		err := filepath.WalkDir(filepath.Join(dataDir, root), func(path string, d fs.DirEntry, err error) error {
			switch {
			case errors.Is(err, fs.ErrNotExist):
				return nil
			case err != nil:
				return err
			case d.IsDir() && root == "agent" && filepath.Dir(path) == filepath.Join(dataDir, "agent"):
				return fs.SkipDir // containerd's and the like
			case !d.Type().IsRegular() || whole(path):
				return nil
			case made(path):
				lasting = append(lasting, path)
				return nil
			}
			stem := strings.TrimSuffix(path, filepath.Ext(path))
			for _, half := range []string{stem + ".crt", stem + ".key", path} {
				if !slices.Contains(torn, half) {
					torn = append(torn, half)
				}
			}
			return nil
		})
		if err != nil {
			return nil, nil, fmt.Errorf("engine: %w; look at the disk", err)
		}
	}
	return torn, lasting, nil
}

// made reports whether a file is created once in a cluster's life.
func made(path string) bool {
	name := strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))
	return strings.HasSuffix(name, "-ca") || name == "service"
}

// whole reports whether a key, certificate or kubeconfig has its content; true for other kinds of files.
func whole(path string) bool {
	ext := filepath.Ext(path)
	if ext != ".crt" && ext != ".key" && ext != ".kubeconfig" && ext != ".json" {
		return true
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return true // an error of the disk, not a damaged file
	}
	if len(raw) == 0 || raw[0] == 0 {
		return false
	}
	if ext == ".kubeconfig" || ext == ".json" {
		return raw[len(raw)-1] != 0
	}
	block, rest := pem.Decode(raw)
	for block != nil && len(strings.TrimSpace(string(rest))) > 0 {
		block, rest = pem.Decode(rest)
	}
	return block != nil
}

// passwordLength is the number of k3s's hex digits.
const passwordLength = 32

// repairPassword removes a damaged node password; k3s creates another one, which the cluster accepts only if it has not
// seen the first (see ForgetNode).
func (e *Engine) repairPassword() error {
	path := filepath.Join(e.cfg.StateDir, "k3s-node", "password")
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("engine: %w", err)
	}
	text := strings.TrimSpace(string(raw))
	if _, err := hex.DecodeString(text); err == nil && len(text) >= passwordLength {
		return nil
	}
	e.passwordLost = true
	return os.Remove(path)
}

// forgetPassword removes a damaged password from the cluster.
func (e *Engine) forgetPassword(ctx context.Context) error {
	if !e.passwordLost {
		return nil
	}
	cfg, err := RESTConfig(e.Kubeconfig())
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	err = client.CoreV1().Secrets(metav1.NamespaceSystem).Delete(ctx, e.cfg.NodeName+".node-password.k3s", metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("engine: %w", err)
	}
	e.passwordLost = false
	return nil
}
