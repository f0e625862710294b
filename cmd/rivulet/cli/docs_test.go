package cli

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"rivulet/appliance/diagnose/doctor"
)

// Every command line of Rivulet that the documents show is one that there is: each
// verb, each flag, and no flag's value is taken for something else.
func TestDocumentsShowCommandsThatExist(t *testing.T) {
	root := "../../.."
	pages, err := filepath.Glob(filepath.Join(root, "docs/*/*.md"))
	if err != nil {
		t.Fatal(err)
	}
	pages = append(pages, filepath.Join(root, "README.md"), filepath.Join(root, "bench/results.md"))
	seen := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for n, line := range codeOf(string(text)) {
			for _, words := range commandsIn(line) {
				seen++
				if err := exists(newRoot("engine"), words); err != nil {
					t.Errorf("%s:%d: rivulet %s: %v", strings.TrimPrefix(page, root+"/"), n, strings.Join(words, " "), err)
				}
			}
		}
	}
	if seen < 100 {
		t.Errorf("%d command lines found in %d pages: the documents are not read as they are written", seen, len(pages))
	}
}

// Every command line of Rivulet that a message names is one that there is.
func TestMessagesNameCommandsThatExist(t *testing.T) {
	root, seen := "../../..", 0
	for _, dir := range []string{"appliance", "cmd/rivulet", "fabric", "image", "offload", "systemd"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			set := token.NewFileSet()
			file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				text, ok := n.(ast.Expr)
				if !ok {
					return true
				}
				value, ok := joined(text)
				if !ok {
					return true
				}
				if strings.Contains(value, "ctr images import") || strings.Contains(value, "crictl rmi") {
					t.Errorf("%s: images come and go by rivulet image push and rivulet image rm", set.Position(text.Pos()))
				}
				for _, words := range inMessage(value) {
					seen++
					if err := works(newRoot("engine"), words); err != nil {
						t.Errorf("%s: rivulet %s: %v", set.Position(text.Pos()), strings.Join(words, " "), err)
					}
				}
				return false
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if seen < 100 {
		t.Errorf("%d command lines found in messages: they are not read as they are written", seen)
	}
}

var (
	cure  = regexp.MustCompile("(?:^|: |; |\\()(?:sudo )?(rivulet [^;,)`\"\n]*)")
	hole  = regexp.MustCompile(`%(\[\d+\])?[a-z]`)
	label = regexp.MustCompile(`^rivulet [a-z ]+( v[0-9]+|credentials|peer)\b`) // of a key, in a hash
)

// joined returns a string of the source, or several and other values that are put together: those are X.
func joined(n ast.Expr) (string, bool) {
	switch n := n.(type) {
	case *ast.BasicLit:
		value, err := strconv.Unquote(n.Value)
		return value, err == nil && n.Kind == token.STRING
	case *ast.BinaryExpr:
		left, one := joined(n.X)
		right, two := joined(n.Y)
		if n.Op != token.ADD || !one && !two {
			return "", false
		}
		if !one {
			left = "X"
		}
		if !two {
			right = "X"
		}
		return left + right, true
	}
	return "", false
}

// inMessage returns the command lines of a message: each stands at its beginning, after a colon, a semicolon or a bracket.
func inMessage(text string) (out [][]string) {
	if strings.HasSuffix(text, " ") {
		text += "X" // the rest is added elsewhere
	}
	for _, m := range cure.FindAllStringSubmatch(text, -1) {
		if starts := strings.HasPrefix(text, m[0]); starts && !isVerb(m[1]) || strings.HasPrefix(m[1], "rivulet is ") {
			continue // a sentence
		}
		out = append(out, commandsIn(hole.ReplaceAllString(m[1], "X"))...)
	}
	return out
}

// The test itself finds what is wrong.
func TestWrongCommandsAreFound(t *testing.T) {
	for text, want := range map[string]string{
		"`rivulet statsu`":                                  "statsu",
		"`rivulet status --jsn`":                            "--jsn",
		"```\nsudo bin/rivulet burst ad campus\n```":        "ad",
		"`rivulet status -o json`, `rivulet run [--debug]`": "",
		"`rivulet config check|show`":                       "",
		"`rivulet config check|shwo FILE`":                  "shwo",
		"rivulet statsu in prose":                           "",
		"`rivulet kubectl get nodes --no-such`":             "",
	} {
		var got []string
		for _, line := range codeOf(text) {
			for _, words := range commandsIn(line) {
				if err := exists(newRoot("engine"), words); err != nil {
					got = append(got, err.Error())
				}
			}
		}
		if all := strings.Join(got, "; "); (want == "") != (len(got) == 0) || !strings.Contains(all, want) {
			t.Errorf("%s: %q, want %q", text, all, want)
		}
	}
}

// codeOf returns what a page shows as code, by the number of its line: lines of
// blocks, and spans.
func codeOf(text string) map[int]string {
	out := map[int]string{}
	block := false
	for i, line := range strings.Split(text, "\n") {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			block = !block
			continue
		}
		if block {
			out[i+1] = line
			continue
		}
		var spans []string
		for j, part := range strings.Split(line, "`") {
			if j%2 == 1 {
				spans = append(spans, part)
			}
		}
		if len(spans) > 0 {
			out[i+1] = strings.Join(spans, " ; ")
		}
	}
	return out
}

var (
	shown = regexp.MustCompile(`(?:^|[\s;(])(?:sudo )?(?:\./|bin/|\./bin/|/usr/local/bin/)?rivulet ([^\s;#&…)][^;#&…)]*)`)
	verb  = regexp.MustCompile(`^[a-z][a-z-]*$`)
	flag  = regexp.MustCompile(`^--?[a-z]`)
)

// commandsIn returns the words after each rivulet of a line, as far as they are a command line.
func commandsIn(line string) (out [][]string) {
	for _, m := range shown.FindAllStringSubmatch(line, -1) {
		rest, _, _ := strings.Cut(m[1], " | ")
		rest, _, _ = strings.Cut(rest, "  ") // what follows says what it is for
		words := strings.Fields(strings.NewReplacer("[", " ", "]", " ").Replace(rest))
		if len(words) > 0 && (verb.MatchString(strings.Split(words[0], "|")[0]) || flag.MatchString(words[0])) {
			out = append(out, words)
		}
	}
	return out
}

// isVerb reports whether a command of Rivulet follows the first word, and no label of a key.
func isVerb(line string) bool {
	verb, _, _ := strings.Cut(strings.TrimPrefix(line, "rivulet "), " ")
	return !label.MatchString(line) && slices.ContainsFunc(newRoot("engine").Commands(), func(c *cobra.Command) bool { return c.Name() == verb })
}

// works reports what of a command line is not there, or is missing for it to be complete.
func works(cmd *cobra.Command, words []string) error {
	if err := exists(cmd, words); err != nil {
		return err
	}
	if end := slices.IndexFunc(words, func(w string) bool { return w == ">" || strings.HasSuffix(w, ".") }); end >= 0 {
		words = append(slices.Clone(words[:end]), strings.TrimSuffix(strings.TrimSuffix(words[end], "."), ">"))
		words = slices.DeleteFunc(words, func(w string) bool { return w == "" })
	}
	cmd, rest, err := cmd.Find(words)
	if err != nil || cmd.DisableFlagParsing || slices.Contains(rest, "...") || slices.Contains(rest, "…") || slices.Contains(rest, "--help") {
		return err
	}
	if stands := cmd.ParseFlags(rest); stands != nil { // a value that stands for something
		return nil //nolint:nilerr // exists has checked the flag
	}
	args := cmd.Flags().Args()
	if cmd.HasSubCommands() && len(args) > 0 && args[0] == "X" {
		return nil // a subcommand that stands for something
	}
	if only := cmd.Flags().Lookup("only"); only != nil && only.Changed {
		codes, err := cmd.Flags().GetStringSlice("only")
		if _, unknown := doctor.Find(slices.DeleteFunc(codes, func(c string) bool { return c == "X" || c == "CODE" })); err != nil || unknown != nil {
			return errors.Join(err, unknown)
		}
	}
	if cmd.Name() == "docs" && len(args) == 1 && args[0] != "X" {
		if _, err := pageOf(strings.TrimSuffix(args[0], ".")); err != nil {
			return err
		}
	}
	err = cmd.ValidateArgs(args)
	if err != nil && len(args) > 0 && args[0] == "X" {
		args[0] = "X/X" // it stands for a namespace and a name, too
		err = cmd.ValidateArgs(args)
	}
	return err
}

// exists reports what of a command line there is not. Words in capitals stand for something.
func exists(cmd *cobra.Command, words []string) error {
	for i := 0; i < len(words); i++ {
		if cmd.DisableFlagParsing {
			return nil // another program's words
		}
		word := words[i]
		switch {
		case word == "--":
			return nil
		case flag.MatchString(word):
			name, value, has := strings.Cut(word, "=")
			f := flagOf(cmd, name)
			if f == nil {
				return fmt.Errorf("%s has no flag %s", cmd.CommandPath(), name)
			}
			if f.NoOptDefVal == "" && !has && value == "" {
				i++ // its value
			}
		case cmd.HasSubCommands():
			var next *cobra.Command
			for _, one := range strings.Split(word, "|") {
				if one == strings.ToUpper(one) {
					return nil
				}
				at := slices.IndexFunc(cmd.Commands(), func(c *cobra.Command) bool { return c.Name() == one || c.HasAlias(one) })
				if at < 0 && cmd.Name() == "peer" {
					return nil // a name
				}
				if at < 0 {
					return fmt.Errorf("there is no %s %s", cmd.CommandPath(), one)
				}
				next = cmd.Commands()[at]
			}
			cmd = next
		}
	}
	return nil
}

func flagOf(cmd *cobra.Command, name string) *pflag.Flag {
	cmd.InitDefaultHelpFlag()
	for _, set := range []*pflag.FlagSet{cmd.Flags(), cmd.InheritedFlags()} {
		if long, ok := strings.CutPrefix(name, "--"); ok {
			if f := set.Lookup(long); f != nil {
				return f
			}
		} else if f := set.ShorthandLookup(strings.TrimPrefix(name, "-")); f != nil {
			return f
		}
	}
	return nil
}

// All pages are in the binary, with a title, and each name that a message may use finds its page.
func TestDocs(t *testing.T) {
	_, list, err := execute(t, t.TempDir(), []string{"docs"})
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("../../../docs/*/*.md")
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(list, "\n"); got != len(files) || len(files) < 50 || !strings.Contains(list, "Quick start") {
		t.Errorf("%d pages of %d are listed:\n%s", got, len(files), list)
	}
	for _, name := range []string{"quick-start", "docs/guide/quick-start.md", "guide/quick-start"} {
		if _, out, err := execute(t, t.TempDir(), []string{"docs", name}); err != nil || !strings.HasPrefix(out, "# Quick start\n") {
			t.Errorf("%s: %v, %.40q", name, err, out)
		}
	}
}
