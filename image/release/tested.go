package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"rivulet/image/filesum"
	"rivulet/image/release/tried"
)

// imageTests is where the tests of images are.
const imageTests = "test/image"

// ends are those of what is published of an image. The log is the last: it says that
// just this image was tried.
var ends = []string{".img.zst", ".img.bmap", ".bundle", ".spdx.json", tried.End}

// images puts the images into out, and their lines for SHA256SUMS to sums. One that
// was not tried, or not with all tests, or another than the one that was, is refused.
func images(version, in, out string, arches []string, sums io.Writer) error {
	for _, arch := range arches {
		name := "rivulet-" + version + "-" + arch
		sum, _, err := filesum.SHA256(filepath.Join(in, name+".img.zst"))
		if err != nil {
			return fmt.Errorf("%w; make image ARCH=%s, or IMAGES= for a release without images", err, arch)
		}
		tests, err := testsOf(imageTests, arch)
		if err != nil {
			return err
		}
		log, err := os.ReadFile(filepath.Join(in, name+tried.End))
		if err != nil {
			return fmt.Errorf("the image for %s was not tried: %w; make %s", arch, err, target(arch))
		}
		if err := tested(log, sum, tests); err != nil {
			return fmt.Errorf("%s: %w; make %s", name+tried.End, err, target(arch))
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

// target makes the log of an architecture's image.
func target(arch string) string {
	if arch == "amd64" {
		return "test-image"
	}
	return "test-image-" + arch
}

func publish(file, out string, sums io.Writer) error {
	sum, _, err := filesum.SHA256(file)
	if err != nil {
		return err
	}
	to := filepath.Join(out, filepath.Base(file))
	if err := os.Link(file, to); err != nil { // on another disk: a copy
		from, err := os.Open(file)
		if err != nil {
			return err
		}
		defer from.Close()
		f, err := os.Create(to)
		if err != nil {
			return err
		}
		defer f.Close()
		if _, err := io.Copy(f, from); err != nil {
			return err
		}
		if err := f.Close(); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintf(sums, "%s  %s\n", sum, filepath.Base(file))
	return err
}

// tested is nil if the log is of a run with this image in which each of the tests ran
// and passed.
func tested(log []byte, sum string, tests []string) error {
	r, err := tried.Read(log)
	if err != nil {
		return err
	}
	if r.Sum != sum {
		return fmt.Errorf("it is of another image (%.12s…, this one is %.12s…)", r.Sum, sum)
	}
	if !r.Passed {
		return fmt.Errorf("the run failed")
	}
	for _, t := range tests {
		if !bytes.Contains(log, []byte("\n--- PASS: "+t+" (")) {
			return fmt.Errorf("%s did not run, or did not pass", t)
		}
	}
	return nil
}

var testFunc = regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\)`)

// testsOf are the tests that an image has to pass, by their names: those for the
// Raspberry Pi say so.
func testsOf(dir, arch string) (names []string, err error) {
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		for _, m := range testFunc.FindAllSubmatch(raw, -1) {
			name := string(m[1])
			if strings.Contains(name, "RaspberryPi") == (arch == "arm64") {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	if len(names) == 0 {
		return nil, fmt.Errorf("there are no tests of images for %s in %s; run it in the repository's root", arch, dir)
	}
	return names, nil
}
