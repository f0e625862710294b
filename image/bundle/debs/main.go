// Command debs fetches the Debian packages of the bundle and extracts the needed files (docs/design/bundle.md). It
// reads the list of pinned packages and alone writes -cache (the packages, shared by all work trees) and, below -out,
// netfilter/, sysroot/ and apt/. It may be run again at any time.
//
//	go run ./image/bundle/debs -arch arm64 -out _build/bundle/linux_arm64
//	go run ./image/bundle/debs -pins -out _build/pins
package main

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"rivulet/image/debian"
	"rivulet/image/sources"
)

func main() {
	arch := flag.String("arch", "", "GOARCH that is built for")
	cache := flag.String("cache", defaultCache(), "folder that keeps the packages")
	out := flag.String("out", "", "folder for what is taken out of them")
	pins := flag.Bool("pins", false, "write the list anew with what apt offers")
	flag.Parse()
	err := error(nil)
	if *pins {
		err = pin(*out)
	} else {
		err = take(*arch, *cache, *out)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "debs:", err)
		os.Exit(1)
	}
}

func defaultCache() string {
	dir, err := debian.Cache()
	if err != nil {
		return "_build/debs"
	}
	return dir
}

func take(goarch, cache, out string) error {
	target, ok := targets[goarch]
	if !ok {
		return fmt.Errorf("nothing is known of architecture %q; there are %v", goarch, slices.Sorted(maps.Keys(targets)))
	}
	all, err := pinned(".", target.arch)
	if err != nil {
		return err
	}
	source, err := debian.NewApt(target.arch, filepath.Join(out, "apt"), "", renew)
	if err != nil {
		return err
	}
	files := tree{}
	for _, d := range all {
		path, err := source.Fetch(d, cache)
		if err != nil {
			return err
		}
		if err := files.read(path); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	if err := sysroot(files, target.triplet, filepath.Join(out, "sysroot")); err != nil {
		return err
	}
	return netfilter(files, all, target.triplet, filepath.Join(out, "netfilter"))
}

// pin writes the list with the newest packages of all architectures.
func pin(out string) error {
	var all []debian.Deb
	for _, goarch := range slices.Sorted(maps.Keys(targets)) {
		arch := targets[goarch].arch
		source, err := debian.NewApt(arch, filepath.Join(out, arch), "", renew)
		if err != nil {
			return err
		}
		for _, name := range wanted {
			d, err := source.Offered(name)
			if err != nil {
				return err
			}
			all = append(all, d)
		}
	}
	return os.WriteFile(sources.BundleList, debian.Format(head, all), 0o644)
}
