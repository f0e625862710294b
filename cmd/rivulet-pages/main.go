// Command rivulet-pages writes files for packages of the program: a man page for every verb, completions for bash, zsh
// and fish, Debian's changelog, and below usr the unit and the kernel's settings. It alone writes the given folder. The same
// commands, time and version give the same bytes.
//
//	go run ./cmd/rivulet-pages FOLDER SECONDS VERSION
package main

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"rivulet/cmd/rivulet/cli"
	"rivulet/systemd"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "rivulet-pages:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 3 {
		return errors.New("usage: rivulet-pages FOLDER SECONDS VERSION (the commit's time since 1970, and the package's version)")
	}
	seconds, err := strconv.ParseInt(args[1], 10, 64)
	if err != nil {
		return err
	}
	date := time.Unix(seconds, 0).UTC()
	dir := args[0]
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	man := filepath.Join(dir, "man")
	if err := os.MkdirAll(man, 0o755); err != nil {
		return err
	}
	root := cli.Command()
	if err := doc.GenManTree(root, &doc.GenManHeader{Title: "RIVULET", Section: "1", Source: "Rivulet", Manual: "Rivulet", Date: &date}, man); err != nil {
		return err
	}
	pages, err := filepath.Glob(filepath.Join(man, "*.1"))
	if err != nil {
		return err
	}
	errs := []error{completions(root, dir), changelog(filepath.Join(dir, "changelog.gz"), args[2], date)}
	for _, page := range pages { // as Debian's policy has them
		raw, err := os.ReadFile(page)
		errs = append(errs, err, compressed(page+".gz", raw), os.Remove(page))
	}
	for _, f := range systemd.PackageFiles() {
		path := filepath.Join(dir, f.Path)
		errs = append(errs, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(f.Content), 0o644))
	}
	return errors.Join(errs...)
}

// changelog writes what Debian's policy asks of a package that is made outside of Debian.
func changelog(path, version string, date time.Time) error {
	version = strings.Replace(strings.TrimPrefix(version, "v"), "-", "~", 1) // as nfpm does
	return compressed(path, []byte(fmt.Sprintf("rivulet (%s) stable; urgency=medium\n\n  * What has changed: CHANGELOG.md of the sources.\n\n -- %s  %s\n",
		version, maintainer, date.Format(time.RFC1123Z))))
}

// maintainer is that of image/package/nfpm.yaml.
const maintainer = "The Rivulet authors <rivulet@localhost>"

func compressed(path string, raw []byte) error {
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return err
	}
	if _, err := w.Write(raw); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	return os.WriteFile(path, b.Bytes(), 0o644)
}

func completions(root *cobra.Command, dir string) error {
	return errors.Join(
		root.GenBashCompletionFileV2(filepath.Join(dir, "rivulet.bash"), true),
		root.GenZshCompletionFile(filepath.Join(dir, "_rivulet")),
		root.GenFishCompletionFile(filepath.Join(dir, "rivulet.fish"), true))
}
