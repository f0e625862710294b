package translate

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// DroppedError names the fields of a pod that a target's API server has left out: its Kubernetes does not know them, or
// has them switched off. An API server does that without a word.
type DroppedError []string

func (e DroppedError) Error() string {
	return fmt.Sprintf("its Kubernetes leaves out %s; update it there, remove the field, or keep the pod at home (label rivulet.dev/offload=off in its template)", strings.Join(e, ", "))
}

// mayBeDropped are fields that a target leaves out on purpose (docs/design/offload.md), or whose loss is told by an event.
var mayBeDropped = []string{"spec.tolerations", "spec.hostnameOverride"}

// Dropped returns a DroppedError if kept, a target's answer, lacks fields of the spec that was sent; else nil. Other
// values, and what the target has added, do not count.
func Dropped(sent, kept *corev1.PodSpec) error {
	was, err := runtime.DefaultUnstructuredConverter.ToUnstructured(sent)
	if err != nil {
		return err
	}
	is, err := runtime.DefaultUnstructuredConverter.ToUnstructured(kept)
	if err != nil {
		return err
	}
	if lost := lacking("spec", was, is); len(lost) > 0 {
		return DroppedError(lost)
	}
	return nil
}

// lacking returns the paths of what is in was and not in is. Nothing and empty are the same.
func lacking(path string, was, is any) (lost []string) {
	if slices.Contains(mayBeDropped, path) {
		return nil
	}
	switch w := was.(type) {
	case nil:
	case map[string]any:
		have, _ := is.(map[string]any)
		for key, v := range w {
			if have[key] == nil && !empty(v) {
				if at := path + "." + key; !slices.Contains(mayBeDropped, at) {
					lost = append(lost, at)
				}
				continue
			}
			lost = append(lost, lacking(path+"."+key, v, have[key])...)
		}
	case []any:
		have, _ := is.([]any)
		for i, v := range w {
			lost = append(lost, lackingIn(path, i, v, have)...)
		}
	}
	slices.Sort(lost)
	return lost
}

// lackingIn finds the element that was sent among those that the target has: it may have added others. One with a name is
// found by it.
func lackingIn(path string, i int, sent any, have []any) []string {
	m, isMap := sent.(map[string]any)
	if !isMap {
		if slices.Contains(have, sent) {
			return nil
		}
		return []string{fmt.Sprintf("%s[%d]", path, i)}
	}
	at := fmt.Sprintf("%s[%d]", path, i)
	if name, named := m["name"].(string); named {
		at = fmt.Sprintf("%s[%s]", path, name)
	}
	nearest := []string{at}
	for n, h := range have {
		if other, ok := h.(map[string]any); !ok || m["name"] != other["name"] {
			continue
		}
		lost := lacking(at, sent, h)
		if len(lost) == 0 {
			return nil
		}
		if n == i || len(nearest) == 1 && nearest[0] == at {
			nearest = lost
		}
	}
	return nearest
}

func empty(v any) bool {
	switch v := v.(type) {
	case nil:
		return true
	case map[string]any:
		for _, one := range v {
			if !empty(one) {
				return false
			}
		}
		return true
	case []any:
		return len(v) == 0
	case string:
		return v == ""
	}
	return false
}
