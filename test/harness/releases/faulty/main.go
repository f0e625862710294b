// Command faulty is a release that says what it is as rivulet does, and then is not
// up to it: an upgrade to it has to be undone. Its way is linked in.
package main

import (
	"encoding/json"
	"os"
	"os/signal"
	"strconv"
	"strings"

	"rivulet/appliance/version"
)

var (
	name       = "v9-faulty"
	kubernetes = ""
	// way is hang, or the code it exits with.
	way = "78"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "version" {
		json.NewEncoder(os.Stdout).Encode([]version.Part{{Name: "rivulet", Version: name}, {Name: "Kubernetes", Version: kubernetes}})
		return
	}
	os.Stderr.WriteString("faulty: " + strings.Join(os.Args[1:], " ") + ": " + way + "\n")
	if code, err := strconv.Atoi(way); err == nil {
		os.Exit(code)
	}
	never := make(chan os.Signal, 1)
	signal.Notify(never) // it does not even stop when it is told to
	for range never {
	}
}
