// Command stuck is the rivulet of an image that is not up to what it promises: it
// judges itself as the real one does, and what it judges hangs where the firmware is
// UEFI and ends elsewhere: one image for two stories.
package main

import (
	"os"
	"os/signal"

	"rivulet/appliance/lifetime/upgrade"
	"rivulet/cmd/rivulet/cli"
)

func main() {
	if len(os.Args) < 2 || os.Args[1] != "run" || !upgrade.OnTrial() {
		os.Exit(cli.Main(os.Args[1:], "none"))
	}
	if _, err := os.Stat("/sys/firmware/efi"); err != nil {
		os.Exit(7)
	}
	never := make(chan os.Signal, 1)
	signal.Notify(never) // it does not even stop when it is told to
	for range never {
	}
}
