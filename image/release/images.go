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

// checkTested demands that each image is there and has passed its tests, this very one. in is the folder of the images.
func (o origin) checkTested(in string, arches []string) error {
	var errs []error
	for _, arch := range arches {
		name := "rivulet-" + o.version + "-" + arch
		cure := "; make image ARCH=%[1]s%[2]s and make test-image ARCH=%[1]s%[2]s, or IMAGES= for a release without images"
		wrong := func(format string, args ...any) {
			errs = append(errs, fmt.Errorf(format+fmt.Sprintf(cure, arch, o.asDraft()), args...))
		}
		sum, _, err := filesum.SHA256(filepath.Join(in, name+".img.zst"))
		if err != nil {
			wrong("%w", err)
			continue
		}
		for _, end := range ends {
			if _, err := os.Stat(filepath.Join(in, name+end)); err != nil {
				wrong("%w", err)
			}
		}
		if tested, err := os.ReadFile(filepath.Join(in, name+testedEnd)); err != nil {
			wrong("the image for %s was not tested: %w", arch, err)
		} else if !strings.HasPrefix(string(tested), sum+" ") {
			wrong("%s is of another image than this one (%.12s…)", name+testedEnd, sum)
		}
	}
	return errors.Join(errs...)
}

// images copies the images to out, if all of them were tested.
func (o origin) images(in, out string, arches []string) error {
	if err := o.checkTested(in, arches); err != nil {
		return err
	}
	for _, arch := range arches {
		for _, end := range ends {
			if err := publish(filepath.Join(in, "rivulet-"+o.version+"-"+arch+end), out); err != nil {
				return err
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
