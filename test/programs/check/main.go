// Command check runs what guards the tree and says in one table what ran, how long it took
// and what is missing:
//
//	check test [race] [plain] [labs]   the packages, by group
//	check changed [-base REV] [-until] the device suites that guard what changed since REV, then others in turn
//	check all [SUITE...]               device suites; without names all, and the page of results
//	check claims                       whether each test that the pages on security and data name has passed since check start
//	check time NAME COMMAND...         a command, for the table
//	check table                        the table of everything since check start
//	check start                        begins a new table
//
// It reads test/suites.yaml, test/budget.yaml and the git history, and writes _build/check.jsonl
// (a line for each thing that ran) and, by check all, docs/reference/suites.md. It ends
// with 1 when something failed, with 3 when nothing did but something did not run.
// With RIVULET_MUST=1 a skipped test fails unless test/suites.yaml allows its reason.
// docs/design/check.md describes it.
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
	switch err := run(os.Args[1:]); {
	case errors.Is(err, errIncomplete):
		os.Exit(3)
	case errors.Is(err, errRed):
		os.Exit(1)
	case err != nil:
		fmt.Fprintln(os.Stderr, "check: "+err.Error())
		os.Exit(1)
	}
}

// The table has told of these.
var (
	errRed        = errors.New("something failed")
	errIncomplete = errors.New("something did not run")
)

func run(args []string) error {
	flags := flag.NewFlagSet("check", flag.ContinueOnError)
	c := checker{record: tree.Path("_build", "check.jsonl"), began: time.Now(), must: os.Getenv("RIVULET_MUST") != ""}
	flags.StringVar(&c.tags, "tags", "", "build tags of all tests")
	flags.StringVar(&c.gotestsum, "gotestsum", tree.Path("_build", "gotestsum"), "the program that prints results")
	base := flags.String("base", "", "changed: the commit to compare with; without one: where HEAD left origin/main, or the last commit of six hours before HEAD")
	until := flags.Int64("until", 0, "changed: seconds since 1970 by which no suite begins that would not end; 0: no limit, and no suites but those that guard the change")
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
	if err := errors.Join(read("test/suites.yaml", &c.suites), read("test/budget.yaml", &c.budget)); err != nil {
		return err
	}
	switch verb, rest := args[0], args[1:]; verb {
	case "start":
		return c.start()
	case "test":
		return c.test(rest)
	case "changed":
		return c.changed(*base, *until)
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
	budget    budget
	must      bool // a skip fails, unless its reason is allowed
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
