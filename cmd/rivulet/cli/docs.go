package cli

import (
	"fmt"
	"io"
	"io/fs"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"rivulet/docs"
)

func newDocs() *cobra.Command {
	return &cobra.Command{
		Use:   "docs [PAGE]",
		Short: "a page of the documentation, or the list of pages",
		Long:  "The pages are part of this binary. A page is named by its file, with its folder where two have the same name.",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usagef("docs takes one page, for example: rivulet docs quick-start; see: %s --help", cmd.CommandPath())
			}
			return nil
		},
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return docPages(), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return listPages(cmd.OutOrStdout())
			}
			page, err := pageOf(args[0])
			if err != nil {
				return &usageError{err}
			}
			text, err := fs.ReadFile(docs.Pages, page+".md")
			if err == nil {
				_, err = cmd.OutOrStdout().Write(text)
			}
			return err
		},
	}
}

// docPages returns the names of all pages, guide first: guide/quick-start.
func docPages() (out []string) {
	for _, folder := range []string{"guide", "reference", "design"} {
		files, err := fs.Glob(docs.Pages, folder+"/*.md")
		if err != nil {
			panic(err) // the pattern is wrong
		}
		for _, f := range files {
			out = append(out, strings.TrimSuffix(f, ".md"))
		}
	}
	return out
}

func listPages(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, p := range docPages() {
		text, err := fs.ReadFile(docs.Pages, p+".md")
		if err != nil {
			return err
		}
		title := ""
		for line := range strings.Lines(string(text)) {
			if t, ok := strings.CutPrefix(line, "# "); ok {
				title = strings.TrimSpace(t)
				break
			}
		}
		fmt.Fprintf(w, "%s\t%s\n", p, title)
	}
	return w.Flush()
}

// pageOf finds a page by its name, with or without folder and .md.
func pageOf(name string) (string, error) {
	name = strings.TrimSuffix(strings.TrimPrefix(name, "docs/"), ".md")
	var found []string
	for _, p := range docPages() {
		if p == name {
			return p, nil
		}
		if strings.HasSuffix(p, "/"+name) {
			found = append(found, p)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return "", fmt.Errorf("there is no page %q; see: rivulet docs", name)
	}
	return "", fmt.Errorf("there are %s; name one, for example: rivulet docs %s", strings.Join(found, " and "), found[0])
}
