package backup

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path"
	"path/filepath"
	"strings"

	"rivulet/appliance/engine/datastore"
	"rivulet/appliance/state/archive"
	"rivulet/appliance/state/paths"
	"rivulet/offload/nodeagent/filetree"
)

// Source is the input of a backup.
type Source struct {
	Paths
	// CopyStore writes a consistent copy of state.db: the supervisor's open store, or one that the caller has opened.
	CopyStore func(w io.Writer) error
	// VClusters writes a tar of all virtual clusters, one folder each; nil leaves them out. The folder leftOut contains
	// those that are missing.
	VClusters func(w io.Writer) error
	// LeftOut is called with each virtual cluster or volume that is not in the backup, or only in part, and the reason.
	LeftOut  func(what, why string)
	Manifest Manifest // all but what Write sets
	// Volumes adds local volumes. They are copied file by file while pods write.
	Volumes bool
	// Passphrase encrypts the stream if it is not empty.
	Passphrase string
}

// File is what can be read back.
type File interface {
	io.Writer
	io.ReaderAt
}

// WriteFile writes a backup to an empty file and reads it back, as Write and Verify do.
func WriteFile(ctx context.Context, out File, src Source) error {
	if err := Write(ctx, out, src); err != nil {
		return err
	}
	return Verify(ctx, io.NewSectionReader(out, 0, math.MaxInt64), src.Passphrase)
}

// Write writes a backup to out. After an error out contains no valid backup, and a restore refuses it.
func Write(ctx context.Context, out io.Writer, src Source) error {
	work := filepath.Join(src.State, ".backup")
	if err := os.MkdirAll(src.State, 0o700); err != nil {
		return fmt.Errorf("backup: %w; run as root", err)
	}
	release, err := lockFile(work + ".lock")
	if err != nil {
		return err
	}
	defer release()
	defer os.RemoveAll(work)
	os.RemoveAll(work) // left by a killed backup
	if err := os.Mkdir(work, 0o700); err != nil {
		return fmt.Errorf("backup: %w; look at the disk (space, read-only mount)", err)
	}
	objects, err := src.objects(ctx, filepath.Join(work, datastoreName))
	if err != nil {
		return err
	}
	var store bytes.Buffer // identity and peers: small
	if err := src.CopyStore(&store); err != nil {
		return err
	}
	w, err := archive.NewWriter(out, src.Passphrase, src.Manifest.Created)
	if err == nil {
		err = members{w}.all(ctx, src, objects, store.Bytes())
	}
	if err == nil {
		err = w.Close()
	}
	return failed(err)
}

// objects returns the file with the objects, a copy at place, or of what leads to them in an SQL server; then it sets the
// manifest's SQL.
func (src *Source) objects(ctx context.Context, place string) (string, error) {
	c, err := datastore.LoadSQLCluster(src.State)
	if err != nil || c.Database == "" {
		return place, errors.Join(err, snapshot(ctx, paths.Datastore(src.State), place))
	}
	src.Manifest.SQL = c.Database
	return paths.SQLCluster(src.State), nil
}

func failed(err error) error {
	if err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	return nil
}

// members adds members to a stream.
type members struct{ *archive.Writer }

func (a members) all(ctx context.Context, src Source, objects string, store []byte) error {
	m := src.Manifest
	m.Format, m.Volumes, m.VClusters = Format, src.Volumes, src.VClusters != nil
	head, err := json.MarshalIndent(m, "", "  ")
	if err == nil {
		err = a.Bytes(manifestName, append(head, '\n'))
	}
	if err == nil {
		err = a.Bytes(storeName, store)
	}
	if err == nil {
		err = a.path(ctx, m.objects(), objects)
	}
	if err != nil {
		return err
	}
	for name, file := range map[string]string{gatewayName: paths.Gateway(src.State), deviceName: paths.DeviceStore(src.State)} {
		if err := a.path(ctx, name, file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := a.path(ctx, passwordName, filepath.Join(src.Node, "password")); err != nil {
		return fmt.Errorf("%w; wait until `rivulet status` says Ready", err)
	}
	err = a.tree(ctx, serverDir, paths.Server(src.State), skipServer)
	if err == nil && src.Config != "" {
		err = a.tree(ctx, configDir, src.Config, skipConfig)
	}
	if err == nil && src.VClusters != nil {
		err = a.vclusters(src)
	}
	if err == nil && src.Volumes {
		err = a.volumes(ctx, src)
	}
	return err
}

// leftOut is the folder of the reasons.
const leftOut = ".left-out"

// maxReason bounds one reason, bytes.
const maxReason = 4 << 10

// vclusters adds the virtual clusters.
func (a members) vclusters(src Source) error {
	r, w := io.Pipe()
	defer r.Close()
	go func() { w.CloseWithError(src.VClusters(w)) }()
	for in := tar.NewReader(r); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("virtual clusters: %w; see: rivulet vcluster list", err)
		}
		if dir, name := path.Split(h.Name); dir == leftOut+"/" {
			why, err := io.ReadAll(io.LimitReader(in, maxReason))
			if err != nil {
				return err
			}
			src.leave("virtual cluster "+name, string(why))
			continue
		}
		h.Name = path.Join(vclustersDir, h.Name)
		if h.ModTime = src.Manifest.Created; h.Typeflag == tar.TypeDir {
			err = a.Header(h)
		} else {
			err = a.File(h, in)
		}
		if err != nil {
			return err
		}
	}
}

// skipServer leaves out files that must not be copied one by one (the datastore), and those that every start writes
// again with the paths of its device.
func skipServer(name string, e fs.DirEntry) bool {
	switch name {
	case "db", "etc", "static", "tls/temporary-certs", "manifests/rivulet-engine.yaml":
		return true
	}
	// The engine writes a kubeconfig, with paths of the device, when it creates the client certificate: with a restored
	// certificate it would never create the kubeconfig.
	client, _ := path.Match("tls/client-*.crt", name)
	authority, _ := path.Match("tls/client-ca*", name)
	return client && !authority || path.Ext(name) == ".kubeconfig" || e.Type()&fs.ModeSymlink != 0
}

// skipConfig leaves out what a restore has set aside there.
func skipConfig(name string, _ fs.DirEntry) bool {
	return strings.HasPrefix(name, asidePrefix) || strings.HasPrefix(path.Base(name), stagePrefix)
}

// tree adds all files below dir under prefix. A missing folder counts as empty, and a file that disappears meanwhile
// was deleted in time.
func (a members) tree(ctx context.Context, prefix, dir string, skip func(name string, e fs.DirEntry) bool) error {
	return filepath.WalkDir(dir, func(at string, e fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case at == dir:
			return nil
		}
		name, err := filepath.Rel(dir, at)
		if err != nil {
			return err
		}
		if skip(name, e) {
			if e.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		err = a.path(ctx, path.Join(prefix, name), at)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
}

// volumes adds the volumes. Pods, also tenants', choose what is in them: one that cannot be saved does not keep the device
// without a backup.
func (a members) volumes(ctx context.Context, src Source) error {
	dir := paths.Volumes(src.State)
	all, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) { // there never was a volume
		return nil
	}
	if err != nil {
		return err
	}
	for _, v := range all {
		why := error(nil)
		if v.IsDir() { // what is too deep or too large for a walk is known before anything of it is written
			why = filetree.Visit(ctx, filepath.Join(dir, v.Name()), func(*filetree.Entry) error { return nil })
		}
		if why == nil {
			why, err = a.volume(ctx, dir, v)
		}
		if err = errors.Join(err, ctx.Err()); err != nil {
			return err
		}
		if why != nil {
			src.leave("volume "+v.Name(), why.Error())
		}
	}
	return nil
}

// volume adds one volume; why is what is wrong with it, err anything else. Pods change it meanwhile: each file is opened
// by identity, not by path (package filetree).
func (a members) volume(ctx context.Context, dir string, v fs.DirEntry) (why, err error) {
	at := path.Join(storageDir, v.Name())
	if !v.IsDir() {
		return nil, a.path(ctx, at, filepath.Join(dir, v.Name()))
	}
	why = filetree.Visit(ctx, filepath.Join(dir, v.Name()), func(e *filetree.Entry) error {
		name := at
		if e.Path != "." {
			name = path.Join(at, e.Path)
		}
		m, wrong := open(name, e.Info, e.Readlink, e.Open)
		if wrong == nil {
			err = a.add(m)
		}
		return errors.Join(wrong, err)
	})
	if why != nil {
		why = fmt.Errorf("only a part of it: %w", why)
	}
	return why, err
}

// leave reports what is not in the backup.
func (src *Source) leave(what, why string) {
	if src.LeftOut != nil {
		src.LeftOut(what, why)
	}
}

// path adds one file, folder or link.
func (a members) path(ctx context.Context, name, at string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m, err := open(name, func() (fs.FileInfo, error) { return os.Lstat(at) }, func() (string, error) { return os.Readlink(at) }, func() (*os.File, error) { return os.Open(at) })
	if err != nil {
		return err
	}
	return a.add(m)
}

// member is a file, a folder or a link before it is added.
type member struct {
	*tar.Header          // nil: sockets, pipes and devices contain no data
	content     *os.File // of a file; add closes it
}

// open reads everything about a member but its content.
func open(name string, info func() (fs.FileInfo, error), readlink func() (string, error), content func() (*os.File, error)) (m member, err error) {
	fi, err := info()
	if err != nil {
		return m, err
	}
	link := ""
	switch fi.Mode().Type() {
	case fs.ModeSymlink:
		link, err = readlink()
	case fs.ModeDir:
	case 0:
		if m.content, err = content(); err == nil {
			fi, err = m.content.Stat() // of the opened file
		}
	default:
		return m, nil
	}
	if err == nil {
		m.Header, err = tar.FileInfoHeader(fi, link)
	}
	if err != nil {
		if m.content != nil {
			m.content.Close()
		}
		return m, err
	}
	m.Name = name
	return m, nil
}

func (a members) add(m member) error {
	if m.content != nil {
		defer m.content.Close()
		return a.File(m.Header, m.content)
	}
	if m.Header == nil {
		return nil
	}
	return a.Header(m.Header)
}
