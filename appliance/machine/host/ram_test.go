package host

import (
	"os"
	"path/filepath"
	"testing"
)

func TestRAMIsTheLeastOfWhatIsSaid(t *testing.T) {
	const machine = 8 << 30
	for _, c := range []struct {
		what  string
		files map[string]string
		want  uint64
	}{
		{"nothing but the kernel's word", nil, machine},
		{"meminfo says less", map[string]string{"proc/meminfo": "MemTotal:         976562 kB\nMemFree: 1 kB\n"}, 976562 << 10},
		{"meminfo says more", map[string]string{"proc/meminfo": "MemTotal: 99999999 kB\n"}, machine},
		{"cgroup v2 without a limit", map[string]string{"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "max\n"}, machine},
		{"cgroup v2, a limit further up", map[string]string{"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "max\n", "sys/fs/cgroup/a/memory.max": "1073741824\n"}, 1 << 30},
		{"cgroup v1, no limit is a large number", map[string]string{"proc/self/cgroup": "9:memory:/\n1:name=systemd:/\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, machine},
		{"cgroup v1", map[string]string{"proc/self/cgroup": "9:memory:/x\n", "sys/fs/cgroup/memory/x/memory.limit_in_bytes": "536870912\n"}, 512 << 20},
	} {
		root := t.TempDir()
		for name, content := range c.files {
			path := filepath.Join(root, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got := ram(machine, root); got != c.want {
			t.Errorf("%s: %d, want %d", c.what, got, c.want)
		}
	}
	if RAM() == 0 {
		t.Error("this machine has no memory")
	}
}
