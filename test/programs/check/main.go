// Command check runs what guards the tree and says in one table what ran, how long it took
// and what was left out:
//
//	check test [race] [plain] [labs]   the packages, by group
//	check changed [-base REV] [-until] the device suites that guard what changed since REV
//	check all [SUITE...]               device suites, and the claims of the security page
//	check claims                       the tests that docs/design/security.md names
//	check time NAME COMMAND...         a command, for the table
//	check table                        the table of everything since check start
//	check start                        begins a new table
//
// It reads test/suites.yaml, test/flaky.md and the git history, and writes _build/check.jsonl
// (a line for each thing that ran) and, by check all, docs/reference/suites.md. It ends
// with 1 when something that blocks has failed. docs/design/check.md describes it.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"rivulet/test/harness/tree"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		if text := err.Error(); text != "" {
			fmt.Fprintln(os.Stderr, "check: "+text)
		}
		os.Exit(1)
	}
}

// errRed is a failure of which the table has told.
var errRed = errors.New("")

func run(args []string) error {
	flags := flag.NewFlagSet("check", flag.ContinueOnError)
	c := checker{record: tree.Path("_build", "check.jsonl"), began: time.Now()}
	flags.StringVar(&c.tags, "tags", "", "build tags of all tests")
	flags.StringVar(&c.gotestsum, "gotestsum", tree.Path("_build", "gotestsum"), "the program that prints results")
	base := flags.String("base", "", "changed: the commit to compare with; without one: where HEAD left origin/main")
	until := flags.Int64("until", 0, "changed: seconds since 1970 by which no suite begins that would not end; 0: no limit")
	if err := flags.Parse(args); err != nil {
		return err
	}
	args = flags.Args()
	if len(args) == 0 {
		return errors.New("which check? test, changed, all, claims, time, table or start")
	}
	if err := os.MkdirAll(tree.Path("_build"), 0o755); err != nil {
		return err
	}
	if err := os.Chdir(tree.Path()); err != nil {
		return err
	}
	s, err := readSuites(tree.Path("test", "suites.yaml"))
	if err != nil {
		return err
	}
	c.suites = s
	if c.flaky, err = readFlaky(tree.Path("test", "flaky.md")); err != nil {
		return err
	}
	for name := range c.flaky {
		if pkg, _, _ := strings.Cut(name, " "); s.safety(pkg) {
			return fmt.Errorf("test/flaky.md: %s: a test of a package under safety (test/suites.yaml) has no second try; mend it", name)
		}
	}
	switch verb, rest := args[0], args[1:]; verb {
	case "start":
		return c.start()
	case "test":
		return c.test(rest)
	case "changed":
		return c.changed(*base, time.Unix(*until, 0))
	case "all":
		return c.all(rest)
	case "claims":
		return c.claims()
	case "time":
		return c.time(rest)
	case "table":
		return c.table()
	default:
		return fmt.Errorf("there is no check %q: test, changed, all, claims, time, table or start", verb)
	}
}

type checker struct {
	tags      string
	gotestsum string
	record    string // the file of results
	suites    suites
	flaky     map[string]string // "package Test" → why
	began     time.Time
	mine      []result // of this process
}

// time runs a command and notes how it ended.
func (c *checker) time(args []string) error {
	if len(args) < 2 {
		return errors.New("usage: check time NAME COMMAND...")
	}
	began := time.Now()
	cmd := exec.Command(args[1], args[2:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	r := result{Kind: "step", Name: args[0], State: passed}
	err := cmd.Run()
	if err != nil {
		r.State = failed
		fmt.Fprintf(os.Stderr, "check: %s: %v\n", strings.Join(args[1:], " "), err)
	}
	r.Seconds = time.Since(began).Seconds()
	if err := c.note(r); err != nil {
		return err
	}
	if r.State == failed {
		return errRed
	}
	return nil
}
