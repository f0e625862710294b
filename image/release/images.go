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

// testedEnd is what has the place of .img.zst in the name of the file that make test-image
// leaves when all tests passed: a line of sha256sum for the image that they ran with.
const testedEnd = ".tested"

// ends are those of what is published of an image.
var ends = []string{".img.zst", ".img.bmap", ".bundle", ".spdx.json"}

// images puts the images into out, and their lines for SHA256SUMS to sums. One that has not
// passed its tests, or is another than the one that has, is refused.
func images(version, in, out string, arches []string, sums io.Writer) error {
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
			if err := publish(filepath.Join(in, name+end), out, sums); err != nil {
				return fmt.Errorf("%w; make image ARCH=%s", err, arch)
			}
		}
	}
	return nil
}

func publish(file, out string, sums io.Writer) error {
	if _, err := addSum(sums, file); err != nil {
		return err
	}
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
