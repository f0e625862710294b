// Command mkimage packs the demo's web application and busybox into an image
// archive. It is never shipped.
package main

import (
	"flag"
	"fmt"
	"os"
	"runtime"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"rivulet/image/oci"
)

var applets = []string{"sh", "cat", "ls", "ps", "id", "env", "ip", "ping", "nc", "stty", "wget", "nslookup", "hostname", "sleep", "date", "mount"}

func main() {
	tag := flag.String("tag", "", "image name")
	web := flag.String("web", "", "path of the web program")
	busybox := flag.String("busybox", "/bin/busybox", "path of a static busybox")
	out := flag.String("o", "", "archive to write")
	flag.Parse()
	if err := run(*tag, *web, *busybox, *out); err != nil {
		fmt.Fprintln(os.Stderr, "mkimage: "+err.Error())
		os.Exit(1)
	}
}

func run(tag, web, busybox, out string) error {
	var files []oci.File
	for _, f := range []struct{ name, path string }{{"bin/busybox", busybox}, {"bin/web", web}} {
		content, err := os.ReadFile(f.path)
		if err != nil {
			return fmt.Errorf("%w; make deps installs busybox-static", err)
		}
		files = append(files, oci.File{Name: f.name, Content: content})
	}
	for _, a := range applets {
		files = append(files, oci.File{Name: "bin/" + a, Link: "busybox"})
	}
	archive, err := oci.Archive(tag, runtime.GOARCH, v1.Config{
		Entrypoint: []string{"/bin/web"},
		Env:        []string{"PATH=/bin"},
		User:       "1000:1000",
	}, files)
	if err != nil {
		return err
	}
	return os.WriteFile(out, archive, 0o644)
}
