// Program vulns compares the known faults of what the product links with those that were read: test/vulns.yaml. A
// fault that is not listed there is red, and so is a line that does not apply. It asks Go's vulnerability database,
// or the one that -db names; if it cannot be reached, the list stands, and the check is incomplete (3).
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"golang.org/x/vuln/scan"
	"sigs.k8s.io/yaml"
)

// reviewed is test/vulns.yaml.
type reviewed struct {
	Date   string `json:"date"` // of the database that was read
	Faults []struct {
		IDs []string `json:"ids"`
		Why string   `json:"why"`
	} `json:"faults"`
}

// message is what govulncheck -format json writes.
type message struct {
	OSV *struct {
		ID      string `json:"id"`
		Summary string `json:"summary"`
	} `json:"osv"`
	Finding *struct {
		OSV   string `json:"osv"`
		Fixed string `json:"fixed_version"`
		Trace []struct {
			Version string `json:"version"`
			Package string `json:"package"`
		} `json:"trace"`
	} `json:"finding"`
}

func main() {
	db := flag.String("db", "", "URL of a vulnerability database")
	tags := flag.String("tags", "", "build tags")
	list := flag.String("list", "test/vulns.yaml", "the faults that were read")
	flag.Parse()
	code, err := check(*db, *tags, *list, flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "vulns:", err)
	}
	os.Exit(code)
}

func check(db, tags, list string, packages []string) (code int, err error) {
	text, err := os.ReadFile(list)
	if err != nil {
		return 1, err
	}
	var known reviewed
	if err := yaml.UnmarshalStrict(text, &known); err != nil {
		return 1, fmt.Errorf("%s: %w", list, err)
	}
	args := []string{"-format", "json", "-scan", "package", "-tags", tags}
	if db != "" {
		args = append(args, "-db", db)
	}
	var out, log bytes.Buffer
	c := scan.Command(context.Background(), append(args, packages...)...)
	c.Stdout, c.Stderr = &out, &log
	err = c.Start()
	if err == nil {
		err = c.Wait()
	}
	if err != nil {
		if !strings.Contains(log.String()+err.Error(), "fetching vulnerabilities") {
			return 1, fmt.Errorf("%w: %s", err, log.String())
		}
		return 3, fmt.Errorf("the database cannot be reached; what it had on %s was read: %s (%w)", known.Date, list, err)
	}
	summary, found := map[string]string{}, map[string]string{}
	for dec := json.NewDecoder(&out); ; {
		var m message
		if err := dec.Decode(&m); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return 1, fmt.Errorf("govulncheck: %w", err)
		}
		if m.OSV != nil {
			summary[m.OSV.ID] = m.OSV.Summary
		}
		// A module is named for each fault, a package for those that are linked.
		if f := m.Finding; f != nil && len(f.Trace) > 0 && f.Trace[0].Package != "" {
			found[f.OSV] = fmt.Sprintf("%s %s, mended in %q", f.Trace[0].Package, f.Trace[0].Version, f.Fixed)
		}
	}
	all := len(found)
	for _, f := range known.Faults {
		for _, id := range f.IDs {
			if _, ok := found[id]; !ok {
				fmt.Printf("%s is in %s and does not apply: take it out\n", id, list)
				code = 1
			}
			delete(found, id)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(found)) {
		fmt.Printf("%s: %s (%s): raise it, or say in %s why not\n", id, summary[id], found[id], list)
		code = 1
	}
	fmt.Printf("%d known faults in what is linked, %d of them not read\n", all, len(found))
	return code, nil
}
