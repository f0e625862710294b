// Package guide runs what the README and docs/guide show: the blocks of README, quick
// start and how-tos that name a device, in their order, on two devices of a lab. What a page shows
// as output has to come, but for numbers, times and names that are made up.
//
//	```sh a              the lines are run on device a, each has to succeed
//	```sh a eventually   one line that only looks: again until the output is as shown
//	```text              what the block before printed: these lines in this order, others between
//	```yaml file=NAME    a file in the folder where the commands run
//
// Blocks of plain sh are not run: they need what a lab has not (a card, the Internet, a
// laptop).
package guide

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"rivulet/test/harness/await"
	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
	"rivulet/test/harness/tree"
)

var suite = labtest.Suite{Prepare: labtest.Peered}

func TestMain(m *testing.M) {
	suite.Main(m, "guide", lab.Options{Devices: 2})
}

// Where the commands run, as seen from a device.
const folder = "/root"

func TestTheGuide(t *testing.T) {
	ctx := suite.Bounded(t, 15*time.Minute)
	for _, d := range suite.All() {
		labtest.Must(t, ctx, d, "cp", "/opt/rivulet/demo-web.tar", folder+"/web.tar")
	}
	ran := 0
	for _, page := range []string{"README.md", "docs/guide/quick-start.md", "docs/guide/how-to.md"} {
		raw, err := os.ReadFile(tree.Path(page))
		if err != nil {
			t.Fatal(err)
		}
		blocks, err := parse(string(raw))
		if err != nil {
			t.Fatalf("%s:%v", page, err)
		}
		for _, b := range blocks {
			if b.file != "" {
				for _, d := range suite.All() {
					if err := os.WriteFile(d.Path(folder+"/"+b.file), []byte(strings.Join(b.lines, "\n")+"\n"), 0o644); err != nil {
						t.Fatal(err)
					}
				}
				continue
			}
			d := suite.Devices[b.device]
			if d == nil {
				t.Fatalf("%s:%d: there is no device %q", page, b.line, b.device)
			}
			run := func() error {
				var out strings.Builder
				for _, line := range b.lines {
					r := labtest.On(t, ctx, d, "sh", "-c", "cd "+folder+" && "+strings.ReplaceAll(line, "sudo ", ""))
					out.WriteString(r.Out + r.ErrOut)
					if r.Code != 0 {
						return fmt.Errorf("%s ends with %d:\n%s", line, r.Code, &out)
					}
				}
				return matches(out.String(), b.output)
			}
			ran++
			if b.eventually {
				await.NoError(t, ctx, 3*time.Minute, fmt.Sprintf("%s:%d: %s", page, b.line, b.lines[0]), run)
			} else if err := run(); err != nil {
				t.Fatalf("%s:%d: %v", page, b.line, err)
			}
		}
	}
	if ran < 15 {
		t.Errorf("%d blocks were found to run: the pages are not read as they are written", ran)
	}
}

// Every file of the state and runtime folders is in docs/reference/files.md.
func TestFilesOfADeviceAreInTheReference(t *testing.T) {
	ctx := suite.Bounded(t, time.Minute)
	raw, err := os.ReadFile(tree.Path("docs", "reference", "files.md"))
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, dir := range []string{"/var/lib/rivulet", "/run/rivulet"} {
		for _, name := range strings.Fields(labtest.Must(t, ctx, suite.Devices["a"], "ls", "-A", dir)) {
			seen++
			if !strings.Contains(string(raw), "`"+name+"`") && !strings.Contains(string(raw), "`"+name+"/`") && !strings.HasSuffix(name, ".tmp") {
				t.Errorf("docs/reference/files.md has no row for %s/%s", dir, name)
			}
		}
	}
	if seen < 10 {
		t.Errorf("only %d files found", seen)
	}
}

// block is a fenced block that is run, or a file.
type block struct {
	line       int // of the page
	device     string
	eventually bool
	file       string
	lines      []string
	output     []string
}

// parse returns the blocks of a page that are for the test.
func parse(page string) (out []block, err error) {
	var open *block // what a block of text is the output of
	var lines []string
	info, from := "", 0
	for i, line := range strings.Split(page, "\n") {
		rest, fence := strings.CutPrefix(line, "```")
		switch {
		case fence && from == 0:
			info, from, lines = rest, i+1, nil
			continue
		case !fence && from != 0:
			lines = append(lines, line)
			continue
		case !fence:
			continue
		}
		words := strings.Fields(info)
		at := from
		from = 0
		switch {
		case len(words) == 2 && words[0] == "yaml" && strings.HasPrefix(words[1], "file="):
			out = append(out, block{line: at, file: strings.TrimPrefix(words[1], "file="), lines: lines})
			open = nil
		case len(words) >= 2 && words[0] == "sh":
			b := block{line: at, device: words[1], eventually: len(words) == 3 && words[2] == "eventually", lines: lines}
			if len(words) > 2 && !b.eventually || len(lines) == 0 || b.eventually && len(lines) != 1 {
				return nil, fmt.Errorf("%d: a block that is not understood: %s", at, info)
			}
			out = append(out, b)
			open = &out[len(out)-1]
		case len(words) == 1 && words[0] == "text":
			if open == nil {
				return nil, fmt.Errorf("%d: this is the output of nothing that is run", at)
			}
			open.output, open = lines, nil
		default:
			open = nil
		}
	}
	if from != 0 {
		return nil, fmt.Errorf("%d: a block does not end", from)
	}
	return out, nil
}

// madeUp are words that differ from one run to the next: those with a digit in them.
var madeUp = regexp.MustCompile(`\S*[0-9]\S*`)

// matches reports the first line that is shown and did not come.
func matches(got string, shown []string) error {
	lines := strings.Split(got, "\n")
	for _, want := range shown {
		if strings.TrimSpace(want) == "" {
			continue
		}
		re := pattern(want)
		found := false
		for len(lines) > 0 && !found {
			found = re.MatchString(strings.Join(strings.Fields(lines[0]), " "))
			lines = lines[1:]
		}
		if !found {
			return fmt.Errorf("the line\n%s\ndid not come, or not in this order; what came:\n%s", want, got)
		}
	}
	return nil
}

// pattern is a line that is shown: words with a digit stand for any word, spaces for spaces.
func pattern(line string) *regexp.Regexp {
	var out []string
	for _, word := range strings.Fields(line) {
		if madeUp.MatchString(word) {
			out = append(out, `\S+`)
		} else {
			out = append(out, regexp.QuoteMeta(word))
		}
	}
	return regexp.MustCompile("^" + strings.Join(out, " ") + "$")
}

// The comparison itself finds what is wrong.
func TestWhatIsShownIsCompared(t *testing.T) {
	got := "NAME  STATUS\na     Ready\nx     NotReady\nb     Ready   65s\n"
	for _, c := range []struct {
		shown string
		ok    bool
	}{
		{"NAME STATUS\nb   Ready 12s", true},
		{"a Ready", true},
		{"b Ready 12s\na Ready", false}, // another order
		{"b NotReady 12s", false},
		{"b Ready", false}, // not the whole line
		{"c Ready 12s", false},
	} {
		if err := matches(got, strings.Split(c.shown, "\n")); (err == nil) != c.ok {
			t.Errorf("%q: %v", c.shown, err)
		}
	}
	for _, bad := range []string{"```sh a\n", "```sh a soon\nx\n```", "```text\nx\n```", "```sh a eventually\nx\ny\n```"} {
		if _, err := parse(bad); err == nil {
			t.Errorf("%q is understood", bad)
		}
	}
}
