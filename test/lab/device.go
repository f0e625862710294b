package lab

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// Device is one machine of the lab.
type Device struct {
	Name string
	lab  *Lab
}

// Info is how the lab itself sees a device; what Rivulet on it says is in Status.
type Info struct {
	Name       string `json:"name"`
	Address    string `json:"address"`              // on the LAN, with prefix length
	On         bool   `json:"on"`                   // has power
	Unplugged  bool   `json:"unplugged"`            // cable out
	Supervisor int    `json:"supervisor,omitempty"` // PID inside the device, 0: not running
	Exit       string `json:"exit,omitempty"`       // how the last supervisor ended
	Root       string `json:"root"`                 // the device's root directory as the host sees it (disk only)
	Log        string `json:"log"`                  // log of `rivulet run`, a file on the host
}

// Info reads the state of the device; one that is off is no error.
func (d *Device) Info(ctx context.Context) (Info, error) {
	s, err := loadState(d.lab.dir)
	if err != nil {
		return Info{}, err
	}
	ds, err := s.find(d.Name)
	if err != nil {
		return Info{}, err
	}
	root := filepath.Join(d.lab.disk(d.Name), "root")
	i := Info{Name: d.Name, Address: ds.Address, On: ds.Init.Alive(), Unplugged: ds.Unplugged, Root: root, Log: filepath.Join(root, logPath)}
	if i.On {
		ans, err := ask(ctx, d.lab.disk(d.Name), order{Do: "status"})
		if err != nil {
			return i, err
		}
		i.Supervisor, i.Exit = ans.PID, ans.Exit
	}
	return i, nil
}

// Command prepares a command that runs inside the device, in all its namespaces and cgroups. Files are looked up on the
// device; the working directory is that of the caller (or Cmd.Dir), seen read-only, so that relative names of the host's
// files work. Cmd.Env is not passed on: use `env KEY=VALUE …`. Exit codes: the command's own, 128+n after signal n,
// 125 device off, 126 not executable, 127 not found.
func (d *Device) Command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Args = append([]string{nameEnter, d.lab.dir, d.Name}, args...)
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// Exec runs a command inside the device and returns its standard output. The error of a failed one is an *exec.ExitError
// with the end of its standard error in the text.
func (d *Device) Exec(ctx context.Context, args ...string) (string, error) {
	out, err := d.Command(ctx, args...).Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return string(out), fmt.Errorf("lab: %s: %s: %w: %s", d.Name, strings.Join(args, " "), err, strings.TrimSpace(string(exit.Stderr)))
	}
	if err != nil {
		return string(out), fmt.Errorf("lab: %s: %w", d.Name, err)
	}
	return string(out), nil
}

// Kubectl runs `rivulet kubectl` inside the device, like Exec.
func (d *Device) Kubectl(ctx context.Context, args ...string) (string, error) {
	return d.Exec(ctx, append([]string{"rivulet", "kubectl"}, args...)...)
}

// Kill ends, at once and without warning, one of: supervisor, engine, tunnel, power (everything on the device; only its
// disk remains). It returns when it is gone. Nothing is started again by the lab.
func (d *Device) Kill(ctx context.Context, what string) error {
	switch what {
	case "power":
		return d.change(func(_ *state, ds *deviceState) error {
			if err := ds.Init.kill(ctx); err != nil {
				return err
			}
			ds.Init = Proc{}
			return nil
		})
	case "supervisor", "engine", "tunnel":
		_, err := d.ask(ctx, order{Do: "signal", What: what, Signal: int(syscall.SIGKILL)})
		return err
	}
	return fmt.Errorf("lab: cannot kill %q: it is supervisor, engine, tunnel or power", what)
}

// Stop ends Rivulet as a service manager does: SIGTERM to the supervisor alone, and waiting for it. The device stays on.
func (d *Device) Stop(ctx context.Context) error {
	if ans, err := d.ask(ctx, order{Do: "status"}); err != nil || ans.PID == 0 {
		return err
	}
	if _, err := d.ask(ctx, order{Do: "signal", What: "supervisor", Signal: int(syscall.SIGTERM)}); err != nil {
		return err
	}
	err := poll(ctx, 50*time.Millisecond, func() (bool, error) {
		ans, err := d.ask(ctx, order{Do: "status"})
		return ans.PID == 0, err
	})
	if err != nil {
		return fmt.Errorf("lab: rivulet on %s does not end: %w", d.Name, err)
	}
	return nil
}

// Start powers the device on if it is off, and runs Rivulet, from the binary as it is now, if it does not run.
func (d *Device) Start(ctx context.Context) error {
	return d.change(func(s *state, ds *deviceState) error {
		if err := installBinary(s.Binary, filepath.Join(d.lab.dir, "bin")); err != nil {
			return err
		}
		if !ds.Init.Alive() {
			hs, err := hostHierarchies()
			if err != nil {
				return err
			}
			if err := d.lab.boot(ctx, s, ds, hs); err != nil {
				return err
			}
		}
		ans, err := ask(ctx, d.lab.disk(d.Name), order{Do: "status"})
		if err != nil || ans.PID != 0 {
			return err
		}
		_, err = ask(ctx, d.lab.disk(d.Name), order{Do: "start", Env: ds.Env})
		return err
	})
}

// Renumber gives the device a new address on the LAN, as a new DHCP lease would, and returns it.
func (d *Device) Renumber(ctx context.Context) (string, error) {
	var addr string
	err := d.change(func(s *state, ds *deviceState) error {
		addr = lanAddress(s.NextIP)
		if s.NextIP++; s.NextIP > 254 {
			s.NextIP = firstNewIP
		}
		ds.Address = addr
		if !ds.Init.Alive() {
			return nil // it will boot with it
		}
		return inNetns(ds.Init, func(h *netlink.Handle, _ netns.NsHandle) error {
			eth, err := h.LinkByName(deviceNIC)
			if err != nil {
				return fmt.Errorf("lab: %s in %s: %w", deviceNIC, d.Name, err)
			}
			return setAddress(h, eth, addr)
		})
	})
	return addr, err
}

// Cut makes two devices deaf to each other; with one name it takes that device's cable out.
func (l *Lab) Cut(names ...string) error {
	return l.change(func(s *state) error {
		for _, n := range names {
			if _, err := s.find(n); err != nil {
				return err
			}
		}
		switch {
		case len(names) == 1:
			s.device(names[0]).Unplugged = true
		case len(names) == 2 && names[0] != names[1]:
			pair := [2]string{min(names[0], names[1]), max(names[0], names[1])}
			if !slices.Contains(s.Cuts, pair) {
				s.Cuts = append(s.Cuts, pair)
			}
		default:
			return errors.New("lab: cut takes one device or two different ones")
		}
		return applyCables(s)
	})
}

// Heal undoes every Cut.
func (l *Lab) Heal() error {
	return l.change(func(s *state) error {
		s.Cuts = nil
		for i := range s.Devices {
			s.Devices[i].Unplugged = false
		}
		return applyCables(s)
	})
}

func (d *Device) change(f func(*state, *deviceState) error) error {
	return d.lab.change(func(s *state) error {
		ds, err := s.find(d.Name)
		if err != nil {
			return err
		}
		return f(s, ds)
	})
}

// ask talks to the device's init, with a clear word if there is none.
func (d *Device) ask(ctx context.Context, req order) (answer, error) {
	s, err := loadState(d.lab.dir)
	if err != nil {
		return answer{}, err
	}
	ds, err := s.find(d.Name)
	if err != nil {
		return answer{}, err
	}
	if !ds.Init.Alive() {
		return answer{}, fmt.Errorf("lab: device %s is off: start it with `rivulet-lab start %s`", d.Name, d.Name)
	}
	return ask(ctx, d.lab.disk(d.Name), req)
}
