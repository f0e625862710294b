package main

import (
	"fmt"
	"io"
	"strings"
	"testing"
)

// Only the test that is named may fail, and it has to.
func TestOnlyTheExpectedFails(t *testing.T) {
	spec := func(kind, state, name string) string {
		return fmt.Sprintf(`{"LeafNodeType":%q,"State":%q,"ContainerHierarchyTexts":["suite"],"LeafNodeText":%q,"Failure":{"Message":"why"}}`, kind, state, name)
	}
	unanswered := spec("It", "failed", expected[0])
	fails, passes := strings.Replace(unanswered, "why", `Expected\nName: hello Address: 10.42.0.9\nto have addresses`, 1), spec("It", "passed", "other")
	for name, c := range map[string]struct {
		specs  []string
		chosen bool
		want   string // of the error; empty: none
	}{
		"as expected":                      {[]string{fails, passes}, false, ""},
		"it fails for another reason":      {[]string{unanswered, passes}, false, "another reason than the addresses"},
		"no answer has addresses":          {[]string{strings.Replace(unanswered, "why", "can't find hello, to have addresses", 1), passes}, false, "another reason than the addresses"},
		"another fails":                    {[]string{fails, passes, spec("It", "failed", "third")}, false, "suite third failed: why"},
		"another is cut off":               {[]string{fails, passes, spec("It", "timedout", "third")}, false, "suite third timedout"},
		"the expected one passes":          {[]string{spec("It", "passed", expected[0]), passes}, false, "was expected to fail"},
		"the expected one is cut off":      {[]string{spec("It", "timedout", expected[0]), passes}, false, "was expected to fail"},
		"the expected one is not there":    {[]string{passes}, false, "0 ran of 1"},
		"the expected one is skipped":      {[]string{spec("It", "skipped", expected[0]), passes}, false, "0 ran of 1"},
		"others were chosen":               {[]string{spec("It", "skipped", expected[0]), passes}, true, ""},
		"the suite could not be set up":    {[]string{spec("SynchronizedBeforeSuite", "failed", "")}, true, "suite failed: why"},
		"nothing ran that could be chosen": {nil, true, "no test passed"},
	} {
		t.Run(name, func(t *testing.T) {
			err := judge(io.Discard, []byte(`[{"SpecReports":[`+strings.Join(c.specs, ",")+`]}]`), c.chosen)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}
