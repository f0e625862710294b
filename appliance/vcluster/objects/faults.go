package objects

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"rivulet/appliance/config"
)

// Faults returns what is wrong with the spec of a VirtualCluster as somebody has written it, a sentence for each field;
// at is the path of the spec.
func Faults(name, at string, spec map[string]any) []error {
	faults := FieldFaults[Spec](at, spec)
	for _, key := range []string{"memory", "datastore"} {
		if v, ok := spec[key]; ok {
			faults = append(faults, amountFault(at+"."+key, v)...)
		}
	}
	for _, key := range []string{"quota", "guarantee"} {
		faults = append(faults, AmountFaults(at+"."+key, spec[key])...)
	}
	if len(faults) > 0 {
		return faults
	}
	raw, err := json.Marshal(spec)
	o := &VirtualCluster{}
	if o.Name = name; err == nil {
		err = json.Unmarshal(raw, &o.Spec)
	}
	if _, given := spec["sleep"]; !given {
		o.Spec.Sleep = "0"
	}
	if err == nil {
		_, err = o.want()
	}
	if err != nil {
		return []error{fmt.Errorf("%s: %s", at, strings.TrimPrefix(err.Error(), "spec."))}
	}
	return nil
}

// FieldFaults returns the fields that a T does not have, and those whose values are of another kind.
func FieldFaults[T any](at string, spec map[string]any) (faults []error) {
	var names []string
	for f := range reflect.TypeFor[T]().Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		names = append(names, name)
	}
	slices.Sort(names)
	for _, key := range slices.Sorted(maps.Keys(spec)) {
		if !slices.Contains(names, key) {
			cure := "it has " + strings.Join(names, ", ")
			if near := config.Nearest(key, names); near != "" {
				cure = "did you mean " + near + "?"
			}
			faults = append(faults, fmt.Errorf("%s.%.60s is no field; %s", at, key, cure))
			continue
		}
		raw, err := json.Marshal(map[string]any{key: spec[key]})
		var wrong *json.UnmarshalTypeError
		if err == nil {
			err = json.Unmarshal(raw, new(T))
		}
		switch {
		case errors.As(err, &wrong):
			faults = append(faults, fmt.Errorf("%s.%s: %s is not %s", at, key, written(spec[key]), kinds[wrong.Type.Kind()]))
		case errors.Is(err, resource.ErrFormatWrong): // AmountFaults names the field inside
		case err != nil:
			faults = append(faults, fmt.Errorf("%s.%s: %s cannot be read: %w", at, key, written(spec[key]), err))
		}
	}
	return faults
}

// kinds are the words for what a field takes.
var kinds = map[reflect.Kind]string{
	reflect.Bool: "true or false", reflect.Int: "a whole number", reflect.String: "a text; put it into quotation marks", reflect.Slice: "a list", reflect.Map: "a list of NAME: VALUE",
	reflect.Struct: "a list of NAME: VALUE",
}

// AmountFaults returns the entries of a list of resources that are no amounts, or not of a resource of virtual clusters.
func AmountFaults(at string, list any) (faults []error) {
	amounts, ok := list.(map[string]any)
	if !ok {
		return nil // absent, or a fault of its field
	}
	known := []string{string(corev1.ResourceCPU), string(corev1.ResourceMemory), string(corev1.ResourcePods), string(corev1.ResourceStorage)}
	for _, name := range slices.Sorted(maps.Keys(amounts)) {
		if !slices.Contains(known, name) {
			faults = append(faults, fmt.Errorf("%s.%.60s is no resource; it has %s", at, name, strings.Join(known, ", ")))
			continue
		}
		faults = append(faults, amountFault(at+"."+name, amounts[name])...)
	}
	return faults
}

func amountFault(at string, v any) []error {
	if _, err := resource.ParseQuantity(fmt.Sprint(v)); err != nil {
		return []error{fmt.Errorf("%s: %s is no amount; write it like 2, 500m or 4Gi", at, written(v))}
	}
	return nil
}

// written is a value as in a file.
func written(v any) string {
	raw, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprintf("%.60v", v)
	}
	return fmt.Sprintf("%.60s", raw)
}
