package podmemory

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

const uid = "0f8c1c2e-1111-4222-8333-444455556666"

// The files of each version and driver, as kernels and kubelets make them.
func TestHeld(t *testing.T) {
	const slice = "0f8c1c2e_1111_4222_8333_444455556666"
	for name, tc := range map[string]struct {
		dir           string
		files         map[string]string
		charged, held int64
	}{
		"v2, plain folders": {"kubepods/burstable/pod" + uid,
			map[string]string{"memory.current": "1000\n", "memory.stat": "anon 500\nfile 400\nshmem 100\nactive_file 200\ninactive_file 100\nslab_reclaimable 50\n"}, 1000, 650},
		"v2, systemd": {"kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" + slice + ".slice",
			map[string]string{"memory.current": "1000\n", "memory.stat": "anon 1000\nactive_file 0\ninactive_file 0\n"}, 1000, 1000},
		"v2, systemd, guaranteed": {"kubepods.slice/kubepods-pod" + slice + ".slice",
			map[string]string{"memory.current": "7\n", "memory.stat": "active_file 9\n"}, 7, 0},
		"v1": {"memory/kubepods/burstable/pod" + uid,
			map[string]string{"memory.usage_in_bytes": "1000\n", "memory.stat": "active_file 1\ninactive_file 1\ntotal_active_file 200\ntotal_inactive_file 300\n"}, 1000, 500},
	} {
		root := t.TempDir()
		if err := os.MkdirAll(filepath.Join(root, tc.dir), 0o755); err != nil {
			t.Fatal(err)
		}
		for file, text := range tc.files {
			if err := os.WriteFile(filepath.Join(root, tc.dir, file), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		r := Reader{Root: root}
		if n, err := r.Charged(uid); n != tc.charged || err != nil {
			t.Errorf("%s: charged %d, %v, want %d", name, n, err, tc.charged)
		}
		if n, err := r.Held(uid); n != tc.held || err != nil {
			t.Errorf("%s: held %d, %v, want %d", name, n, err, tc.held)
		}
		if _, err := r.Held("another"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: a pod that is not here: %v", name, err)
		}
	}
}

// What cannot be read is no zero.
func TestUnreadable(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "kubepods/burstable/pod"+uid)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "memory.current"), []byte("max\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if n, err := (Reader{Root: root}).Charged(uid); err == nil {
		t.Errorf("%d, want an error", n)
	}
	if err := os.WriteFile(filepath.Join(dir, "memory.current"), []byte("5\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if n, err := (Reader{Root: root}).Held(uid); err == nil {
		t.Errorf("without memory.stat: %d, want an error", n)
	}
}

func TestAvailable(t *testing.T) {
	if n, ok := Here.Available(); n <= 0 || !ok {
		t.Errorf("this machine has %d, %v", n, ok)
	}
	for text, want := range map[string]int64{"MemTotal: 9 kB\nMemAvailable:     1024 kB\nBuffers: 7 kB\n": 1 << 20, "MemTotal: 9 kB\n": -1, "MemAvailable: many kB\n": -1, "MemAvailable:": -1} {
		file := filepath.Join(t.TempDir(), "meminfo")
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if n, ok := (Reader{Meminfo: file}).Available(); ok != (want >= 0) || ok && n != want {
			t.Errorf("%q: %d, %v", text, n, ok)
		}
	}
}
