// Command mutants shows that the checks of this tree can fail: it makes the faults of
// mutants.yaml, one at a time, in a copy of the last commit, and runs the test that has to
// notice each, before and with the fault. It ends with 1 when a test fails before (it would
// prove nothing then), when it passes with the fault, or when a fault cannot be made any more.
//
// With -cores N it makes N operators of the pure packages wrong, chosen by -seed, and runs the
// tests beside them; it ends with 1 when fewer than nine of ten are noticed.
//
// It reads the git history, needs root and the binary that RIVULET_BIN names, and removes the
// copy, a git worktree in the folder for temporary files, at the end.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"sigs.k8s.io/yaml"

	"rivulet/test/harness/tree"
)

// table is the file with the faults.
const table = "test/programs/mutants/mutants.yaml"

// mutant is a fault, and the test that has to notice it.
type mutant struct {
	Group, Fault   string
	File, Old, New string
	Test           string // folder, space, name
}

func read() (all []mutant, err error) {
	raw, err := os.ReadFile(tree.Path(table))
	if err == nil {
		err = yaml.UnmarshalStrict(raw, &all)
	}
	return all, err
}

// apply returns the text of the file with the fault.
func (m mutant) apply(text string) (string, error) {
	if n := strings.Count(text, m.Old); n != 1 || m.Old == m.New {
		return "", fmt.Errorf("%s has %q %d times, not once; mend %s", m.File, m.Old, n, table)
	}
	return strings.Replace(text, m.Old, m.New, 1), nil
}

func main() {
	tags := flag.String("tags", "", "build tags of all tests")
	only := flag.String("only", "", "the faults whose group matches this regular expression, or the packages")
	cores := flag.Int("cores", 0, "make so many operators of the pure packages wrong instead of the faults of the table")
	seed := flag.Uint64("seed", uint64(time.Now().Unix()), "chooses the operators")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, *tags, *only, *cores, *seed)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, tags, only string, cores int, seed uint64) error {
	chosen, err := regexp.Compile(only)
	if err != nil {
		return err
	}
	all, err := read()
	if err != nil {
		return err
	}
	temp, err := os.MkdirTemp("", "rivulet-mutants-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	c := tryout{dir: filepath.Join(temp, "tree"), tags: tags}
	if err := git("worktree", "add", "--quiet", "--detach", c.dir, "HEAD"); err != nil {
		return err
	}
	defer git("worktree", "remove", "--force", c.dir) //nolint:errcheck // the folder is removed all the same, and git prunes the rest
	if cores > 0 {
		return c.cores(ctx, cores, seed, chosen.MatchString)
	}
	var bad []error
	for _, m := range all {
		if !chosen.MatchString(m.Group) {
			continue
		}
		began := time.Now()
		err := c.try(ctx, m)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		verdict := "killed"
		if err != nil {
			verdict = "ALIVE"
			bad = append(bad, fmt.Errorf("%s: %s: %w", m.Group, m.Fault, err))
		}
		fmt.Printf("%-6s %4.0fs  %s: %s  (%s)\n", verdict, time.Since(began).Seconds(), m.Group, m.Fault, m.Test)
	}
	return errors.Join(bad...)
}

func git(args ...string) error {
	cmd := exec.Command("git", append([]string{"-C", tree.Path()}, args...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("git %s: %w: %s", args[0], err, out)
	}
	return nil
}

// tryout is the copy.
type tryout struct{ dir, tags string }

// try returns nil if the test passes without the fault and fails with it.
func (c tryout) try(ctx context.Context, m mutant) error {
	file := filepath.Join(c.dir, m.File)
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	faulty, err := m.apply(string(text))
	if err != nil {
		return err
	}
	if ended, out := c.test(ctx, m.Test); ended != "PASS" {
		return fmt.Errorf("%s does not pass without the fault (%s), so it shows nothing:\n%s", m.Test, ended, out)
	}
	if err := os.WriteFile(file, []byte(faulty), 0o644); err != nil {
		return err
	}
	ended, out := c.test(ctx, m.Test)
	if err := os.WriteFile(file, text, 0o644); err != nil {
		return err
	}
	if ended != "FAIL" {
		return fmt.Errorf("%s does not fail with the fault (%s):\n%s", m.Test, ended, out)
	}
	return nil
}

// test runs one test and returns how it ended, PASS, FAIL or SKIP, and the end of its output.
// What does not build, or has no such test, has ended in no way.
func (c tryout) test(ctx context.Context, test string) (ended, output string) {
	folder, name, _ := strings.Cut(test, " ")
	pattern := "^" + strings.ReplaceAll(name, "/", "$/^") + "$"
	cmd := exec.CommandContext(ctx, "go", "test", "-tags", c.tags, "-vet=off", "-count=1", "-timeout=20m", "-v", "-run", pattern, "./"+folder)
	cmd.Dir = c.dir
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.Env = append(os.Environ(), "RIVULET_TEST_K3S="+os.Getenv("RIVULET_BIN"))
	raw, err := cmd.CombinedOutput()
	m := regexp.MustCompile(`(?m)^\s*--- (PASS|FAIL|SKIP): ` + regexp.QuoteMeta(name) + ` `).FindSubmatch(raw)
	ended = "it did not run"
	if m != nil && (string(m[1]) == "FAIL" || err == nil) {
		ended = string(m[1])
	}
	return ended, string(bytes.TrimSpace(raw[max(0, len(raw)-4000):]))
}
