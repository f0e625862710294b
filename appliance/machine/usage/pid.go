package usage

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"rivulet/appliance/machine/host"
)

// PIDFile is the path of the supervisor's in a runtime folder.
func PIDFile(run string) string { return filepath.Join(run, "supervisor.pid") }

// WritePID records this process as the supervisor of a runtime folder.
func WritePID(run string) error {
	if err := os.MkdirAll(run, 0o755); err != nil {
		return fmt.Errorf("appliance: %w; choose another folder with --runtime", err)
	}
	if err := os.WriteFile(PIDFile(run), []byte(strconv.Itoa(os.Getpid())+"\n"), 0o644); err != nil {
		return fmt.Errorf("appliance: %w", err)
	}
	return nil
}

// Holder returns the process that has a file open, or else the supervisor of a runtime folder.
func Holder(file, run string) string {
	if pid, ok := host.Opener(file); ok {
		return fmt.Sprintf("pid %d", pid)
	}
	if raw, err := os.ReadFile(PIDFile(run)); err == nil {
		return "pid " + strings.TrimSpace(string(raw))
	}
	return "another process"
}

// PIDs reads the PID files of supervisor, engine and tunnel in a runtime folder; ended processes are left out.
func PIDs(run string) map[string]int {
	out := map[string]int{}
	for _, name := range []string{"supervisor", "engine", "tunnel"} {
		raw, err := os.ReadFile(filepath.Join(run, name+".pid"))
		if err != nil {
			continue
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(raw)))
		if err != nil {
			continue
		}
		if _, err := os.Stat("/proc/" + strconv.Itoa(pid)); err == nil {
			out[name] = pid
		}
	}
	return out
}
