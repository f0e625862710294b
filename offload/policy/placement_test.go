package policy

import (
	"fmt"
	"strings"
	"testing"
)

// Each taint of a virtual node is tolerated by some pods of offloaded namespaces.
func TestTaintsAreTolerated(t *testing.T) {
	for _, taint := range NodeTaints(true) {
		if want := fmt.Sprintf("{'key': '%s', 'operator': 'Exists', 'effect': '%s'}", taint.Key, taint.Effect); !strings.Contains(string(admission), want) {
			t.Errorf("admission.yaml has no %s", want)
		}
	}
}
