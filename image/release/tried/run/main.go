// Command run runs a command that tries an image, and keeps what it says beside the
// image, with the image's hash: package tried. It ends as the command does.
//
//	go run ./image/release/tried/run bin/image/rivulet-v1-amd64.img.zst go test -v ./test/image
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"

	"rivulet/image/release/tried"
)

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: run NAME.img.zst COMMAND...")
		os.Exit(2)
	}
	err := tried.Do(os.Args[1], os.Args[2:], os.Stdout)
	var ended *exec.ExitError
	if errors.As(err, &ended) {
		os.Exit(max(1, ended.ExitCode()))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "tried:", err)
		os.Exit(1)
	}
}
