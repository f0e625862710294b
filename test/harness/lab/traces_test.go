package lab

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// markEnv is in the environment of everything that a test's lab starts.
const markEnv = "RIVULET_LAB_TEST="

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root for namespaces and cgroups")
	}
}

// standInBinary is a folder of its own with this test program as rivulet.
func standInBinary(t *testing.T) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "rivulet")
	in, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(out, in); err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	return to
}

// traces are what a lab can leave on the host. They are looked for by what belongs to this lab alone, because other
// labs and namespaces may come and go on the same machine.
type traces struct {
	dir, mark  string
	namespaces map[string]bool // "net:[4026532]"
}

func (tr *traces) remember(p Proc) {
	for _, kind := range []string{"net", "mnt", "pid", "uts", "ipc", "cgroup"} {
		if ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", p.PID, kind)); err == nil {
			if own, err := os.Readlink("/proc/self/ns/" + kind); err == nil && own != ns {
				tr.namespaces[ns] = true
			}
		}
	}
}

// left lists what there is.
func (tr *traces) left() []string {
	var found []string
	procs, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range procs {
		environ, _ := os.ReadFile(p + "/environ")
		comm, _ := os.ReadFile(p + "/cmdline")
		if strings.Contains(string(environ), markEnv+tr.mark) {
			found = append(found, fmt.Sprintf("process %s %q", p, comm))
		}
		links, _ := filepath.Glob(p + "/ns/*")
		for _, l := range links {
			if ns, err := os.Readlink(l); err == nil && tr.namespaces[ns] {
				found = append(found, fmt.Sprintf("namespace %s held by %q", ns, comm))
			}
		}
	}
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, tr.dir) {
			found = append(found, "mount "+line)
		}
	}
	if _, err := os.Stat(tr.dir); err == nil {
		found = append(found, "folder "+tr.dir)
	}
	return found
}

// none fails if anything is still there after a moment: a process that ends by itself may need one.
func (tr *traces) none(t *testing.T, cgroups []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	var found []string
	_ = poll(ctx, 20*time.Millisecond, func() (bool, error) {
		found = tr.left()
		return len(found) == 0, nil
	})
	for _, c := range cgroups {
		if _, err := os.Stat(c); err == nil {
			found = append(found, "cgroup "+c)
		}
	}
	for _, f := range found {
		t.Error("left behind: " + f)
	}
}

// newTraces names a lab that does not exist yet.
func newTraces(t *testing.T) *traces {
	dir := filepath.Join(t.TempDir(), strings.Repeat("a-long-way-down-", 6), "lab") // longer than a socket's name may be
	return &traces{dir: dir, mark: newID(), namespaces: map[string]bool{}}
}

func (tr *traces) env() []string { return []string{markEnv + tr.mark} }
