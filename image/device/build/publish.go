package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"rivulet/image/device/layout"
	"rivulet/image/filesum"
	"rivulet/image/sbom"
)

// name is the file name of a published part of this image.
func (j *job) name(end string) string {
	return filepath.Join(j.out, "rivulet-"+j.version+"-"+j.arch+end)
}

// bundle packs the update of a slot.
func (j *job) bundle() error {
	var names []string
	from := map[string]string{layout.RootName: filepath.Join(j.work, "root.squashfs")}
	if err := each(j.slot, func(rel string, info fs.FileInfo) error {
		if !info.IsDir() {
			name := layout.BootPrefix + filepath.ToSlash(rel)
			names, from[name] = append(names, name), filepath.Join(j.slot, rel)
		}
		return nil
	}); err != nil {
		return err
	}
	m := layout.Manifest{Version: j.version, Kubernetes: j.kubernetes, Arch: j.arch}
	for _, name := range append(names, layout.RootName) {
		sum, size, err := filesum.SHA256(from[name])
		if err != nil {
			return err
		}
		m.Files = append(m.Files, layout.File{Name: name, Size: size, SHA256: sum})
	}
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	return replace(j.name(".bundle"), func(out io.Writer) error {
		w := tar.NewWriter(out)
		add := func(name string, size int64, r io.Reader) error {
			if err := w.WriteHeader(&tar.Header{Name: name, Size: size, Mode: 0o644, ModTime: j.epoch, Format: tar.FormatUSTAR}); err != nil {
				return err
			}
			_, err := io.Copy(w, r)
			return err
		}
		if err := add(layout.ManifestName, int64(len(text)), bytes.NewReader(text)); err != nil {
			return err
		}
		for _, f := range m.Files {
			r, err := os.Open(from[f.Name])
			if err != nil {
				return err
			}
			err = add(f.Name, f.Size, r)
			r.Close()
			if err != nil {
				return err
			}
		}
		return w.Close()
	})
}

// replace writes a file beside its place and renames it.
func replace(path string, write func(io.Writer) error) error {
	f, err := os.Create(path + ".new")
	if err != nil {
		return err
	}
	defer os.Remove(path + ".new")
	if err := errors.Join(write(f), f.Close()); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

const compressedLimit = 250 << 20

// publish compresses the image and writes the files beside it.
func (j *job) publish(keepRaw bool) error {
	packed := j.name(".img.zst")
	if err := run("", "zstd", "-q", "-f", "-12", "-T0", j.rawImage(), "-o", packed); err != nil {
		return err
	}
	info, err := os.Stat(packed)
	if err != nil {
		return err
	}
	if info.Size() > compressedLimit {
		return fmt.Errorf("%s has %d MB, of %d at most", packed, info.Size()>>20, compressedLimit>>20)
	}
	ranges, err := j.mapped()
	if err != nil {
		return err
	}
	text, err := blockMap(j.rawImage(), ranges)
	if err != nil {
		return err
	}
	if err := replace(j.name(".img.bmap"), func(w io.Writer) error { _, err := w.Write(text); return err }); err != nil {
		return err
	}
	contents, err := sbom.Of(j.arch, j.binary)
	if err != nil {
		return err
	}
	if err := contents.Write(packed, j.version, j.epoch, j.debs); err != nil {
		return err
	}
	if keepRaw {
		return os.Rename(j.rawImage(), j.name(".img"))
	}
	return os.Remove(j.rawImage())
}
