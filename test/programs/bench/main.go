// Command bench measures what DESIGN §7 promises, as ratios taken in one run, and
// writes all files of bench/. It is never shipped. How each figure comes about is in
// docs/design/bench.md and, in full, in the file named after the measurement.
//
// It works in a folder of its own (-dir), on a copy of bin/rivulet, in labs and
// network namespaces that it makes, and removes all of that whatever happens. A
// measurement that fails or takes too long is reported as cut short; the others
// are made all the same, and the exit status is 1. Files of such a run stay in
// _build/bench; bench/ has those of whole runs only.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"k8s.io/klog/v2"

	"rivulet/test/harness/tree"
	"rivulet/test/programs/bench/internal/device"
	"rivulet/test/programs/bench/internal/fakepeer"
	"rivulet/test/programs/bench/internal/figures"
	"rivulet/test/programs/bench/internal/wire"
)

// bench is what all measurements share.
type bench struct {
	stage *device.Stage
	tell  func(format string, args ...any)
	quick bool // as many rounds as the gate needs
	kit   kit  // see helpers.go
}

// rounds are how many there are, usually and where it is to be quick.
func (b *bench) rounds(usual, quick int) int {
	if b.quick {
		return quick
	}
	return usual
}

// measurement fills its section as it goes: what was measured before a failure counts.
type measurement struct {
	name  string
	limit time.Duration
	run   func(*bench, context.Context, *figures.Section) error
	file  string // of the report
}

// Those of one file follow each other.
var measurements = []measurement{
	{"start", 5 * time.Minute, (*bench).start, "results.md"},
	{"memory", 6 * time.Minute, (*bench).memory, "results.md"},
	{"peering", 4 * time.Minute, (*bench).peering, "results.md"},
	{"pods", 8 * time.Minute, (*bench).pods, "results.md"},
	{"tunnel", 8 * time.Minute, (*bench).tunnel, "tunnel.md"},
	{"away", 12 * time.Minute, (*bench).away, "away.md"},
	{"peers", 15 * time.Minute, (*bench).peers, "peers.md"},
	{"burst", 14 * time.Minute, (*bench).burst, "burst.md"},
	{"vcluster", 20 * time.Minute, (*bench).vcluster, "vcluster.md"},
	{"nodes", 15 * time.Minute, (*bench).nodes, "nodes.md"},
	{"hollow", 8 * time.Minute, (*bench).hollow, "nodes.md"},
	{"board", 18 * time.Minute, (*bench).board, "board.md"},
}

func main() {
	switch filepath.Base(os.Args[0]) {
	case wire.BareName:
		exit(wire.BareMain())
	case fakepeer.Name:
		exit(fakepeer.Main())
	case "rivulet":
		exit(plainEngine())
	}
	dir := flag.String("dir", "/var/lib/rivulet-lab-bench", "folder to work in")
	binary := flag.String("binary", tree.Path("bin", "rivulet"), "what to measure; demo-web.tar must lie beside it")
	out := flag.String("out", "bench", "folder of the reports of a run that measured everything")
	commit := flag.String("commit", "unknown", "of the tree that the binary is of")
	var names []string
	for _, m := range measurements {
		names = append(names, m.name)
	}
	only := flag.String("only", "", "measure only these, of "+strings.Join(names, ",")+", and write to standard output: the files of a folder are of one run")
	gate := flag.String("gate", "", "a short bench, its ratios compared with those of this file; the exit status is 1 if one got worse")
	write := flag.Bool("write", false, "with -gate: write the file")
	flag.Parse()
	chosen := names
	if *gate != "" {
		*only = "start,pods,tunnel"
	}
	if *only != "" {
		chosen, *out = strings.Split(*only, ","), ""
	}
	for _, n := range chosen {
		if !slices.Contains(names, n) {
			exit(fmt.Errorf("bench: there is no measurement %q; there are %s", n, strings.Join(names, ", ")))
		}
	}
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard) // clients whose lab is not up yet try again; what fails is told by the measurement
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	sections, err := run(ctx, *dir, *binary, *commit, *out, chosen, *gate != "")
	if *gate != "" && err == nil {
		err = compare(os.Stdout, *gate, *write, *commit, sections)
	}
	exit(err)
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// run measures what is chosen and writes the file of each, as far as it goes, to _build/bench, and
// at last all files into the folder out if nothing failed. Without out it writes to standard output.
func run(ctx context.Context, dir, binary, commit, out string, chosen []string, quick bool) (done []figures.Section, err error) {
	begun := time.Now()
	b := &bench{quick: quick, tell: func(format string, args ...any) {
		fmt.Fprintf(os.Stderr, "%6.1f s  %s\n", time.Since(begun).Seconds(), fmt.Sprintf(format, args...))
	}}
	if b.stage, err = device.NewStage(ctx, dir, binary, b.tell); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.stage.Close(ctx)) }()
	sections := map[string][]figures.Section{} // by file
	var errs []error
	for _, m := range measurements {
		if !slices.Contains(chosen, m.name) {
			continue
		}
		if ctx.Err() != nil {
			return nil, errors.Join(append(errs, ctx.Err())...)
		}
		b.tell("%s", m.name)
		s := figures.Section{}
		at := time.Now()
		func() {
			ctx, cancel := context.WithTimeout(ctx, m.limit)
			defer cancel()
			s.Err = m.run(b, ctx, &s)
		}()
		s.Took = time.Since(at)
		if s.Err != nil {
			s.Err = hide(s.Err, dir)
			b.tell("%s: %v", m.name, s.Err)
			errs = append(errs, fmt.Errorf("%s: %w", m.name, s.Err))
		}
		done = append(done, s)
		file, all := "", []figures.Section{s}
		if out != "" {
			sections[m.file] = append(sections[m.file], s)
			file, all = tree.Path(unfinished, m.file), sections[m.file]
		}
		errs = append(errs, report(file, b.version(ctx, commit), all))
	}
	if err := errors.Join(errs...); err != nil || out == "" {
		return done, err
	}
	for file := range sections {
		text, err := os.ReadFile(tree.Path(unfinished, file))
		if err == nil {
			err = os.WriteFile(filepath.Join(out, file), text, 0o644)
		}
		if err != nil {
			return done, fmt.Errorf("bench: %w", err)
		}
	}
	return done, nil
}

// unfinished is the folder of reports while a run goes on, below the root of the tree.
const unfinished = "_build/bench"

// hide keeps this machine's folders out of the report.
func hide(err error, dir string) error {
	if text := err.Error(); strings.Contains(text, dir) {
		return errors.New(strings.ReplaceAll(text, dir, "DIR"))
	}
	return err
}

func report(out, version string, sections []figures.Section) error {
	w := os.Stdout
	if out != "" {
		if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
			return fmt.Errorf("bench: %w", err)
		}
		f, err := os.Create(out)
		if err != nil {
			return fmt.Errorf("bench: %w", err)
		}
		defer f.Close()
		w = f
	}
	return figures.Write(w, time.Now(), figures.Machine(), version, sections)
}

// version is the product's own, a single word, and the commit.
func (b *bench) version(ctx context.Context, commit string) string {
	version := "of unknown version"
	raw, err := exec.CommandContext(ctx, b.stage.Binary(), "version").Output()
	if f := strings.Fields(string(raw)); err == nil && len(f) >= 2 {
		version = f[1]
	}
	return version + " · commit " + commit
}

func seconds(d time.Duration) float64 { return d.Seconds() }

const megabyte = 1e6 // as in DESIGN §7: the promises are in MB
