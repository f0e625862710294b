// Command make makes the archives of sources of a release, and the lists that name them (docs/design/release.md). It
// reads the tree, its lists of Debian packages, the package sources of the build host and Go's module cache; it alone
// writes image/sources/packages.lock, the files that it is told, and the cache of source packages. The same commit gives
// the same bytes.
//
//	go run ./image/sources/make lock
//	go run ./image/sources/make pack -version v1 -built 1700000000 -out bin/sources
//	go run ./image/sources/make list -version v1 -of amd64 -out _build/pages/SOURCES
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"rivulet/image/debian"
	"rivulet/image/sources"
)

// work is the folder for what is made on the way.
const work = "_build/sources"

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "sources:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	flags := flag.NewFlagSet("make", flag.ContinueOnError)
	version := flags.String("version", "", "of the release")
	of := flags.String("of", "", "architecture of the binary that a list is for")
	out := flags.String("out", "", "folder for the archives, file for a list")
	built := flags.Int64("built", 0, "seconds since 1970, the time of everything in the archives")
	if len(args) == 0 {
		return errors.New("lock, pack or list; see the head of image/sources/make")
	}
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	switch args[0] {
	case "lock":
		return lock()
	case "pack":
		return pack(*version, time.Unix(*built, 0).UTC(), *out)
	case "list":
		text, err := sources.OfBundle(".", *version, *of)
		if err != nil {
			return err
		}
		return os.WriteFile(*out, text, 0o644)
	}
	return fmt.Errorf("%s is none of lock, pack and list", args[0])
}

// suites are Debian's releases that packages are of: the bundle's and the images'.
var suites = []struct {
	name       string
	components []string
}{{"bookworm", []string{"main"}}, {"trixie", []string{"main", "non-free-firmware"}}}

// newApt has both releases of Debian, with their source packages.
func newApt(arch, renew string) (*debian.Apt, error) {
	host, err := debian.HostSources("/etc/apt")
	if err != nil {
		return nil, err
	}
	lines := ""
	for _, s := range suites {
		more, err := debian.Suites(host, s.name, s.components...)
		if err != nil {
			return nil, err
		}
		lines += more
	}
	return debian.NewApt(arch, filepath.Join(work, "apt-"+arch), debian.WithSources(lines), renew)
}

// lock writes the list of source packages anew.
func lock() error {
	debs, err := sources.All(".")
	if err != nil {
		return err
	}
	var l sources.Lock
	var wanted []debian.SourceVersion
	for _, arch := range []string{"amd64", "arm64", "armhf"} {
		apt, err := newApt(arch, "renew the pinned packages: make bundle-pins and make image-lock")
		if err != nil {
			return err
		}
		mine := slices.DeleteFunc(slices.Clone(debs), func(d debian.Deb) bool { return d.Arch != arch && (d.Arch != "all" || arch != "amd64") })
		of, err := apt.SourcesOf(mine)
		if err != nil {
			return err
		}
		for _, d := range mine {
			l.Binaries, wanted = append(l.Binaries, sources.Binary{Deb: d, Sources: of[d]}), append(wanted, of[d]...)
		}
		if arch != "armhf" {
			continue
		}
		slices.SortFunc(wanted, func(x, y debian.SourceVersion) int { return strings.Compare(x.String(), y.String()) })
		if l.Files, err = apt.SourceFiles(slices.Compact(wanted)); err != nil {
			return err
		}
	}
	return os.WriteFile(sources.LockFile, l.Format(), 0o644)
}
