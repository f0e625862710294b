package lab

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// state is DIR/lab.json: all that is needed to find, change and remove a lab. It is written before what it describes
// is made.
type state struct {
	ID      string        `json:"id"`               // random; part of every cgroup's name
	Boot    string        `json:"boot"`             // of the host: after another boot no process of the lab is left
	Binary  string        `json:"binary"`           // the rivulet binary as the user gave it, absolute
	Disk    int64         `json:"disk,omitempty"`   // size of each device's own disk in bytes; 0: a folder
	Memory  int64         `json:"memory,omitempty"` // of each device in bytes; 0: the host's
	CPUs    float64       `json:"cpus,omitempty"`   // that each device may use; 0: all
	With    []string      `json:"with,omitempty"`   // what devices have beside Rivulet
	Cgroups []string      `json:"cgroups"`          // the lab's folder in every hierarchy
	LAN     Proc          `json:"lan"`              // holds the LAN's network namespace
	Devices []deviceState `json:"devices"`
	Cuts    [][2]string   `json:"cuts,omitempty"` // pairs that do not hear each other
	NextIP  int           `json:"nextIP"`         // last byte of the next address that renumber hands out
}

type deviceState struct {
	Name      string   `json:"name"`
	Address   string   `json:"address"` // on eth0, with prefix length
	MAC       string   `json:"mac"`
	Init      Proc     `json:"init"` // zero: powered off
	Env       []string `json:"env,omitempty"`
	Unplugged bool     `json:"unplugged,omitempty"`
	// MTU and Released of eth0, and the other interfaces: see nicState.
	MTU      int        `json:"mtu,omitempty"`
	Released bool       `json:"released,omitempty"`
	More     []nicState `json:"more,omitempty"`
	Systemd  bool       `json:"systemd,omitempty"` // PID 1 is systemd, and rivulet what was installed there
}

func (s *state) device(name string) *deviceState {
	for i := range s.Devices {
		if s.Devices[i].Name == name {
			return &s.Devices[i]
		}
	}
	return nil
}

func stateFile(dir string) string { return filepath.Join(dir, "lab.json") }

func loadState(dir string) (*state, error) {
	b, err := os.ReadFile(stateFile(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("lab: %w in %s: start one with `rivulet-lab up`", ErrNoLab, dir)
	}
	if err != nil {
		return nil, fmt.Errorf("lab: %w", err)
	}
	s := new(state)
	if err := json.Unmarshal(b, s); err != nil {
		return nil, fmt.Errorf("lab: %s is damaged (%w)", stateFile(dir), err)
	}
	if s.Boot != hostBoot() {
		s.LAN = Proc{}
		for i := range s.Devices {
			s.Devices[i].Init = Proc{}
		}
	}
	return s, nil
}

// hostBoot names the host's current boot.
func hostBoot() string {
	b, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b))
}

// save replaces the file.
func (s *state) save(dir string) error { return replaceFile(stateFile(dir), s) }

// replaceFile replaces a file by JSON in one step, so that a kill at any moment leaves the old or the new one.
func replaceFile(name string, content any) error {
	b, err := json.MarshalIndent(content, "", "  ")
	if err != nil {
		return fmt.Errorf("lab: %w", err)
	}
	if err := os.WriteFile(name+".new", b, 0o600); err != nil {
		return fmt.Errorf("lab: %w", err)
	}
	if err := os.Rename(name+".new", name); err != nil {
		return fmt.Errorf("lab: %w", err)
	}
	return nil
}

// lock keeps other writers of the same lab out until the returned function is called or this process ends.
func lock(dir string) (func(), error) {
	name := filepath.Join(dir, "lock")
	for {
		f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return nil, fmt.Errorf("lab: %w", err)
		}
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if err != nil && !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, fmt.Errorf("lab: lock %s: %w", name, err)
		}
		// Down removes the file: then another one, or none, has the name by now.
		mine, err1 := f.Stat()
		theirs, err2 := os.Stat(name)
		if err == nil && err1 == nil && err2 == nil && os.SameFile(mine, theirs) {
			return func() { f.Close() }, nil
		}
		f.Close()
		if _, err := os.Stat(dir); err != nil {
			return nil, fmt.Errorf("lab: %w in %s", ErrNoLab, dir)
		}
	}
}

func newID() string {
	b := make([]byte, 4)
	rand.Read(b)
	return hex.EncodeToString(b)
}
