// Command build makes a device image and the bundle that updates a device (docs/design/image.md), without root, loop
// device, emulation or scripts of packages. It reads packages.list, packages.lock, the product's binary and the package
// sources; it alone writes -out, -work and the cache of packages. The same inputs give the same bytes.
//
//	go run ./image/device/build -arch amd64 -binary bin/rivulet -version v1 -out bin/image
//	go run ./image/device/build -lock
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"rivulet/image/debian"
	"rivulet/image/sources"
)

const (
	listFile = "image/device/packages.list"
	release  = "trixie"
	renew    = "take what apt offers now with `make image-lock`, read the diff of " + sources.ImageLock + " and commit it"
)

// job builds one image.
type job struct {
	arch, binary        string
	version, kubernetes string // as in the output of `rivulet version`
	out, work           string
	epoch               time.Time // of everything in the image
	debs                []debian.Deb
	root, fat, slot     string // trees: the root file system, the FAT partition, one slot's boot folder
	kernel              string // its version
}

func main() {
	arch := flag.String("arch", "amd64", "amd64 or arm64")
	binary := flag.String("binary", "bin/rivulet", "the product, for that architecture")
	version := flag.String("version", "dev", "its version")
	kubernetes := flag.String("kubernetes", "", "the Kubernetes in it, as rivulet version says")
	out := flag.String("out", "bin/image", "folder for the image")
	work := flag.String("work", "_build/image", "folder for what is made on the way")
	epoch := flag.Int64("epoch", 0, "seconds since 1970, the time of everything in the image")
	lock := flag.Bool("lock", false, "write "+sources.ImageLock+" anew with what apt offers")
	raw := flag.Bool("raw", false, "keep the image uncompressed too, for tests")
	flag.Parse()
	syscall.Umask(0o022) // files written by this program and depmod get the image's modes, whatever the user's umask
	err := error(nil)
	if *lock {
		err = writeLock(*work)
	} else {
		j := &job{arch: *arch, binary: *binary, version: *version, kubernetes: *kubernetes, out: *out, work: filepath.Join(*work, *arch), epoch: time.Unix(*epoch, 0).UTC()}
		err = j.make(*raw)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func (j *job) make(keepRaw bool) error {
	j.root, j.fat, j.slot = filepath.Join(j.work, "root"), filepath.Join(j.work, "fat"), filepath.Join(j.work, "slot")
	for _, d := range []string{j.root, j.fat, j.slot} {
		if err := os.RemoveAll(d); err != nil {
			return err
		}
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(j.out, 0o755); err != nil {
		return err
	}
	start := time.Now()
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"packages", j.unpack},
		{"fix", j.fix},
		{"ours", j.ours},
		{"radio", j.radio},
		{"initrd", j.initrd},
		{"root", j.squash},
		{"boot", j.boot},
		{"disk", j.disk},
		{"check", j.check},
		{"bundle", j.bundle},
		{"publish", func() error { return j.publish(keepRaw) }},
	} {
		if err := step.do(); err != nil {
			return fmt.Errorf("%s: %s: %w", j.arch, step.name, err)
		}
		fmt.Printf("  IMAGE  %s %s (%.0f s)\n", j.arch, step.name, time.Since(start).Seconds())
	}
	return nil
}
