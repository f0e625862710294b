package vcluster

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"rivulet/appliance/engine/controlplane"
	"rivulet/appliance/state/archive"
	"rivulet/appliance/state/durable"
	"rivulet/appliance/version"
)

// A snapshot is an archive of these members:
//
//	snapshot.json  contents, versions, time
//	secret/ tls/   authorities, the key of service account tokens
//	claims.json    its claims at the host
//	db/            the datastore: SQLite's file, and its log
//	claims/N/      the data of a claim in pieces, in the format of a volume transfer
//
// Supervisors copy the datastore and never open it: the tenant controls its content.
const (
	snapshotFormat   = 2
	snapshotManifest = "snapshot.json"
	maxManifest      = 64 << 10
	maxKey           = 64 << 10
	// MaxDatastore bounds the datastore in a snapshot, bytes.
	MaxDatastore = 4 << 30

	restorePrefix = ".restore-"
)

// Members of a snapshot beside the manifest. Leaf certificates are issued again by the authorities.
var (
	keyMembers = []string{
		"secret/server-ca.crt", "secret/server-ca.key", "secret/client-ca.crt", "secret/client-ca.key",
		"tls/kubelet-ca.crt", "tls/kubelet-ca.key", "tls/users-ca.crt", "tls/users-ca.key", "tls/sa.key", "tls/sa.pub",
	}
	// usersMembers are not in a snapshot of a version without them; its virtual cluster gets new ones at its start.
	usersMembers = []string{"tls/users-ca.crt", "tls/users-ca.key"}
	dataMembers  = []string{"db/state.db", "db/state.db-wal"}
)

// Manifest describes the contents of a snapshot.
type Manifest struct {
	Format     int       `json:"format"`
	Rivulet    string    `json:"rivulet"`
	Kubernetes string    `json:"kubernetes"`
	Created    time.Time `json:"created"`
	Spec       Spec      `json:"spec"`
}

// Snapshot is a copy of a virtual cluster.
type Snapshot struct {
	c        *cluster
	manifest Manifest
	claims   []Claim
}

func (c *cluster) copyDir() string { return filepath.Join(c.dir(), "copy") }

// Snapshot copies a virtual cluster. Its control plane stops while its datastore is copied; requests wait meanwhile.
// With data, the snapshot contains the data of its claims, and no pod may use one. The caller closes it.
func (k *Manager) Snapshot(ctx context.Context, name string, data bool) (*Snapshot, error) {
	c, err := k.get(name)
	if err != nil {
		return nil, err
	}
	if !c.copying.TryLock() {
		return nil, fmt.Errorf("another snapshot of %s is being made; wait for it", name)
	}
	s := &Snapshot{c: c, manifest: Manifest{Format: snapshotFormat, Rivulet: version.Version, Kubernetes: version.Kubernetes(), Created: time.Now().UTC().Truncate(time.Second)}}
	err = c.asItself(func(host storage) (err error) {
		s.claims, err = claims(ctx, host, data)
		return err
	})
	if err != nil {
		s.Close()
		return nil, err
	}
	err = c.still(ctx, "a snapshot", func() error {
		r := c.record()
		if r.Deleting {
			return fmt.Errorf("%s is being deleted; see: rivulet vcluster list", name)
		}
		s.manifest.Spec = r.Spec
		return c.copyData()
	})
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Close removes the copy.
func (s *Snapshot) Close() {
	_ = os.RemoveAll(s.c.copyDir())
	s.c.copying.Unlock()
}

// copyData copies the datastore. What the tenant has made of its files is a fault.
func (c *cluster) copyData() error {
	to := c.copyDir()
	if err := os.RemoveAll(to); err != nil {
		return diskErr(err)
	}
	if err := os.MkdirAll(filepath.Join(to, "db"), 0o700); err != nil {
		return diskErr(err)
	}
	// The tenant controls the content of the folder, links and pipes included.
	from, err := os.OpenRoot(c.dataDir())
	if err != nil {
		return fmt.Errorf("vcluster: %s has never run: %w; start it: rivulet vcluster resume %s", c.name, err, c.name)
	}
	defer from.Close()
	for i, name := range dataMembers {
		f, err := from.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if errors.Is(err, fs.ErrNotExist) && i > 0 {
			continue // the log of a datastore that was closed
		}
		if err != nil {
			err = fmt.Errorf("vcluster: the datastore of %s: %w; has it ever started? see: rivulet vcluster logs %s", c.name, err, c.name)
			if !ownError(err) {
				err = fault{err}
			}
			return err
		}
		err = copyRegular(f, filepath.Join(to, name))
		f.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// ownError reports whether the device, and not the file, is the reason of an error.
func ownError(err error) bool {
	return slices.ContainsFunc([]error{unix.EIO, unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.EACCES, unix.EPERM, unix.EINTR}, func(e error) bool { return errors.Is(err, e) })
}

// stored is what a file takes on the disk, bytes.
func stored(st fs.FileInfo) int64 { return st.Sys().(*syscall.Stat_t).Blocks * 512 }

// copyErr is the error of a copy. A file with more holes than content is the tenant's: that there is no space for it is no
// error of the device.
func copyErr(st fs.FileInfo, err error) error {
	if errors.Is(err, unix.ENOSPC) && stored(st) < st.Size()/2 {
		return fault{diskErr(err)}
	}
	return diskErr(err)
}

func copyRegular(f *os.File, to string) error {
	st, err := f.Stat()
	if err != nil {
		return diskErr(err)
	}
	if !st.Mode().IsRegular() || st.Size() > MaxDatastore {
		return fault{fmt.Errorf("vcluster: %s is no datastore of up to %d MiB; a program inside has changed it", f.Name(), MaxDatastore>>20)}
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return diskErr(err)
	}
	_, err = io.Copy(out, io.LimitReader(f, MaxDatastore))
	return copyErr(st, errors.Join(err, out.Close()))
}

// Write writes the snapshot. After an error, out does not hold a valid one.
func (s *Snapshot) Write(ctx context.Context, out io.Writer) error {
	w, err := archive.NewWriter(out, "", s.manifest.Created)
	if err != nil {
		return err
	}
	head, err := json.MarshalIndent(s.manifest, "", "  ")
	if err != nil {
		return err
	}
	if err := w.Bytes(snapshotManifest, append(head, '\n')); err != nil {
		return err
	}
	if _, err := s.c.pki().authority("users-ca", s.c.tlsDir()); err != nil { // of one that has not started since this version
		return err
	}
	for _, name := range keyMembers {
		raw, err := os.ReadFile(s.c.keyFile(name))
		if err != nil {
			return diskErr(err)
		}
		if err := w.Bytes(name, raw); err != nil {
			return err
		}
	}
	list, err := json.Marshal(s.claims)
	if err != nil {
		return err
	}
	if err := w.Bytes(claimsMember, list); err != nil {
		return err
	}
	for _, name := range dataMembers {
		if err := ctx.Err(); err != nil {
			return err
		}
		f, err := os.Open(filepath.Join(s.c.copyDir(), name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return diskErr(err)
		}
		st, err := f.Stat()
		if err == nil {
			err = w.File(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o600, Size: st.Size(), ModTime: s.manifest.Created}, f)
		}
		f.Close()
		if err != nil {
			return err
		}
	}
	if err := s.c.asItself(func(host storage) error { return writeClaims(ctx, host, w, s.claims) }); err != nil {
		return err
	}
	return w.Close()
}

// keyFile returns the path of a member of keyMembers.
func (c *cluster) keyFile(member string) string {
	dir, name := path.Split(member)
	if dir == "tls/" {
		return filepath.Join(c.tlsDir(), name)
	}
	return filepath.Join(c.secretDir(), name)
}

func unusable(format string, args ...any) error {
	return fmt.Errorf("this snapshot cannot be used: %w; nothing was changed", fmt.Errorf(format, args...))
}

// Restore creates a virtual cluster from a snapshot and starts it: under its own name with its own authorities, so that
// credentials of users stay valid, or with as, a copy of another name without any of its credentials.
func (k *Manager) Restore(ctx context.Context, in io.Reader, as string) (View, error) {
	if err := os.MkdirAll(k.folder(), 0o700); err != nil {
		return View{}, diskErr(err)
	}
	dir, err := os.MkdirTemp(k.folder(), restorePrefix)
	if err != nil {
		return View{}, diskErr(err)
	}
	defer os.RemoveAll(dir)
	s := stager{k: k, dir: dir, as: as}
	names, err := archive.Read(ctx, in, "", s.member)
	if wrong := new(archive.Error); errors.As(err, &wrong) {
		return View{}, unusable("%w", err)
	}
	if err != nil {
		return View{}, err
	}
	older := !names[usersMembers[0]] && !names[usersMembers[1]]
	for _, name := range append(slices.Clone(keyMembers), dataMembers[0], claimsMember) {
		if !names[name] && !(older && slices.Contains(usersMembers, name)) {
			return View{}, unusable("%s is missing in it; take another file", name)
		}
	}
	c, brought, err := s.begin(ctx)
	if err != nil {
		return View{}, err
	}
	select {
	case err = <-brought:
	case <-c.done:
		err = errors.New("rivulet stops; restore the snapshot again")
	}
	if err == nil {
		err = c.change(func(r *record) { r.Restoring = false })
	}
	if err != nil {
		return View{}, errors.Join(err, k.Delete(ctx, c.name))
	}
	c.wake()
	return c.view(c.k.room.free()), nil
}

// begin starts the virtual cluster's goroutine, which restores its claims before the first start.
func (s *stager) begin(ctx context.Context) (*cluster, <-chan error, error) {
	s.k.mu.Lock()
	defer s.k.mu.Unlock()
	r, err := s.k.newRecord(s.spec)
	if err != nil {
		return nil, nil, err
	}
	r.Restoring = true
	if err := s.finish(r); err != nil {
		return nil, nil, err
	}
	brought := make(chan error, 1)
	c := newCluster(s.k, r)
	c.errands = []errand{{"the restore", func() error { return c.bring(ctx) }, brought}}
	s.k.keep(c)
	s.k.changed.Notify()
	return c, brought, nil
}

// stager unpacks the members of a snapshot into the folder of a new virtual cluster.
type stager struct {
	k    *Manager
	dir  string
	as   string
	spec Spec

	claims []Claim
	chunks map[int]int // of a claim's data, so far
}

func (s *stager) member(h *tar.Header, content io.Reader) error {
	switch {
	case s.spec.Name == "" && h.Name != snapshotManifest:
		return unusable("it does not begin with %s, so it is no snapshot of a virtual cluster; look at the file's name", snapshotManifest)
	case s.spec.Name == "":
		return s.manifest(content)
	case h.Typeflag != tar.TypeReg:
		return unusable("%.60q is not a file; take another copy of it", h.Name)
	case slices.Contains(keyMembers, h.Name):
		if s.as != "" {
			return nil
		}
		raw, err := io.ReadAll(io.LimitReader(content, maxKey))
		if err != nil {
			return err
		}
		return s.file(h.Name, bytes.NewReader(raw))
	case h.Name == claimsMember:
		return s.claimsList(content)
	case strings.HasPrefix(h.Name, claimsPrefix):
		return s.claimData(h, content)
	case slices.Contains(dataMembers, h.Name):
		if h.Size > MaxDatastore {
			return unusable("%s has more than %d GiB", h.Name, MaxDatastore>>30)
		}
		return s.file(h.Name, content)
	}
	return unusable("%.60q has no place in it; take another copy of the file", h.Name)
}

func (s *stager) manifest(content io.Reader) error {
	var m Manifest
	if err := json.NewDecoder(io.LimitReader(content, maxManifest)).Decode(&m); err != nil {
		return unusable("its manifest cannot be read: %w; take another copy of the file", err)
	}
	if m.Format < 1 || m.Format > snapshotFormat {
		return unusable("its format is %d, this rivulet (%s) knows 1 to %d; use rivulet %.40s", m.Format, version.Version, snapshotFormat, m.Rivulet)
	}
	if err := version.CanRead(version.Kubernetes(), m.Kubernetes, m.Rivulet); err != nil {
		return unusable("%w", err)
	}
	if s.as != "" {
		m.Spec.Name = s.as
	}
	if err := m.Spec.Check(); err != nil {
		return unusable("%w", err)
	}
	if _, err := s.k.get(m.Spec.Name); err == nil { // before gigabytes are read
		return fmt.Errorf("there is a virtual cluster %s already; delete it, or restore a copy under another name with --as", m.Spec.Name)
	}
	s.spec = m.Spec
	return nil
}

// place returns the path of a member in the folder of a virtual cluster.
func (s *stager) place(member string) string {
	switch dir, rest, _ := strings.Cut(member, "/"); dir {
	case "tls":
		return filepath.Join(s.dir, "root", controlplane.TLS, rest)
	case "db":
		return filepath.Join(s.dir, "root", controlplane.Data, dir, rest)
	}
	return filepath.Join(s.dir, member)
}

func (s *stager) file(member string, content io.Reader) error {
	at := s.place(member)
	if err := os.MkdirAll(filepath.Dir(at), 0o700); err != nil {
		return diskErr(err)
	}
	f, err := os.OpenFile(at, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return diskErr(err)
	}
	_, err = io.Copy(f, content)
	return diskErr(errors.Join(err, f.Sync(), f.Close()))
}

// finish sets owners, and then renames the folder to its final name.
func (s *stager) finish(r record) error {
	for _, name := range keyMembers {
		if at := s.place(name); s.as == "" && strings.HasPrefix(name, "tls/") {
			if err := errors.Join(os.Chown(at, 0, r.UID), os.Chmod(at, 0o640)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return diskErr(err)
			}
		}
	}
	data := filepath.Dir(s.place(dataMembers[0]))
	for _, at := range []string{filepath.Join(data, "state.db"), filepath.Join(data, "state.db-wal"), data, filepath.Dir(data)} {
		if err := os.Lchown(at, r.UID, r.UID); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return diskErr(err)
		}
	}
	raw, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := writeFile(filepath.Join(s.dir, recordName), raw, 0o600, 0); err != nil {
		return err
	}
	if err := durable.SyncDir(data); err != nil {
		return diskErr(err)
	}
	return diskErr(durable.Rename(s.dir, filepath.Join(s.k.folder(), r.Name)))
}
