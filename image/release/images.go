package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"rivulet/image/filesum"
)

// testedEnd replaces .img.zst in the name of the file that make test-image writes after all tests passed: a line of
// sha256sum for the tested image.
const testedEnd = ".tested"

// ends are the file name endings of an image's published files.
var ends = []string{".img.zst", ".img.bmap", ".bundle", ".img.cdx.json"}

// images copies the images to out. It refuses an image that has not passed its tests, or differs from the tested one.
func images(version, in, out string, arches []string) error {
	for _, arch := range arches {
		name := "rivulet-" + version + "-" + arch
		sum, _, err := filesum.SHA256(filepath.Join(in, name+".img.zst"))
		if err != nil {
			return fmt.Errorf("%w; make image ARCH=%s, or IMAGES= for a release without images", err, arch)
		}
		tested, err := os.ReadFile(filepath.Join(in, name+testedEnd))
		if err != nil {
			return fmt.Errorf("the image for %s was not tested: %w; make test-image ARCH=%s", arch, err, arch)
		}
		if !strings.HasPrefix(string(tested), sum+" ") {
			return fmt.Errorf("%s is of another image than this one (%.12s…); make test-image ARCH=%s", name+testedEnd, sum, arch)
		}
	}
	for _, arch := range arches {
		for _, end := range ends {
			name := "rivulet-" + version + "-" + arch
			if err := publish(filepath.Join(in, name+end), out); err != nil {
				return fmt.Errorf("%w; make image ARCH=%s", err, arch)
			}
		}
	}
	return nil
}

func publish(file, out string) error {
	to := filepath.Join(out, filepath.Base(file))
	if os.Link(file, to) == nil {
		return nil
	}
	from, err := os.Open(file) // on another disk: a copy
	if err != nil {
		return err
	}
	defer from.Close()
	f, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, from)
	return errors.Join(err, f.Close())
}
