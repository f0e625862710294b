// Package bundle embeds the static helper programs that a device needs beside the rivulet binary, and puts them on disk
// (docs/design/bundle.md). It reads what the build embedded (build tag bundle; nothing without it) and alone writes the
// folder given to Unpack:
//
//	.lock              one process at a time
//	current -> <id>    the folder in PATH; the path stays the same across upgrades
//	<id>/              bin/ images/ netfilter/ gateway/ manifest.json .checked; the previous one stays
//
// A bundle is unpacked beside its place, synced and renamed: a power cut leaves a complete one or none. Restart: files
// with other attributes are hashed again, damaged ones unpacked again. Failure: an error of rivulet run with a cure.
package bundle

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
)

// ErrNone is the error of a binary that was built without its bundle.
var ErrNone = errors.New("bundle: this binary carries no helpers: build it with make build")

// Info describes the embedded bundle without unpacking it.
type Info struct {
	// SHA256 of the packed bundle, hex; it names the bundle's folder.
	SHA256 string `json:"sha256"`
	// Versions of its parts, as read from the binaries.
	Versions map[string]string `json:"versions"`
}

// Embedded returns the packed bundle, a tar compressed with zstd. It reports false if the binary was built without one.
func Embedded() (string, bool) { return packed, len(packed) > 0 }

// Versions returns the versions of runc, containerd (the shim), cni, iptables and wireguard (the tunnel) in the bundle;
// empty without a bundle.
func Versions() map[string]string {
	info, err := embeddedInfo()
	if err != nil {
		return map[string]string{}
	}
	return maps.Clone(info.Versions)
}

func embeddedInfo() (Info, error) {
	if _, ok := Embedded(); !ok {
		return Info{}, ErrNone
	}
	var info Info
	if err := json.Unmarshal(packedInfo, &info); err != nil {
		return Info{}, fmt.Errorf("bundle: %w: build it again with make build", err)
	}
	return info, nil
}

// Dir is a bundle on disk.
type Dir struct {
	root string // the folder given to Unpack
	id   string
}

// ID is the SHA-256 of the packed bundle, hex.
func (d Dir) ID() string { return d.id }

// Bin is the folder for PATH. The path stays the same when the bundle is upgraded, so shims that outlive the upgrade
// still find runc.
func (d Dir) Bin() string { return filepath.Join(d.root, current, "bin") }

// Path is the path of a program of the bundle, for example rivulet-tunnel.
func (d Dir) Path(name string) string { return filepath.Join(d.Bin(), name) }

// Netfilter is the folder with iptables. It has the folders nft and legacy, one of which goes into PATH (see package
// rivulet/appliance/engine/iptables).
func (d Dir) Netfilter() string { return filepath.Join(d.root, current, "netfilter") }

// Image is the path of an image archive (docker-archive tar): pause or hello.
func (d Dir) Image(name string) string {
	return filepath.Join(d.root, d.id, "images", name+".tar")
}

// Intact reports whether the files have the attributes they had when they were last hashed. It costs a dozen calls of
// lstat.
func (d Dir) Intact() bool {
	at, err := os.Readlink(filepath.Join(d.root, current))
	return err == nil && at == d.id && checked(filepath.Join(d.root, d.id))
}

// Verify hashes every file and names the first that differs from the one that was built.
func (d Dir) Verify() error { return verify(filepath.Join(d.root, d.id)) }

// Unpack makes sure that the embedded bundle is completely on disk below dir, and returns it. Several processes may
// call it at once.
func Unpack(dir string, log *slog.Logger) (Dir, error) {
	info, err := embeddedInfo()
	if err != nil {
		return Dir{}, err
	}
	return unpack(dir, source{id: info.SHA256, data: packed}, log)
}

// PauseImage and HelloImage are the names of the images in Image("pause") and Image("hello"): the sandbox of pods, and an
// example for the guide.
const (
	PauseImage = "rivulet.dev/pause:1"
	HelloImage = "rivulet.dev/hello:1"
)
