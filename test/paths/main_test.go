// Package paths tests the ways between running devices: the real binary, one lab of
// three, two of them each behind a router of its own that translates addresses. What
// each kind of path does is tested where the paths are.
package paths

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"rivulet/test/lab"
)

var (
	theLab  *lab.Lab
	devices map[string]*lab.Device
	why     string // set when there can be no lab: the tests skip with it
)

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "paths: "+err.Error())
		code = 1
	}
	os.Exit(code)
}

func binary() string {
	if b := os.Getenv("RIVULET_BIN"); b != "" {
		return b
	}
	return filepath.Join("..", "..", "bin", "rivulet")
}

func run(m *testing.M) (code int, err error) {
	switch _, err := os.Stat(binary()); {
	case os.Geteuid() != 0:
		why = "needs root for namespaces"
	case err != nil:
		why = "needs the binary: make build, or set RIVULET_BIN"
	}
	if why != "" {
		return m.Run(), nil
	}
	dir, err := os.MkdirTemp("/var/lib", "rivulet-lab-paths-")
	if err != nil {
		return 1, err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if code != 0 {
			tellLogs(dir)
		}
		err = errors.Join(err, lab.Down(ctx, dir))
	}()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	// Without cables at first: on one LAN they would be peers before anything is between them.
	if theLab, err = lab.Up(ctx, lab.Options{Dir: dir, Binary: binary(), Devices: 3, Unplugged: true}); err != nil {
		return 1, err
	}
	all, err := theLab.Devices()
	if err != nil {
		return 1, err
	}
	devices = map[string]*lab.Device{}
	for _, d := range all {
		devices[d.Name] = d
		if err := d.WaitReady(ctx); err != nil {
			return 1, err
		}
	}
	return m.Run(), nil
}

func tellLogs(dir string) {
	for _, name := range []string{"a", "b", "c"} {
		for _, file := range []string{"root/var/log/rivulet.log", "root/var/lib/rivulet/log/tunnel.log"} {
			raw, _ := os.ReadFile(filepath.Join(dir, name, file))
			if len(raw) > 6000 {
				raw = raw[len(raw)-6000:]
			}
			fmt.Fprintf(os.Stderr, "--- the end of %s of device %s\n%s\n", filepath.Base(file), name, raw)
		}
	}
}
