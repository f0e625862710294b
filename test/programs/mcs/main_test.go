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
	unanswered := spec("It", "failed", expected[0].name)
	leadsNowhere := strings.Replace(spec("It", "failed", expected[1].name), "why", `Expected\n    <string>: \nto contain substring\n    <string>: 10.42.0.41`, 1)
	answered := strings.Replace(leadsNowhere, `<string>: \nto`, `<string>: pod ip 10.42.0.9\nto`, 1)
	fails, passes := strings.Replace(unanswered, "why", `Expected\nName: hello Address: 10.42.0.9\nto have addresses`, 1), spec("It", "passed", "other")
	for name, c := range map[string]struct {
		specs  []string
		chosen bool
		want   string // of the error; empty: none
	}{
		"as expected":                        {[]string{fails, leadsNowhere, passes}, false, ""},
		"it fails for another reason":        {[]string{unanswered, leadsNowhere, passes}, false, "another reason than the addresses"},
		"a pod of the wrong cluster answers": {[]string{fails, answered, passes}, false, "another reason than a port that leads nowhere"},
		"no answer has addresses":            {[]string{strings.Replace(unanswered, "why", "can't find hello, to have addresses", 1), passes}, false, "another reason than the addresses"},
		"another fails":                      {[]string{fails, leadsNowhere, passes, spec("It", "failed", "third")}, false, "suite third failed: why"},
		"another is cut off":                 {[]string{fails, leadsNowhere, passes, spec("It", "timedout", "third")}, false, "suite third timedout"},
		"the expected one passes":            {[]string{spec("It", "passed", expected[0].name), passes}, false, "was expected to fail"},
		"the expected one is cut off":        {[]string{spec("It", "timedout", expected[0].name), passes}, false, "was expected to fail"},
		"the expected one is not there":      {[]string{passes}, false, "0 ran of 2"},
		"the expected one is skipped":        {[]string{spec("It", "skipped", expected[0].name), passes}, false, "0 ran of 2"},
		"others were chosen":                 {[]string{spec("It", "skipped", expected[0].name), passes}, true, ""},
		"the suite could not be set up":      {[]string{spec("SynchronizedBeforeSuite", "failed", "")}, true, "suite failed: why"},
		"nothing ran that could be chosen":   {nil, true, "no test passed"},
	} {
		t.Run(name, func(t *testing.T) {
			err := judge(io.Discard, []byte(`[{"SpecReports":[`+strings.Join(c.specs, ",")+`]}]`), c.chosen)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}
