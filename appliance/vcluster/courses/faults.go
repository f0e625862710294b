package courses

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"rivulet/appliance/vcluster/objects"
)

// Faults returns what is wrong with a Course as somebody has written it, a sentence for each field, and that its end is
// before now.
func Faults(u *unstructured.Unstructured, now time.Time) []error {
	spec, ok := u.Object["spec"].(map[string]any)
	if !ok {
		return []error{errors.New("spec is missing; it has names or count, and template")}
	}
	faults := append(objects.FieldFaults[Spec]("spec", spec), objects.AmountFaults("spec.cap", spec["cap"])...)
	if len(faults) == 0 {
		faults = fileFaults(u, spec, now)
	}
	return append(faults, templateFaults(spec)...)
}

// fileFaults are those of values that can be read.
func fileFaults(u *unstructured.Unstructured, spec map[string]any, now time.Time) (faults []error) {
	c := &Course{ObjectMeta: metav1.ObjectMeta{Name: u.GetName()}}
	raw, err := json.Marshal(spec)
	if err == nil {
		err = json.Unmarshal(raw, &c.Spec)
	}
	if err != nil {
		return []error{fmt.Errorf("spec: %w; see: rivulet kubectl explain course.spec", err)}
	}
	if _, err := c.members(); err != nil {
		faults = append(faults, fmt.Errorf("spec.names: %w", err))
	}
	if _, err := c.keep(); err != nil {
		faults = append(faults, err)
	}
	if end := c.Spec.Expires; end != nil && end.Time.Before(now) {
		faults = append(faults, fmt.Errorf("spec.expires: %s is past; write a later time", end.UTC().Format(time.RFC3339)))
	}
	return faults
}

// templateFaults are those of the settings of its members.
func templateFaults(spec map[string]any) []error {
	template, _ := spec["template"].(map[string]any)
	return objects.Faults("member", "spec.template", template)
}
