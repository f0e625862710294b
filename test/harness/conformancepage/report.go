package conformancepage

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/onsi/ginkgo/v2/types"
)

// refusal is the event of a pod that its namespace's offloading refuses, in the output of
// a red test.
var refusal = regexp.MustCompile(`OffloadRefused[: ]+([^\n]*)`)

// waited is the failure of a test that waited for a pod. A test that failed in another way has
// not failed by the refusal, though a pod of it was refused, too.
var waited = regexp.MustCompile(`(?i)time(d |-)?out|deadline exceeded|waiting for|to be running|not running`)

// placement is the event of a pod that asks for a node by a label that only a has, in such an
// output: that of a namespace whose pods run on b, while both nodes are there.
var placement = regexp.MustCompile(`FailedScheduling: (0/2 nodes are available: 2 node\(s\) didn't match Pod's node affinity/selector)`)

// Results reads ginkgo's report. With an error, the results are of a run that was cut short.
func Results(raw []byte) (map[string]Result, error) {
	var reports []types.Report
	if err := json.Unmarshal(raw, &reports); err != nil {
		return nil, err
	}
	out, errs := map[string]Result{}, []error{}
	for _, r := range reports {
		for _, why := range r.SpecialSuiteFailureReasons { // a timeout, an interruption
			errs = append(errs, errors.New(why))
		}
		for _, s := range r.SpecReports {
			name, failure := nameOf(s), s.Failure
			if !s.LeafNodeType.Is(types.NodeTypeIt) {
				if s.Failed() {
					return nil, fmt.Errorf("%s: %s", s.LeafNodeType, failure.Message)
				}
				continue
			}
			switch {
			case s.State == types.SpecStatePassed:
				out[name] = Result{State: Passes}
			case s.State == types.SpecStateSkipped && failure.Message != "": // by itself, not by -skip
				out[name] = Result{State: Skips, Why: firstLine(failure.Message)}
			case s.State.Is(types.SpecStateInterrupted | types.SpecStateAborted), strings.HasPrefix(failure.Message, "A suite timeout occurred"):
				// It ended with the run, not by itself.
			case s.Failed():
				out[name] = Result{State: Fails, Why: firstLine(failure.Message)}
				if m := refusal.FindStringSubmatch(s.CapturedGinkgoWriterOutput); m != nil && waited.MatchString(failure.Message) {
					out[name] = Result{State: Refused, Why: firstLine(m[1])}
				} else if m := placement.FindStringSubmatch(s.CapturedGinkgoWriterOutput); m != nil {
					out[name] = Result{State: Pinned, Why: m[1]}
				}
			}
		}
	}
	if len(out) == 0 {
		errs = append(errs, errors.New("no test ran: does -focus match one?"))
	}
	return out, errors.Join(errs...)
}

// nameOf is the test's name as upstream's list of conformance tests has it.
func nameOf(s types.SpecReport) string { return strings.Join(strings.Fields(s.FullText()), " ") }

func firstLine(s string) string {
	s, _, _ = strings.Cut(strings.TrimSpace(s), "\n")
	if len(s) > 200 {
		s = s[:200] + " …"
	}
	return s
}
