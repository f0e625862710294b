package slots

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"rivulet/image/device/layout"
)

const (
	maxManifest = 1 << 20
	// maxBoot bounds all files of a boot folder, bytes: two of them have to fit.
	maxBoot = 80 << 20
)

var (
	// ErrBundle is in every error about an invalid bundle.
	ErrBundle = errors.New("slots: the update bundle is not good")
	// ErrSlot is in every error of writing a slot; the running one is unchanged.
	ErrSlot = errors.New("slots: the other slot could not be written, the one that runs is as it was")
)

func bad(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrBundle, fmt.Errorf(format, args...))
}

// IsBundle reports whether a file is a tar, and so no binary.
func IsBundle(file string) bool {
	f, err := os.Open(file)
	if err != nil {
		return false
	}
	defer f.Close()
	head := make([]byte, 512)
	_, err = io.ReadFull(f, head)
	return err == nil && bytes.HasPrefix(head[257:], []byte("ustar"))
}

// Read reads a bundle once and compares every file with the manifest. digest receives the whole file, to verify its
// signature; take, which may be nil, receives each file after the manifest.
func Read(ctx context.Context, r io.Reader, digest io.Writer, take func(m layout.Manifest, f layout.File, content io.Reader) error) (layout.Manifest, error) {
	var m layout.Manifest
	all := bufio.NewReaderSize(io.TeeReader(r, digest), 1<<20)
	t := tar.NewReader(all)
	h, err := t.Next()
	if err != nil || h.Name != layout.ManifestName || h.Size > maxManifest {
		return m, bad("it does not begin with %s; get the bundle of a release once more", layout.ManifestName)
	}
	if err := json.NewDecoder(t).Decode(&m); err != nil {
		return m, bad("%s: %w; get it once more", layout.ManifestName, err)
	}
	if err := sound(m); err != nil {
		return m, err
	}
	for _, want := range m.Files {
		if err := ctx.Err(); err != nil {
			return m, err
		}
		h, err := t.Next()
		if err != nil || h.Name != want.Name || h.Size != want.Size || h.Typeflag != tar.TypeReg {
			return m, bad("%s is missing or not where it belongs; get it once more", want.Name)
		}
		c := &content{ctx: ctx, r: t, sum: sha256.New()}
		if take != nil {
			if err := take(m, want, c); err != nil {
				return m, err
			}
		}
		if _, err := io.Copy(io.Discard, c); err != nil {
			return m, bad("%s: %w; get it once more", want.Name, err)
		}
		if hex.EncodeToString(c.sum.Sum(nil)) != want.SHA256 {
			return m, bad("%s is damaged; get it once more", want.Name)
		}
	}
	if _, err := t.Next(); !errors.Is(err, io.EOF) {
		return m, bad("there is more in it than its manifest says; get it once more")
	}
	_, err = io.Copy(io.Discard, all) // content after a tar's end is signed, too
	return m, err
}

// content hashes what is read of a file.
type content struct {
	ctx context.Context
	r   io.Reader
	sum hash.Hash
}

func (c *content) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := c.r.Read(p)
	c.sum.Write(p[:n])
	return n, err
}

// sound checks a manifest: plain names, a root that fits, enough to boot.
func sound(m layout.Manifest) error {
	if m.Version == "" || m.Kubernetes == "" || m.Arch == "" {
		return bad("its manifest does not say version, kubernetes and arch; get the bundle of a release")
	}
	boot, root := int64(0), false
	seen := map[string]bool{}
	for _, f := range m.Files {
		name, inBoot := strings.CutPrefix(f.Name, layout.BootPrefix)
		switch {
		case f.Size <= 0 || seen[strings.ToLower(f.Name)]:
			return bad("%s is empty or there twice; get the bundle of a release", f.Name)
		case f.Name == layout.RootName && f.Size <= layout.RootSize:
			root = true
		case inBoot && path.IsAbs("/"+name) && path.Clean("/"+name) == "/"+name && name != "":
			boot += f.Size
		default:
			return bad("%q (%d bytes) belongs to no slot; get the bundle of a release", f.Name, f.Size)
		}
		seen[strings.ToLower(f.Name)] = true
	}
	if !root || boot == 0 || boot > maxBoot {
		return bad("it has no root or no kernel, or they are too large; get the bundle of a release")
	}
	return nil
}

// Root is a slot's partition.
type Root interface {
	io.WriterAt
	io.ReaderAt
	Sync() error
}

// Fill writes a bundle into a cleared slot, and reads back what it wrote. Words that the owner has added to the running
// slot's command line are added to this one's. The bundle was checked before; digest shows afterwards whether it has
// changed.
func Fill(ctx context.Context, r io.Reader, digest io.Writer, b Boot, root Root, forget func(), to layout.Slot) (layout.Manifest, error) {
	version, err := nextVersion(b)
	if err != nil {
		return layout.Manifest{}, failed(err)
	}
	added, err := addedWords(b, to.Other())
	if err != nil {
		return layout.Manifest{}, failed(err)
	}
	if err := b.Remove(to.String()); err != nil {
		return layout.Manifest{}, failed(err)
	}
	return Read(ctx, r, digest, func(_ layout.Manifest, f layout.File, content io.Reader) error {
		if f.Name == layout.RootName {
			return fillRoot(ctx, root, forget, f, content)
		}
		raw, err := io.ReadAll(content)
		if err != nil {
			return bad("%s: %w; get it once more", f.Name, err)
		}
		name := strings.TrimPrefix(f.Name, layout.BootPrefix)
		if layout.HasSlot(name) {
			raw = []byte(layout.Add(name, layout.Fill(string(raw), to, version), added))
		}
		if n := len(bytes.TrimSpace(raw)); name == layout.CommandFile && n > layout.CommandLimit {
			return failed(fmt.Errorf("the kernel's command line would have %d characters with the words that were added in %s on the boot partition, and %d are read; remove some there", n, path.Join(to.Other().String(), name), layout.CommandLimit))
		}
		at := path.Join(to.String(), name)
		if err := b.Write(at, raw); err != nil {
			return failed(err)
		}
		if back, err := b.Read(at); err != nil || !bytes.Equal(back, raw) {
			return failed(fmt.Errorf("%s is not read back as it was written (%v); look at the disk (dmesg)", at, err))
		}
		return nil
	})
}

// addedWords returns the words that the owner has added to a slot's command line, for whichever loader.
func addedWords(b Boot, s layout.Slot) (added []string, err error) {
	files := []string{path.Join(s.String(), layout.CommandFile), path.Join(s.String(), layout.SyslinuxEntry)}
	names, err := entriesOf(b, s)
	if err != nil {
		return nil, err
	}
	for _, n := range names {
		files = append(files, path.Join(entries, n))
	}
	for _, f := range files {
		raw, err := b.Read(f)
		if errors.Is(err, fs.ErrNotExist) {
			continue // of another loader
		}
		if err != nil {
			return nil, err
		}
		for _, w := range layout.Added(f, string(raw), s) {
			if !slices.Contains(added, w) {
				added = append(added, w)
			}
		}
	}
	return added, nil
}

func failed(err error) error { return fmt.Errorf("%w: %w", ErrSlot, err) }

// fillRoot writes a slot's partition and reads it back from the disk.
func fillRoot(ctx context.Context, root Root, forget func(), f layout.File, from io.Reader) error {
	buf := make([]byte, 4<<20)
	for at := int64(0); at < f.Size; {
		n, err := io.ReadFull(from, buf[:min(int64(len(buf)), f.Size-at)])
		if err != nil {
			return bad("%s: %w; get it once more", f.Name, err)
		}
		_, err = root.WriteAt(buf[:n], at)
		if at += int64(n); err == nil && (at%(64<<20) == 0 || at == f.Size) {
			err = root.Sync()
		}
		if err != nil {
			return failed(fmt.Errorf("%w; look at the disk (dmesg)", err))
		}
	}
	forget()
	sum := sha256.New()
	if _, err := io.Copy(io.Discard, &content{ctx: ctx, r: io.NewSectionReader(root, 0, f.Size), sum: sum}); err != nil {
		return failed(fmt.Errorf("reading back: %w; look at the disk (dmesg)", err))
	}
	if hex.EncodeToString(sum.Sum(nil)) != f.SHA256 {
		return failed(errors.New("the root is not read back as it was written; the disk is bad, or the bundle changed meanwhile"))
	}
	return nil
}
