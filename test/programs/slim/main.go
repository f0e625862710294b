// Command slim is the appliance without the engine linked in, for the loop of
// edit, build, try: it links in seconds. Called by any other name than rivulet
// it becomes the full binary, which lies beside it as rivulet-full. It is never
// shipped; `make slim` makes both.
package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"rivulet/cmd/rivulet/cli"
)

// engineName is k3s.EngineName, which cannot be imported without k3s.
const engineName = "rivulet-engine"

func main() {
	if filepath.Base(os.Args[0]) == "rivulet" || filepath.Base(os.Args[0]) == "exe" {
		os.Exit(cli.Main(os.Args[1:], engineName))
	}
	self, err := os.Executable()
	if err == nil {
		err = become(filepath.Join(filepath.Dir(self), "rivulet-full"))
	}
	if errors.Is(err, fs.ErrNotExist) { // an upgrade took only the one file
		err = become("/opt/rivulet/rivulet-full")
	}
	fmt.Fprintln(os.Stderr, "slim:", err)
	os.Exit(1)
}

// become returns only with an error.
func become(path string) error { return syscall.Exec(path, os.Args, os.Environ()) }
