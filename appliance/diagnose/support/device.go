package support

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"rivulet/appliance/api"
	"rivulet/appliance/diagnose/doctor"
	"rivulet/appliance/state/paths"
	"rivulet/appliance/version"
)

// Device is the source of the parts.
type Device struct {
	State, Run string
	// ConfigDir is /etc/rivulet.
	ConfigDir string
	// Executable is this program, for its kubectl.
	Executable string
	Doctor     *doctor.Env
}

// Parts returns all parts. None contains a pod's specification, a Secret or a ConfigMap.
func (d Device) Parts() []Part {
	parts := []Part{
		{"status.json", d.query("/v1/status")},
		{"health.json", d.query("/v1/health")},
		{"metrics.txt", d.query("/v1/metrics")},
		{"goroutines.txt", d.query("/v1/goroutines")},
		{"doctor.txt", d.doctor},
		{"configuration/effective.txt", run(d.Executable, "config", "show", "--origin")},
		{"versions.txt", versions},
		{"files.txt", d.files},
		{"logs/engine.log", end(paths.EngineLog(d.State))},
		{"logs/tunnel.log", end(paths.TunnelLog(d.State))},
		{"logs/supervisor.log", run("journalctl", "--unit=rivulet", "--lines=5000", "--no-pager", "--output=short-iso")},
		{"logs/kernel.log", run("dmesg")},
	}
	for name, args := range map[string]string{
		"nodes":    "get nodes -o wide",
		"pods":     "get pods -A -o wide",
		"events":   "get events -A --sort-by=.metadata.creationTimestamp",
		"services": "get services,endpointslices -A -o wide",
		"storage":  "get pv,pvc,storageclasses -A -o wide",
		"others":   "get namespaces,deployments,statefulsets,daemonsets,apiservices,leases -A",
	} {
		parts = append(parts, Part{"kubernetes/" + name + ".txt", d.kubectl(strings.Fields(args)...)})
	}
	for name, cmd := range map[string]string{
		"network/addresses":       "ip -details address",
		"network/routes":          "ip route show table all",
		"network/rules":           "ip rule",
		"network/neighbours":      "ip neigh",
		"network/sockets":         "ss -tulpn",
		"network/iptables":        "iptables-save",
		"network/iptables-legacy": "iptables-legacy-save",
		"network/nftables":        "nft list ruleset",
		"machine/disk":            "df -h",
		"machine/inodes":          "df -i",
		"machine/disks":           "lsblk -o NAME,TYPE,SIZE,FSTYPE,RO,ROTA,MODEL,MOUNTPOINTS",
		"machine/memory":          "free -m",
		// Without arguments, which may contain passwords.
		"machine/processes": "ps -eo pid,ppid,stat,etime,time,rss,nlwp,comm --sort=-rss",
		"machine/unit":      "systemctl status rivulet --no-pager --lines=0",
	} {
		f := strings.Fields(cmd)
		parts = append(parts, Part{name + ".txt", run(f[0], f[1:]...)})
	}
	for _, f := range []string{"/proc/meminfo", "/proc/mounts", "/proc/cmdline", "/proc/cgroups", "/proc/swaps", "/proc/loadavg", "/proc/diskstats",
		"/proc/pressure/cpu", "/proc/pressure/io", "/proc/pressure/memory", "/etc/os-release", "/etc/resolv.conf", "/etc/hosts"} {
		parts = append(parts, Part{"machine" + f, end(f)})
	}
	parts = append(parts, each(d.ConfigDir+"/*.yaml", d.ConfigDir, "configuration")...)
	// Rotated logs.
	parts = append(parts, each(filepath.Join(paths.Logs(d.State), "*.log.*"), paths.Logs(d.State), "logs")...)
	// Logs from before this start, if the journal is in memory, and of a kernel crash.
	before := filepath.Join("/", d.Doctor.Root, "var/log/rivulet")
	parts = append(parts, each(before+"/previous.log", before, "logs")...)
	crashes := filepath.Join("/", d.Doctor.Root, doctor.CrashFolder)
	for _, depth := range doctor.CrashRecords {
		parts = append(parts, each(filepath.Join(crashes, depth), crashes, "logs/crash")...)
	}
	return sorted(parts)
}

// each is a part for every file of a pattern, by its path below a folder.
func each(pattern, below, name string) (parts []Part) {
	found, _ := filepath.Glob(pattern)
	for _, f := range found {
		rel, _ := filepath.Rel(below, f) // it is below
		parts = append(parts, Part{name + "/" + rel, end(f)})
	}
	return parts
}

// query is an unchanged answer of the supervisor.
func (d Device) query(path string) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		resp, err := api.Do(ctx, d.Run, http.MethodGet, path, nil)
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		raw, err := io.ReadAll(io.LimitReader(resp.Body, 4*partMax))
		return string(raw), err
	}
}

func (d Device) doctor(ctx context.Context) (string, error) {
	raw, err := json.MarshalIndent(doctor.Run(ctx, d.Doctor, doctor.Probes()), "", "  ")
	return string(raw) + "\n", err
}

func (d Device) kubectl(args ...string) func(context.Context) (string, error) {
	// The tools accept no flags of rivulet.
	return runWith("RIVULET_STATE="+d.State, d.Executable, append([]string{"kubectl", "--request-timeout=10s"}, args...)...)
}

// files lists names and sizes in the state folder, three levels deep.
func (d Device) files(ctx context.Context) (string, error) {
	var b strings.Builder
	err := filepath.WalkDir(d.State, func(path string, e fs.DirEntry, err error) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		rel, _ := filepath.Rel(d.State, path) // it is below
		if err != nil {
			fmt.Fprintf(&b, "%v\n", err)
			if path == d.State {
				return err
			}
			return nil
		}
		if info, err := e.Info(); err == nil {
			fmt.Fprintf(&b, "%s %10d %s %s\n", info.Mode(), info.Size(), info.ModTime().UTC().Format(time.RFC3339), rel)
		}
		if e.IsDir() && strings.Count(rel, "/") >= 2 || rel == "storage" {
			return fs.SkipDir
		}
		return nil
	})
	return b.String(), err
}

func versions(ctx context.Context) (string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "rivulet %s, %s/%s\n", version.Version, runtime.GOOS, runtime.GOARCH)
	for _, p := range version.Parts() {
		fmt.Fprintf(&b, "%s %s\n", p.Name, p.Version)
	}
	kernel, err := run("uname", "-a")(ctx)
	return b.String() + kernel, err
}

// end reads the last part of a file.
func end(path string) func(context.Context) (string, error) {
	return func(context.Context) (string, error) {
		f, err := os.Open(path)
		if err != nil {
			return "", err
		}
		defer f.Close()
		if fi, err := f.Stat(); err == nil && fi.Size() > partMax {
			if _, err := f.Seek(-partMax, io.SeekEnd); err != nil {
				return "", err
			}
		}
		raw, err := io.ReadAll(io.LimitReader(f, 2*partMax))
		return string(raw), err
	}
}

func run(name string, args ...string) func(context.Context) (string, error) {
	return runWith("LC_ALL=C", name, args...)
}

// runWith returns a program's output also when it failed.
func runWith(env, name string, args ...string) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		path, err := exec.LookPath(name)
		if err != nil {
			return "", fmt.Errorf("%s is not installed", name)
		}
		cmd := exec.CommandContext(ctx, path, args...)
		cmd.Env = append(os.Environ(), "LC_ALL=C", env)
		cmd.WaitDelay = time.Second
		out := &limited{}
		cmd.Stdout, cmd.Stderr = out, out
		err = cmd.Run()
		if err != nil {
			err = fmt.Errorf("%s: %w: %.300s", name, err, oneLine(out.String()))
		}
		return out.String(), err
	}
}

// limited keeps the end of a program's output, to bound the memory.
type limited struct{ b []byte }

func (l *limited) Write(p []byte) (int, error) {
	l.b = append(l.b, p...)
	if len(l.b) > 2*partMax {
		l.b = append(l.b[:0], l.b[len(l.b)-partMax-1:]...)
	}
	return len(p), nil
}

func (l *limited) String() string { return string(l.b) }
