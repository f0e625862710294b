package small

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"rivulet/appliance/api"
	"rivulet/test/lab"
)

// devices makes a and b, each of 1 GB, and waits until they are peered. They share
// the pages of one binary, which makes PSS a few MB less than on machines apart.
func devices(t *testing.T) (*device, *lab.Lab) {
	t.Helper()
	binary := os.Getenv("RIVULET_BIN")
	if binary == "" {
		binary = filepath.Join("..", "..", "bin", "rivulet")
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root for namespaces")
	}
	if _, err := os.Stat(binary); err != nil {
		t.Skip("needs the binary: make build")
	}
	dir, err := os.MkdirTemp("/var/lib", "rivulet-lab-small-")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := lab.Down(ctx, dir); err != nil && !errors.Is(err, lab.ErrNoLab) {
			t.Error(err)
		}
		os.RemoveAll(dir)
	})
	l, err := lab.Up(ctx, lab.Options{Dir: dir, Binary: binary, Devices: 2, Memory: board})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"b", "a"} {
		d, err := l.Device(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := d.WaitPeered(ctx, 1); err != nil {
			t.Fatal(err)
		}
		if name == "a" {
			return &device{d}, l
		}
	}
	return nil, nil
}

func decode(cmd *exec.Cmd) (st api.Status, err error) {
	out, err := cmd.Output()
	if len(out) == 0 {
		return st, fmt.Errorf("status: %w", err)
	}
	return st, json.Unmarshal(out, &st) // exit code 3, not ready, comes with a status too
}
