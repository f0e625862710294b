package firstboot

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"rivulet/appliance/config"
	"rivulet/image/device/layout"
)

const (
	// NetworkFolder is the folder on the boot partition with files of systemd-networkd and iwd.
	NetworkFolder = "network"
	// NetworkErrorName is the file on the boot partition with the errors of that folder.
	NetworkErrorName = NetworkFolder + ".error.txt"

	networkdDir = "/etc/systemd/network"
	// ofCard begins the names of the card's files there, before those of the image: the first that matches wins.
	ofCard = "10-card-"
	// signInDir has certificates, keys, and the sign-in of the cable.
	signInDir = "/etc/rivulet/network"

	maxNetworkFiles = 32
)

// Networks records what was taken from the folder.
type Networks struct {
	// Card is the digest of the folder as it was left, empty for none.
	Card     string          `json:"card,omitempty"`
	Files    []string        `json:"files,omitempty"`
	Problems config.Problems `json:"problems,omitempty"`
}

// folder is the folder while it is checked.
type folder struct {
	files map[string][]byte // by their names on the card
	fresh []string          // files of an interrupted replacement
	// kept returns the device's copy of a file, nil for none.
	kept     func(path string) []byte
	sheets   map[string]*sheet
	out      map[string][]byte // what the device gets, by path
	left     map[string][]byte // what stays on the card, by name
	problems config.Problems
}

// NetworkFiles reads and checks a folder as a device without a copy of it will that has these networks of rivulet.yaml.
func NetworkFiles(dir string, wifi []config.WiFi) (map[string][]byte, config.Problems, error) {
	f := folder{kept: func(string) []byte { return nil }}
	if err := f.read(dir); err != nil {
		return nil, nil, err
	}
	f.check()
	for _, w := range wifi {
		path, _ := network(w)
		f.apart(path)
	}
	return f.files, f.problems, nil
}

// apart adds a problem if rivulet.yaml makes the same file of the device.
func (f *folder) apart(path string) {
	if f.out[path] != nil {
		f.problem("", 0, "it has the network of "+filepath.Base(path)+", as wifi in "+config.CardName, "remove one of them")
	}
}

// problem adds one; line 0 is the file as a whole, and name "" the folder.
func (f *folder) problem(name string, line int, text, cure string) {
	f.problems = append(f.problems, config.Problem{File: strings.TrimSuffix(NetworkFolder+"/"+name, "/"), Line: line, Column: min(line, 1), Text: text, Cure: cure})
}

// read reads the files of a folder. Files that a PC adds by itself are passed over.
func (f *folder) read(dir string) error {
	f.files = map[string][]byte{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	names := map[string]bool{}
	for _, e := range entries {
		names[e.Name()] = true
	}
	for _, e := range entries {
		name := e.Name()
		if low := strings.ToLower(name); strings.HasPrefix(name, ".") || low == "desktop.ini" || low == "thumbs.db" {
			continue
		}
		as, fresh := strings.CutSuffix(name, ".new")
		if fresh {
			f.fresh = append(f.fresh, name)
			if names[as] {
				continue
			}
		}
		switch fi, err := e.Info(); {
		case err != nil:
			return err
		case !fi.Mode().IsRegular():
			f.problem(name, 0, "it is no file", "put the files into the folder itself")
		case fi.Size() > maxCard:
			f.problem(name, 0, "it is longer than 64 KiB", "remove it, if it does not belong here")
		case len(f.files) == maxNetworkFiles:
			f.problem("", 0, fmt.Sprintf("there are more than %d files", maxNetworkFiles), "remove those that the device does not need")
			return nil
		default:
			if f.files[as], err = os.ReadFile(filepath.Join(dir, name)); err != nil {
				return err
			}
		}
	}
	return nil
}

// digest identifies a folder's content, with files replaced; empty for one without files.
func (f *folder) digest(replaced map[string][]byte) string {
	var all []byte
	for _, name := range slices.Sorted(maps.Keys(f.files)) {
		raw, ok := replaced[name]
		if !ok {
			raw = f.files[name]
		}
		all = fmt.Appendf(all, "%s %s\n", name, digest(raw))
	}
	return digest(all)
}

// network takes the folder over as a whole, or with a mistake not at all: then the device keeps the networks that it has.
func (b *boot) network() error {
	b.now.Network = b.was.Network
	entries, err := os.ReadDir(b.disk.path(b.dev.Boot))
	if err != nil || len(entries) == 0 {
		return nil //nolint:nilerr // without its boot partition the device keeps its networks
	}
	f := folder{kept: func(path string) []byte { raw, _ := b.disk.read(path); return raw }}
	dir := NetworkFolder
	for _, e := range entries {
		if e.IsDir() && strings.EqualFold(e.Name(), NetworkFolder) {
			dir = e.Name()
			if err := f.read(b.disk.path(b.card(dir))); err != nil {
				f.problem("", 0, "it cannot be read: "+err.Error(), "repair the boot partition in a PC, or flash the card again")
			}
		}
	}
	said, err := b.disk.read(b.card(NetworkErrorName))
	if f.digest(nil) == b.was.Network.Card && len(f.fresh) == 0 && len(f.problems) == 0 && err == nil && said == nil {
		return nil
	}
	f.check()
	for _, path := range b.now.Files {
		f.apart(path)
	}
	if len(f.problems) == 0 {
		if err := b.takeNetworks(&f); err != nil {
			return err
		}
	}
	if err := b.leaveNetworks(dir, &f); err != nil {
		f.problem("", 0, "the boot partition cannot be written to: "+err.Error(), "remove the passwords from the files yourself, once the device has them")
	}
	b.now.Network.Problems, b.now.Network.Card = f.problems, unread
	if len(f.problems) == 0 {
		b.now.Network.Card = f.digest(f.left)
	}
	return nil
}

// takeNetworks writes the device's files, and removes those of an earlier folder.
func (b *boot) takeNetworks(f *folder) error {
	old := b.was.Network.Files
	for _, pattern := range networkGlobs { // after a power cut the note may lack some
		found, _ := filepath.Glob(b.disk.path(pattern)) // the pattern is good
		for _, path := range found {
			old = append(old, strings.TrimPrefix(path, b.disk.path("/")))
		}
	}
	b.now.Network.Files = slices.Sorted(maps.Keys(f.out))
	for _, path := range b.now.Network.Files {
		mode := os.FileMode(0o600)
		if filepath.Dir(path) == networkdDir {
			mode = 0o644 // systemd-networkd is not root
		}
		if err := b.disk.write(path, f.out[path], mode); err != nil {
			return err
		}
	}
	for _, path := range old {
		if path = filepath.Join("/", path); !slices.Contains(b.now.Network.Files, path) && !slices.Contains(b.now.Files, path) {
			if err := b.disk.remove(path); err != nil {
				return err
			}
		}
	}
	return nil
}

// networkGlobs find all files of the folder but those of iwd.
var networkGlobs = []string{networkdDir + "/" + ofCard + "*", signInDir + "/*"}

// leaveNetworks writes the errors to the boot partition, and removes the secrets that the device has.
func (b *boot) leaveNetworks(dir string, f *folder) error {
	if failed, err := b.disk.read(layout.DataFailed); err == nil && failed != nil || len(f.problems) > 0 {
		f.left = nil // the device's own copies are in memory, or there are none
	}
	for name, text := range f.left {
		if bytes.Equal(text, f.files[name]) {
			delete(f.left, name)
		}
	}
	said, err := b.disk.read(b.card(NetworkErrorName))
	if err != nil {
		return err
	}
	errors := explain("the folder "+NetworkFolder+". Nothing of the folder was taken, and the device keeps the networks that it had", f.problems)
	if len(f.left) == 0 && len(f.fresh) == 0 && bytes.Equal(said, errors) {
		return nil
	}
	if b.dev.Open != nil {
		shut, err := b.dev.Open()
		if err != nil {
			return err
		}
		defer shut()
	}
	if errors == nil {
		err = b.disk.remove(b.card(NetworkErrorName))
	} else {
		err = b.disk.write(b.card(NetworkErrorName), errors, 0o644)
	}
	if err != nil {
		return err
	}
	for _, name := range f.fresh { // the only copy, or half of one
		path := b.card(filepath.Join(dir, name))
		as := strings.TrimSuffix(path, ".new")
		replace := func() error { return b.disk.rename(path, as) }
		if _, err := os.Lstat(b.disk.path(as)); err == nil {
			replace = func() error { return b.disk.remove(path) }
		}
		if err := replace(); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(f.left)) {
		if err := b.disk.write(b.card(filepath.Join(dir, name)), f.left[name], 0o644); err != nil {
			return err
		}
	}
	return nil
}

// sortProblems puts them in the order of files and lines.
func (f *folder) sortProblems() {
	slices.SortStableFunc(f.problems, func(x, y config.Problem) int {
		return cmp.Or(strings.Compare(x.File, y.File), cmp.Compare(x.Line, y.Line))
	})
}
