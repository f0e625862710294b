package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Errors that callers tell apart.
var (
	ErrNoLab = errors.New("no lab")
	ErrUp    = errors.New("a lab is up")
)

// DefaultDir is where the command line keeps its lab.
const DefaultDir = "/var/lib/rivulet-lab"

// Options of Up. Dir and Binary are required.
type Options struct {
	Dir      string              // all files of the lab; on ext4, xfs, btrfs or tmpfs
	Binary   string              // the rivulet binary that the devices run
	Devices  int                 // 1 to 26, named a, b, c …; 0 means 3
	Env      map[string][]string // KEY=VALUE for `rivulet run`, by device name; "*" is every device
	Progress func(stage string)  // told at the start of every stage; may be nil
}

// Lab is a set of devices on one LAN. Its methods may be called from several goroutines and processes at once.
type Lab struct {
	dir      string
	progress func(string)
	mu       sync.Mutex // held for a change, together with the file lock of DIR
}

// Up makes the LAN, boots all devices and starts Rivulet on each; it does not wait for Rivulet. When it fails it removes
// what it made. When it is killed, Down removes it.
func Up(ctx context.Context, o Options) (*Lab, error) {
	l, err := o.check()
	if err != nil {
		return nil, err
	}
	unlock, err := lock(l.dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if _, err := os.Stat(stateFile(l.dir)); err == nil {
		return nil, fmt.Errorf("lab: %w in %s: end it with `rivulet-lab down`", ErrUp, l.dir)
	}
	if err := l.make(ctx, o); err != nil {
		// The reason may be that ctx ended; cleaning up has its own time.
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		return nil, errors.Join(err, l.remove(clean))
	}
	return l, nil
}

func (o *Options) check() (*Lab, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("lab: needs root to make namespaces: run it with sudo")
	}
	if o.Devices == 0 {
		o.Devices = 3
	}
	if o.Devices < 1 || o.Devices > maxDevices {
		return nil, fmt.Errorf("lab: %d devices: choose 1 to %d", o.Devices, maxDevices)
	}
	for name := range o.Env {
		if name != "*" && !slices.Contains(deviceNames(o.Devices), name) {
			return nil, fmt.Errorf("lab: there is no device %q: they are %s", name, strings.Join(deviceNames(o.Devices), ", "))
		}
	}
	bin, err := filepath.Abs(o.Binary)
	if err != nil {
		return nil, fmt.Errorf("lab: %w", err)
	}
	if fi, err := os.Stat(bin); err != nil || !fi.Mode().IsRegular() || fi.Mode()&0o111 == 0 {
		return nil, fmt.Errorf("lab: %s is not a program: build it with `make build`", bin)
	}
	o.Binary = bin
	if o.Dir, err = filepath.Abs(o.Dir); err != nil {
		return nil, fmt.Errorf("lab: %w", err)
	}
	if strings.ContainsAny(o.Dir, ":,\\") {
		return nil, fmt.Errorf("lab: %s: the folder's name may not hold a colon, comma or backslash (overlayfs)", o.Dir)
	}
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("lab: %w", err)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(o.Dir, &st); err == nil && st.Type == unix.OVERLAYFS_SUPER_MAGIC {
		return nil, fmt.Errorf("lab: %s is on overlayfs, which cannot carry another one: choose a folder on a disk with --dir", o.Dir)
	}
	l := &Lab{dir: o.Dir, progress: o.Progress}
	if l.progress == nil {
		l.progress = func(string) {}
	}
	return l, nil
}

func deviceNames(n int) []string {
	var names []string
	for i := range n {
		names = append(names, string(rune('a'+i)))
	}
	return names
}

// make writes down what it is about to make, then makes it.
func (l *Lab) make(ctx context.Context, o Options) error {
	hs, err := hostHierarchies()
	if err != nil {
		return err
	}
	s := &state{ID: newID(), Binary: o.Binary, NextIP: firstNewIP}
	for _, h := range hs {
		s.Cgroups = append(s.Cgroups, filepath.Join(h.Mount, cgroupName(s.ID)))
	}
	for i, name := range deviceNames(o.Devices) {
		s.Devices = append(s.Devices, deviceState{
			Name: name, Address: lanAddress(firstIP + i), MAC: fmt.Sprintf("02:72:69:76:00:%02x", firstIP+i),
			Env: slices.Concat(o.Env["*"], o.Env[name]),
		})
	}
	if err := s.save(l.dir); err != nil {
		return err
	}
	l.progress("program: " + o.Binary)
	if err := installBinary(o.Binary, filepath.Join(l.dir, "bin")); err != nil {
		return err
	}
	l.progress("lan: bridge, " + lanAddress(0))
	if err := l.makeLAN(ctx, s, hs); err != nil {
		return err
	}
	for i := range s.Devices {
		d := &s.Devices[i]
		l.progress(fmt.Sprintf("%s: power on, %s", d.Name, d.Address))
		if err := l.boot(ctx, s, d, hs); err != nil {
			return fmt.Errorf("%s: %w", d.Name, err)
		}
	}
	for _, d := range s.Devices { // together, so that no device has a head start
		l.progress(d.Name + ": rivulet run")
		if _, err := ask(ctx, l.disk(d.Name), order{Do: "start", Env: d.Env}); err != nil {
			return fmt.Errorf("%s: %w", d.Name, err)
		}
	}
	return nil
}

func (l *Lab) disk(name string) string { return filepath.Join(l.dir, name) }

// Open finds the lab whose files are in dir.
func Open(dir string) (*Lab, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("lab: %w", err)
	}
	if _, err := loadState(dir); err != nil {
		return nil, err
	}
	return &Lab{dir: dir, progress: func(string) {}}, nil
}

// Dir is the folder that holds the lab.
func (l *Lab) Dir() string { return l.dir }

// Devices are all devices in order, powered off ones too.
func (l *Lab) Devices() ([]*Device, error) {
	s, err := loadState(l.dir)
	if err != nil {
		return nil, err
	}
	var ds []*Device
	for _, d := range s.Devices {
		ds = append(ds, &Device{lab: l, Name: d.Name})
	}
	return ds, nil
}

// Device is the one of that name.
func (l *Lab) Device(name string) (*Device, error) {
	s, err := loadState(l.dir)
	if err != nil {
		return nil, err
	}
	if _, err := s.find(name); err != nil {
		return nil, err
	}
	return &Device{lab: l, Name: name}, nil
}

func (s *state) find(name string) (*deviceState, error) {
	if d := s.device(name); d != nil {
		return d, nil
	}
	return nil, fmt.Errorf("lab: there is no device %q: they are %s", name, strings.Join(deviceNames(len(s.Devices)), ", "))
}

// change runs f on the state with all other writers kept out, and saves what f made of it.
func (l *Lab) change(f func(*state) error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	unlock, err := lock(l.dir)
	if err != nil {
		return err
	}
	defer unlock()
	s, err := loadState(l.dir)
	if err != nil {
		return err
	}
	return errors.Join(f(s), s.save(l.dir))
}

// Down ends and removes everything of the lab in dir, its devices' disks included, whatever state it is in. No lab there is no error.
func Down(ctx context.Context, dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return fmt.Errorf("lab: %w", err)
	}
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	unlock, err := lock(dir)
	if err != nil {
		return err
	}
	defer unlock()
	return (&Lab{dir: dir}).remove(ctx)
}

// Down is the function Down for this lab.
func (l *Lab) Down(ctx context.Context) error { return Down(ctx, l.dir) }

// remove takes everything away, the state file last: what is cut short can be done again. The lock is held.
func (l *Lab) remove(ctx context.Context) error {
	s, err := loadState(l.dir)
	if errors.Is(err, ErrNoLab) {
		os.Remove(stateFile(l.dir) + ".new")
		os.Remove(filepath.Join(l.dir, "lock"))
		os.Remove(l.dir) // only if nothing else is in there
		return nil
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, d := range s.Devices {
		errs = append(errs, d.Init.kill(ctx)) // a namespace's init takes everything in it along
	}
	errs = append(errs, s.LAN.kill(ctx))
	for _, dir := range s.Cgroups {
		errs = append(errs, removeCgroup(ctx, dir))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for _, d := range s.Devices {
		errs = append(errs, os.RemoveAll(l.disk(d.Name)))
	}
	for _, name := range []string{"bin", "lan.log", "lab.json.new"} {
		errs = append(errs, os.RemoveAll(filepath.Join(l.dir, name)))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("lab: %w", err)
	}
	if err := os.Remove(stateFile(l.dir)); err != nil {
		return fmt.Errorf("lab: %w", err)
	}
	os.Remove(filepath.Join(l.dir, "lock"))
	os.Remove(l.dir)
	return nil
}
