package config

import (
	"fmt"
	"strings"
	"testing"

	"rivulet/test/harness/docpage"
)

// docs/reference/configuration.md is the table of keys, and the example with all of them.
func TestReferenceOfConfiguration(t *testing.T) {
	var b strings.Builder
	b.WriteString("# Configuration\n\nOne file, `/etc/rivulet/config.yaml`, which need not be there; `--config FILE` or `RIVULET_CONFIG` names another. Defaults < file < environment < flags.\n" +
		"Each key has a variable: of `trust.secretFile` it is `RIVULET_TRUST_SECRET_FILE`, with a value as in the file; words of a list may be given with commas alone. Beside them there are `RIVULET_CONFIG`, `RIVULET_STATE` and `RIVULET_RUNTIME`. A variable `RIVULET_…` that nothing reads ends `rivulet run`, as a wrong value does.\n" +
		"`rivulet config check` finds mistakes, `rivulet config show --origin` shows what is in force and from where. How it is read and what happens when it is wrong: [design](../design/configuration.md).\n\n" +
		"| key | variable | what it sets | default | a change takes effect |\n|---|---|---|---|---|\n")
	for _, k := range Table {
		if k.What == "" || k.Change == "" {
			t.Errorf("%s lacks what it sets, or how a change takes effect", k.Name)
		}
		what := k.What
		if k.See != "" {
			what += fmt.Sprintf(" ([%s](../design/%s.md))", k.See, k.See)
		}
		fmt.Fprintf(&b, "| `%s` | `%s` | %s | %s | %s |\n", k.Name, Variable(k.Name), docpage.Cell(what), docpage.Cell(k.Default), docpage.Cell(k.Change))
	}
	b.WriteString("\n`rivulet config example` prints [a file with every key](../../appliance/config/example.yaml), commented out: nothing has to be set.\n")
	docpage.Check(t, "configuration.md", "appliance/config/keys.go and example.yaml", b.String())
}
