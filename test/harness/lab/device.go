package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Device is one device of a lab. It holds no state: each call reads what the lab's folder says.
type Device struct {
	lab  *Lab
	Name string
}

// Devices returns all, in order.
func (l *Lab) Devices() ([]*Device, error) {
	s, err := loadState(l.dir)
	if err != nil {
		return nil, err
	}
	var out []*Device
	for _, d := range s.Devices {
		out = append(out, &Device{l, d.Name})
	}
	return out, nil
}

// Device returns the one of that name.
func (l *Lab) Device(name string) (*Device, error) {
	s, err := loadState(l.dir)
	if err != nil {
		return nil, err
	}
	if s.device(name) == nil {
		var have []string
		for _, d := range s.Devices {
			have = append(have, d.Name)
		}
		return nil, fmt.Errorf("lab: there is no device %q; there are %s", name, strings.Join(have, ", "))
	}
	return &Device{l, name}, nil
}

// Command returns a program inside the device, not started yet. Its environment is that of the device; its working
// directory is the caller's (or Cmd.Dir), which devices see read-only below /host, so that a host's file can be named.
// The exit code is the program's own, 128+n after signal n, 125 if the device cannot be entered, 127 for an unknown program.
func (d *Device) Command(ctx context.Context, args ...string) (*exec.Cmd, error) {
	s, err := loadState(d.lab.dir)
	if err != nil {
		return nil, err
	}
	ds := s.device(d.Name)
	if ds == nil || !ds.Init.Alive() {
		return nil, fmt.Errorf("lab: device %s is off: switch it on with `rivulet-lab start %s`", d.Name, d.Name)
	}
	cmd := enterCommand(ctx, d.lab.dir, d.Name, args...)
	cmd.Env = append([]string{"PATH=/opt/rivulet:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "TERM=" + os.Getenv("TERM")}, ds.Env...)
	return cmd, nil
}

// Adopt moves a process of the host into the device's cgroups: it gets its CPU time with the device's own processes.
func (d *Device) Adopt(pid int) error {
	s, err := loadState(d.lab.dir)
	if err != nil {
		return err
	}
	hs, err := hostHierarchies()
	if err != nil {
		return err
	}
	return joinCgroups(hs, s.ID, d.Name, "init", pid)
}

func enterCommand(ctx context.Context, labDir, device string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "/proc/self/exe", append([]string{labDir, device}, args...)...)
	cmd.Args[0] = enterName
	return cmd
}

// Run runs a program inside the device and returns its standard output; the error holds its standard error.
func (d *Device) Run(ctx context.Context, args ...string) (string, error) {
	cmd, err := d.Command(ctx, args...)
	if err != nil {
		return "", err
	}
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	// A program that is given up leaves children with our pipes.
	cmd.WaitDelay = time.Second
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("lab: %s: %s: %w: %s", d.Name, strings.Join(args, " "), err, strings.TrimSpace(errOut.String()))
	}
	return out.String(), nil
}

// Kubectl runs the device's kubectl.
func (d *Device) Kubectl(ctx context.Context, args ...string) (string, error) {
	return d.Run(ctx, append([]string{"rivulet", "kubectl"}, args...)...)
}

// Path is where the host finds a file of the device's disk (not of /run, /tmp, /etc). A disk of its own (Options.Disk)
// is seen only while the device is on.
func (d *Device) Path(inside string) string {
	if s, err := loadState(d.lab.dir); err == nil && s.Disk > 0 {
		if ds := s.device(d.Name); ds != nil && ds.Init.Alive() {
			return filepath.Join(fmt.Sprintf("/proc/%d/root", ds.Init.PID), inside)
		}
	}
	return filepath.Join(d.lab.deviceDir(d.Name), "root", inside)
}

// Log is where the host finds the output of the device's rivulet run.
func (d *Device) Log() string { return d.Path(consoleFile) }

// Start switches a device on, or starts rivulet on one that is on; where it runs already it does nothing.
func (d *Device) Start(ctx context.Context) error {
	return d.change(func(s *state, ds *deviceState) error {
		if ds.Init.Alive() {
			_, err := d.lab.askInit(ctx, ds, "start")
			return err
		}
		hs, err := hostHierarchies()
		if err != nil {
			return err
		}
		return d.lab.boot(ctx, s, ds, hs)
	})
}

// Stop ends rivulet on the device as a service manager does: SIGTERM to the supervisor alone, and waiting for its end.
// The device stays on.
func (d *Device) Stop(ctx context.Context) error {
	if _, err := d.ask(ctx, "stop"); err != nil {
		return err
	}
	err := poll(ctx, 50*time.Millisecond, func() (bool, error) {
		got, err := d.ask(ctx, "status")
		return !strings.HasPrefix(got, "running"), err
	})
	if err != nil {
		return fmt.Errorf("lab: rivulet on %s does not end: %w", d.Name, err)
	}
	return nil
}

// ask has the device's init do something.
func (d *Device) ask(ctx context.Context, order string) (string, error) {
	s, err := loadState(d.lab.dir)
	if err != nil {
		return "", err
	}
	ds := s.device(d.Name)
	if ds == nil || !ds.Init.Alive() {
		return "", fmt.Errorf("lab: device %s is off: switch it on with `rivulet-lab start %s`", d.Name, d.Name)
	}
	return d.lab.askInit(ctx, ds, order)
}

// Kill ends the supervisor, the engine or the tunnel without warning, or takes the power: then everything on the device
// ends, and only its disk remains (a disk of its own without what was not synced). It returns when they are gone. The lab itself starts nothing again.
func (d *Device) Kill(ctx context.Context, what string) error {
	switch what {
	case "supervisor", "engine", "tunnel":
		_, err := d.ask(ctx, "kill "+what)
		return err
	case "power":
		return d.change(func(s *state, ds *deviceState) error {
			var errs []error
			if s.Disk > 0 && ds.Init.Alive() {
				errs = append(errs, forgetUnwritten(ds.Init))
			}
			if err := ds.Init.kill(ctx); err != nil {
				return err
			}
			ds.Init = Proc{}
			for _, c := range s.Cgroups {
				errs = append(errs, killCgroup(ctx, filepath.Join(c, d.Name)), removeCgroup(ctx, filepath.Join(c, d.Name)))
			}
			return errors.Join(append(errs, s.save(d.lab.dir))...)
		})
	}
	return fmt.Errorf("lab: cannot kill %q: choose supervisor, engine, tunnel or power", what)
}

// Cut stops all traffic between two devices; with b empty it takes a's cables out.
func (l *Lab) Cut(a, b string) error {
	return l.cables(func(s *state) error {
		for _, name := range []string{a, b} {
			if name != "" && s.device(name) == nil {
				return fmt.Errorf("lab: there is no device %q", name)
			}
		}
		if b == "" {
			for _, n := range s.device(a).nics() {
				n.Unplugged = true
				s.device(a).set(n)
			}
			return nil
		}
		pair := [2]string{min(a, b), max(a, b)}
		if a == b {
			return fmt.Errorf("lab: %s cannot be cut from itself; rivulet-lab cut %s takes its cable out", a, a)
		}
		if !slices.Contains(s.Cuts, pair) {
			s.Cuts = append(s.Cuts, pair)
		}
		return nil
	})
}

// Heal undoes every cut. An interface whose address went with its cable gets it back with Plug.
func (l *Lab) Heal() error {
	return l.cables(func(s *state) error {
		s.Cuts = nil
		for i := range s.Devices {
			for _, n := range s.Devices[i].nics() {
				n.Unplugged = n.Released
				s.Devices[i].set(n)
			}
		}
		return nil
	})
}

func (l *Lab) cables(f func(*state) error) error {
	return l.locked(func(s *state) error {
		if err := f(s); err != nil {
			return err
		}
		if err := s.save(l.dir); err != nil {
			return err
		}
		return applyCables(s)
	})
}

func (d *Device) change(f func(*state, *deviceState) error) error {
	return d.lab.locked(func(s *state) error {
		ds := s.device(d.Name)
		if ds == nil {
			return fmt.Errorf("lab: device %s is gone", d.Name)
		}
		return f(s, ds)
	})
}

func (l *Lab) locked(f func(*state) error) error {
	unlock, err := lock(l.dir)
	if err != nil {
		return err
	}
	defer unlock()
	s, err := loadState(l.dir)
	if err != nil {
		return err
	}
	return f(s)
}

// Status is the part of `rivulet status -o json` that the lab waits for.
type Status struct {
	Ready   bool           `json:"ready"`
	Waiting string         `json:"waiting"`
	PIDs    map[string]int `json:"pids"`
	Peers   []struct {
		Name   string `json:"name"`
		ID     string `json:"id"`
		State  string `json:"state"`
		Reason string `json:"reason"`
	} `json:"peers"`
	VirtualNodes []VirtualNode `json:"virtualNodes"`
	Pods         struct {
		Home, Away, Tenants int
	} `json:"pods"`
	// Member is there on a worker.
	Member *struct {
		Cluster string `json:"cluster"`
	} `json:"member"`
}

// VirtualNode stands for a peer.
type VirtualNode struct {
	Name  string `json:"name"`
	Ready bool   `json:"ready"`
}

// Status asks the device's supervisor. A program of its own for each question, `rivulet status`, would be a load.
func (d *Device) Status(ctx context.Context) (st Status, err error) {
	return st, d.Ask(ctx, "/v1/status", &st)
}

// WaitReady waits until the device's cluster can run pods.
func (d *Device) WaitReady(ctx context.Context) error {
	return d.wait(ctx, func(st Status) string {
		if !st.Ready {
			return st.Waiting
		}
		return ""
	})
}

// WaitPeered waits until n virtual nodes are ready.
func (d *Device) WaitPeered(ctx context.Context, n int) error {
	return d.wait(ctx, func(st Status) string {
		ready := 0
		for _, v := range st.VirtualNodes {
			if v.Ready {
				ready++
			}
		}
		if !st.Ready || ready < n {
			return fmt.Sprintf("%d of %d virtual nodes are ready; peers %+v", ready, n, st.Peers)
		}
		return ""
	})
}

// wait polls the status until missing returns nothing.
func (d *Device) wait(ctx context.Context, missing func(Status) string) error {
	return d.WaitStatus(ctx, func(ctx context.Context) (string, error) {
		st, err := d.Status(ctx)
		if err != nil {
			return "", err
		}
		return missing(st), nil
	})
}

// WaitStatus calls missing until it returns neither text nor error. It fails where rivulet has ended.
func (d *Device) WaitStatus(ctx context.Context, missing func(context.Context) (string, error)) error {
	last := "no answer yet"
	err := poll(ctx, 300*time.Millisecond, func() (bool, error) {
		if got, err := d.ask(ctx, "status"); err == nil && strings.HasPrefix(got, "ended") {
			return false, fmt.Errorf("rivulet does not run, it %s", got)
		}
		text, err := missing(ctx)
		switch {
		case err == nil:
			last = text
		case ctx.Err() == nil: // else it says only that it was given up
			last = err.Error()
		}
		return err == nil && text == "", nil
	})
	if err != nil {
		return fmt.Errorf("lab: device %s: %w: %s; its log is %s", d.Name, err, last, d.Log())
	}
	return nil
}
