// Package bundle carries the static helpers that a device needs beside the
// rivulet binary itself (runc, the containerd shim, the CNI plugins, the tunnel,
// the pause image, and iptables for hosts that have none) inside that binary, and
// puts them on disk.
//
// It reads what the build embedded (build tag bundle; without it there is
// nothing) and alone writes the folder given to Unpack:
//
//	bundle/
//	 ├─ .lock                 one process at a time
//	 ├─ current -> <sha256>   what PATH points to, stable across upgrades
//	 ├─ <sha256>/             named by the hash of the packed bundle
//	 │   ├─ bin/ images/ netfilter/
//	 │   ├─ manifest.json     hash and size of every file
//	 │   └─ .checked          what the files looked like when last hashed
//	 └─ <sha256>/             the one before, for whatever still runs from it
//
// A bundle is unpacked once, beside its place, synced and renamed into it: a
// power cut leaves a whole bundle or none. After a restart every file is looked
// at (size, mode, times, inode) and hashed again if it looks different; a bundle
// that is damaged is logged and unpacked again. What the user sees of a failure
// is an error of rivulet run that names the folder and says what to do.
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

// Info is known of the embedded bundle without unpacking it.
type Info struct {
	// SHA256 of the packed bundle, hex; its folder is called so.
	SHA256 string `json:"sha256"`
	// Versions of what is in it, as the binaries themselves say.
	Versions map[string]string `json:"versions"`
}

// Embedded returns the packed bundle, a zstd compressed tar. It reports false if
// the binary was built without one.
func Embedded() (string, bool) { return packed, len(packed) > 0 }

// Versions returns the versions of runc, containerd (the shim), cni, iptables
// and wireguard (the tunnel) in the bundle. It is empty if there is no bundle.
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

// Bin is the folder for PATH. The path stays the same when the bundle is
// upgraded: shims that outlive the upgrade find runc where it was.
func (d Dir) Bin() string { return filepath.Join(d.root, current, "bin") }

// Path is the path of a program of the bundle, for example rivulet-tunnel.
func (d Dir) Path(name string) string { return filepath.Join(d.Bin(), name) }

// Netfilter is the folder with iptables: in it are nft and legacy, one of which
// goes into PATH (see package rivulet/appliance/engine/iptables).
func (d Dir) Netfilter() string { return filepath.Join(d.root, current, "netfilter") }

// Image is the path of an image archive (docker-archive tar), for example pause.
func (d Dir) Image(name string) string {
	return filepath.Join(d.root, d.id, "images", name+".tar")
}

// Intact reports whether the files look as they did when they were last hashed.
// It costs a dozen calls of lstat.
func (d Dir) Intact() bool {
	at, err := os.Readlink(filepath.Join(d.root, current))
	return err == nil && at == d.id && checked(filepath.Join(d.root, d.id))
}

// Verify hashes every file, however it looks, and names the first that is not
// what it was when the bundle was built.
func (d Dir) Verify() error { return verify(filepath.Join(d.root, d.id)) }

// Unpack makes sure that the embedded bundle is on disk below dir, whole, and
// returns it. It may be called by several processes at once.
func Unpack(dir string, log *slog.Logger) (Dir, error) {
	info, err := embeddedInfo()
	if err != nil {
		return Dir{}, err
	}
	return unpack(dir, source{id: info.SHA256, data: packed}, log)
}

// PauseImage is the name of the image in Image("pause").
const PauseImage = "rivulet.dev/pause:1"
