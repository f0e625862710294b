package arch

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

var shownBy = regexp.MustCompile("`([a-z0-9/]+)` (Test[A-Za-z0-9_]+)")

// Every claim of docs/design/security.md names a test, and every test that it names is there.
func TestClaimsOfSecurityAreTested(t *testing.T) {
	text, err := os.ReadFile("../../docs/design/security.md")
	if err != nil {
		t.Fatal(err)
	}
	claims, table := 0, false
	for _, line := range strings.Split(string(text), "\n") {
		cells := strings.Split(strings.Trim(line, "|"), "|")
		switch {
		case !strings.HasPrefix(line, "|"):
			table = false
		case strings.TrimSpace(cells[len(cells)-1]) == "test":
			table = true
		case table && !strings.HasPrefix(line, "|---"):
			claims++
			tests := shownBy.FindAllStringSubmatch(cells[len(cells)-1], -1)
			if len(tests) == 0 {
				t.Errorf("no test shows: %s", line)
			}
			for _, m := range tests {
				if err := exec.Command("grep", "-rqs", "--include=*_test.go", "^func "+m[2]+"(", "../../"+m[1]).Run(); err != nil {
					t.Errorf("%s has no test %s", m[1], m[2])
				}
			}
		}
	}
	if claims < 20 {
		t.Errorf("docs/design/security.md has %d claims", claims)
	}
}
