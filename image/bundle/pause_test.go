package bundle

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"rivulet/test/harness/await"
)

// PID 1 of a pod with a shared PID namespace: it reaps what is orphaned there,
// leaves when told to, and is next to nothing in memory.
func TestPause(t *testing.T) {
	program, err := filepath.Abs("../../_build/bundle/linux_" + runtime.GOARCH + "/pause")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(program); err != nil || os.Geteuid() != 0 {
		t.Skip("needs root and the built pause: make bundle")
	}
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		// The shell is PID 1, leaves an orphan behind that ends at once, and becomes pause.
		cmd := exec.Command("/bin/sh", "-c", `(sh -c 'sleep 0.1 & echo $!') ; exec "$0"`, program)
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		pid := cmd.Process.Pid
		await.True(t, 10*time.Second, "no children left", func() bool {
			children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
			exe, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
			return err == nil && exe == program && len(children) == 0
		})
		if kb := pss(t, pid); kb > 64 {
			t.Errorf("pause takes %d kB, want 64 at most", kb)
		}
		if err := cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("after %v: %v", sig, err)
		}
	}
}

// pss is the proportional set size in kB.
func pss(t *testing.T, pid int) (kb int) {
	t.Helper()
	f, err := os.Open(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "Pss:") {
			if _, err := fmt.Sscanf(lines.Text(), "Pss: %d kB", &kb); err != nil {
				t.Fatal(err)
			}
		}
	}
	return kb
}
