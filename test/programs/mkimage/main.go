// Command mkimage packs the demo's web application and busybox into an image
// archive. It is never shipped.
package main

import (
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"rivulet/image/oci"
)

var applets = []string{"sh", "cat", "ls", "ps", "id", "env", "ip", "ping", "nc", "stty", "wget", "nslookup", "hostname", "sleep", "date", "mount"}

func main() {
	tag := flag.String("tag", "", "image name")
	web := flag.String("web", "", "path of the web program")
	busybox := flag.String("busybox", "/bin/busybox", "path of a static busybox")
	out := flag.String("o", "", "archive to write")
	user := flag.String("user", "1000:1000", "who runs it")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "mkimage [FLAGS] [FILE…]: programs of this machine and folders with all that is in them, each at its own path, with the libraries that they are linked to")
		flag.PrintDefaults()
	}
	flag.Parse()
	if err := run(*tag, *web, *busybox, *out, *user, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "mkimage: "+err.Error())
		os.Exit(1)
	}
}

func run(tag, web, busybox, out, user string, more []string) error {
	var files []oci.File
	for _, f := range []struct{ name, path string }{{"bin/busybox", busybox}, {"bin/web", web}} {
		if f.path == "" {
			continue
		}
		content, err := os.ReadFile(f.path)
		if err != nil {
			return fmt.Errorf("%w; make deps installs busybox-static", err)
		}
		files = append(files, oci.File{Name: f.name, Content: content})
	}
	for _, a := range applets {
		if slices.ContainsFunc(more, func(f string) bool { return filepath.Base(f) == a }) {
			continue // this machine's own
		}
		files = append(files, oci.File{Name: "bin/" + a, Link: "busybox"})
	}
	others, err := taken(more)
	if err != nil {
		return err
	}
	files = append(files, others...)
	var entry []string
	if web != "" {
		entry = []string{"/bin/web"}
	}
	archive, err := oci.Archive(tag, runtime.GOARCH, v1.Config{
		Entrypoint: entry,
		Env:        []string{"PATH=/bin:/usr/bin"},
		User:       user,
	}, files)
	if err != nil {
		return err
	}
	return os.WriteFile(out, archive, 0o644)
}

// taken are the files, all that is in those that are folders, and the libraries of them all.
func taken(more []string) ([]oci.File, error) {
	if len(more) == 0 {
		return nil, nil
	}
	linked := regexp.MustCompile(`(/\S+) \(0x`)
	names := map[string]bool{}
	for _, from := range more {
		err := filepath.WalkDir(from, func(name string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			names[name] = true
			out, err := exec.Command("ldd", name).Output()
			if err != nil {
				return nil //nolint:nilerr // it is not linked to anything
			}
			for _, m := range linked.FindAllStringSubmatch(string(out), -1) {
				names[m[1]] = true
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	var files []oci.File
	for _, name := range slices.Sorted(maps.Keys(names)) {
		content, err := os.ReadFile(name) // of a link what it leads to
		if err != nil {
			return nil, err
		}
		files = append(files, oci.File{Name: strings.TrimPrefix(name, "/"), Content: content})
	}
	return files, nil
}
