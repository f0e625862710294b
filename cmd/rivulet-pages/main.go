// Command rivulet-pages writes files for packages of the program: a man page for every verb, completions for bash, zsh
// and fish, changelogs as Debian and rpm have them, and below usr the unit and the kernel's settings. It reads CHANGELOG.md
// and alone writes the given folder. The same commands, changes and words give the same bytes.
//
//	go run ./cmd/rivulet-pages FOLDER SECONDS VERSION MAINTAINER
package main

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"go.yaml.in/yaml/v3"

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
	if len(args) != 4 {
		return errors.New("usage: rivulet-pages FOLDER SECONDS VERSION MAINTAINER (the commit's time since 1970, and the package's version)")
	}
	seconds, err := strconv.ParseInt(args[1], 10, 64)
	if err != nil {
		return err
	}
	date := time.Unix(seconds, 0).UTC()
	changes, err := os.ReadFile("CHANGELOG.md")
	if err != nil {
		return err
	}
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
	errs := []error{completions(root, dir), changelogs(dir, changes, args[2], args[3], date)}
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

// released is the heading of a version in CHANGELOG.md.
var released = regexp.MustCompile(`(?m)^## (\d\S*) - (\d{4}-\d\d-\d\d)$`)

// changelogs writes CHANGELOG.md as NEWS.gz, and changelogs in the form of Debian and of nfpm for rpm: an entry for this
// version, and one for each that was released before it.
func changelogs(dir string, changes []byte, version, maintainer string, date time.Time) error {
	type note struct{ Note string }
	type entry struct {
		Semver, Packager string
		Date             time.Time
		Changes          []note
	}
	what := note{"What has changed: /usr/share/doc/rivulet/NEWS.gz"}
	var deb strings.Builder
	var rpm []entry
	add := func(version string, date time.Time) {
		fmt.Fprintf(&deb, "rivulet (%s) stable; urgency=medium\n\n  * %s\n\n -- %s  %s\n\n", version, what.Note, maintainer, date.Format(time.RFC1123Z))
		rpm = append(rpm, entry{version + "-1", maintainer, date, []note{what}})
	}
	packaged := strings.Replace(strings.TrimPrefix(version, "v"), "-", "~", 1) // as nfpm does
	add(packaged, date)
	for _, m := range released.FindAllStringSubmatch(string(changes), -1) {
		day, err := time.Parse(time.DateOnly, m[2])
		if err != nil {
			return fmt.Errorf("CHANGELOG.md: %w", err)
		}
		if m[1] != packaged {
			add(m[1], day)
		}
	}
	log, err := yaml.Marshal(rpm)
	return errors.Join(err, compressed(filepath.Join(dir, "NEWS.gz"), changes), compressed(filepath.Join(dir, "changelog.gz"), []byte(deb.String())),
		os.WriteFile(filepath.Join(dir, "changelog.yaml"), log, 0o644))
}

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
