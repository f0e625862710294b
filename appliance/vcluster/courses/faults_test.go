package courses

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// A mistake in a course's file is told by field and value, once however many members it has.
func TestFaults(t *testing.T) {
	now := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	for spec, want := range map[string][]string{
		"{names: [ann], cap: {cpu: 2}, template: {sleep: 15m, quota: {cpu: 1, memory: 2Gi}}, expires: 2027-02-15T12:00:00Z}": nil,
		"{count: 30}":    nil,
		"{nmaes: [ann]}": {"spec.nmaes is no field; did you mean names?"},
		"{count: 30, template: {quota: {cpu: one}}}":                    {`spec.template.quota.cpu: "one" is no amount; write it like 2, 500m or 4Gi`},
		"{count: 30, template: {qouta: {cpu: 1}}}":                      {"spec.template.qouta is no field; did you mean quota?"},
		"{count: 30, template: {quota: {gpu: 1}}}":                      {"spec.template.quota.gpu is no resource; it has cpu, memory, pods, storage"},
		"{count: 30, template: {sleep: soon}}":                          {`spec.template: sleep "soon" is no time`},
		"{count: 30, template: {sleep: 1s}}":                            {"spec.template: a virtual cluster sleeps after 10s or more"},
		"{count: 30, template: {memory: 1Mi}}":                          {"spec.template: a control plane does not start in 1 MiB"},
		"{count: 30, template: {quota: {cpu: 1}, guarantee: {cpu: 2}}}": {"spec.template: a guarantee of 2 cpu is more than the quota"},
		"{count: many, cap: {cpu: x}}":                                  {`spec.count: "many" is not a whole number`, `spec.cap.cpu: "x" is no amount`},
		"{names: ann}":                                                  {`spec.names: "ann" is not a list`},
		"{names: [Ann]}":                                                {`spec.names: "db-Ann" is no name for a virtual cluster`},
		"{names: [ann, ann]}":                                           {"spec.names: db-ann is there twice"},
		"{names: [ann], template: {paused: maybe}}":                     {`spec.template.paused: "maybe" is not true or false`},
		"{names: [ann], expires: 2020-01-01T00:00:00Z, keep: 1x}":       {"spec.keep", "spec.expires: 2020-01-01T00:00:00Z is past; write a later time"},
		"{names: [ann], expires: soon}":                                 {`spec.expires: "soon" cannot be read`},
	} {
		u := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte("metadata: {name: db}\nspec: "+spec), &u.Object); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, err := range Faults(u, now) {
			got = append(got, fmt.Sprint(err))
		}
		if !slices.EqualFunc(got, want, strings.HasPrefix) {
			t.Errorf("%s:\n got %q\nwant %q", spec, got, want)
		}
	}
}
