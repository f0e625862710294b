// Command conformance runs upstream's Kubernetes end-to-end tests on two devices of a lab:
// at home, with every new namespace of device a offloaded to device b, and inside a virtual
// cluster on a. It writes what came of it to a page of the documentation, and fails when a test that is
// green there is red now. It is never shipped; docs/design/conformance.md is its manual.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"rivulet/test/harness/conformancepage"
)

// options say what is run.
type options struct {
	bin     string // folder with the programs that make conformance builds
	rivulet string // the binary under test
	dir     string // the lab's folder
	focus   string // regular expression: tests to run
	skip    string // regular expression: tests not to run
	runs    []string
	page    string
	accept  bool
	keep    bool
	procs   int
	limit   time.Duration // for one run
}

func main() {
	var o options
	var runs string
	flag.StringVar(&o.bin, "bin", "bin/conformance", "folder with e2e.test, ginkgo and agnhost")
	flag.StringVar(&o.rivulet, "rivulet", "bin/rivulet", "the binary under test")
	flag.StringVar(&o.dir, "dir", "/var/lib/rivulet-lab-conformance", "folder of the lab, which must not be up")
	flag.StringVar(&o.focus, "focus", `\[Conformance\]`, "regular expression: run the tests whose names match")
	flag.StringVar(&o.skip, "skip", `\[Serial\]|\[Slow\]|\[Disruptive\]|\[Flaky\]`, "regular expression: leave these out")
	flag.StringVar(&runs, "runs", strings.Join(conformancepage.Runs, ","), "which runs, in this order")
	flag.StringVar(&o.page, "page", "docs/reference/conformance.md", "the page with the results")
	flag.BoolVar(&o.accept, "accept", false, "write to the page what is red now and was green, too")
	flag.BoolVar(&o.keep, "keep", false, "leave the lab up when the runs have ended")
	flag.IntVar(&o.procs, "procs", 2, "tests at the same time")
	flag.DurationVar(&o.limit, "limit", 4*time.Hour, "end of a run that takes longer")
	flag.Parse()
	o.runs = strings.Split(runs, ",")
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "conformance: "+err.Error())
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) (err error) {
	for _, r := range o.runs {
		if !slices.Contains(conformancepage.Runs, r) {
			return fmt.Errorf("-runs %s: there are %s", r, strings.Join(conformancepage.Runs, ", "))
		}
	}
	page, err := conformancepage.Read(o.page)
	if err != nil {
		return err
	}
	archive := o.bin + "/images.tar"
	if err := makeImages(o.bin, archive); err != nil {
		return fmt.Errorf("images: %w", err)
	}
	l, err := makeLab(ctx, o, archive)
	if err != nil {
		return err
	}
	if !o.keep {
		defer l.down(&err)
	}
	var red []string
	for _, r := range o.runs {
		results, err := l.run(ctx, o, r)
		red = append(red, page.Take(r, results, o.accept)...)
		if err := errors.Join(err, page.Write(o.page)); err != nil {
			return fmt.Errorf("%s: %w", r, err)
		}
	}
	if len(red) > 0 {
		return fmt.Errorf("%d tests that were green are red; their output is in %s:\n  %s", len(red), o.bin, strings.Join(red, "\n  "))
	}
	return nil
}
