package arch

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"rivulet/appliance/health"
)

// docs/health.md has a row for every code, and for nothing else.
func TestEveryHealthCodeIsInTheDocs(t *testing.T) {
	raw, err := os.ReadFile("../../docs/health.md")
	if err != nil {
		t.Fatal(err)
	}
	table, _, _ := strings.Cut(string(raw), "\n## ")
	rows := map[string]bool{}
	for line := range strings.Lines(table) {
		if strings.HasPrefix(line, "| `") {
			rows[strings.TrimSpace(line)] = true
		}
	}
	for _, k := range health.Kinds() {
		row := fmt.Sprintf("| `%s` | %s | %s |", k.Code, k.Severity, k.Title)
		if !rows[row] {
			t.Errorf("docs/health.md lacks the row\n%s", row)
		}
		delete(rows, row)
	}
	for row := range rows {
		t.Errorf("docs/health.md has a row for a code that is declared otherwise or not at all:\n%s", row)
	}
}
