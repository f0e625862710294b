package foreign

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"
)

// A quantity is a few bytes that may stand for a number of a billion digits: "1e999999999". Parsing, comparing or adding
// it holds a core for half an hour and takes gigabytes, and nothing cancels it. Body judges the texts, before anything is
// parsed; Quantities and Quantity judge what was parsed, by the form of the number and not by its value.

const (
	// maxScale is the power of ten within which a parsed quantity is accepted: from 1a to 1E. maxBits is the length of
	// its other factor, 32 decimal digits.
	maxScale, maxBits = 18, 107
	// maxExponent is the length of the exponent of a number in a text: one of 3 digits is compared within microseconds.
	maxExponent = 3
	// maxDigits is the length of a number without its exponent: parsing takes a time that is the square of it, less
	// than a millisecond for this many.
	maxDigits = 16 << 10
)

// ErrQuantity is wrapped by the errors for quantities out of bounds.
var ErrQuantity = errors.New("a quantity is out of bounds; write one between 1a and 1E, with at most 32 digits")

// Quantity returns an error, which wraps ErrQuantity, if calculating with the quantity could cost more than a glance.
func Quantity(q resource.Quantity) error {
	d := q.AsDec() // q is a copy; neither this nor what follows calculates
	if s := d.Scale(); s < -maxScale || s > maxScale || d.UnscaledBig().BitLen() > maxBits {
		return ErrQuantity
	}
	return nil
}

// Quantities judges all quantities in a decoded object, in its fields, lists and maps, and returns the error of the first
// that is out of bounds.
func Quantities(obj any) error { return quantities(reflect.ValueOf(obj)) }

var quantity = reflect.TypeFor[resource.Quantity]()

func quantities(v reflect.Value) error {
	if !v.IsValid() || !mayHold(v.Type()) {
		return nil
	}
	if v.Type() == quantity {
		return Quantity(v.Interface().(resource.Quantity))
	}
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		return quantities(v.Elem())
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			if err := quantities(v.Index(i)); err != nil {
				return err
			}
		}
	case reflect.Map:
		for at := v.MapRange(); at.Next(); {
			if err := quantities(at.Value()); err != nil {
				return err
			}
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if !v.Type().Field(i).IsExported() {
				continue
			}
			if err := quantities(v.Field(i)); err != nil {
				return err
			}
		}
	}
	return nil
}

var holds sync.Map // reflect.Type to bool

// mayHold reports whether values of the type may contain a quantity.
func mayHold(t reflect.Type) bool {
	if known, ok := holds.Load(t); ok {
		return known.(bool)
	}
	found := reaches(t, map[reflect.Type]bool{})
	holds.Store(t, found)
	return found
}

func reaches(t reflect.Type, seen map[reflect.Type]bool) bool {
	if t == quantity {
		return true
	}
	if seen[t] {
		return false
	}
	seen[t] = true
	switch t.Kind() {
	case reflect.Interface:
		return true
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
		return reaches(t.Elem(), seen)
	case reflect.Struct:
		for i := range t.NumField() {
			if f := t.Field(i); f.IsExported() && reaches(f.Type, seen) {
				return true
			}
		}
	}
	return false
}

// ErrForm is wrapped by the errors for bodies that are not of the form that their type says.
var ErrForm = errors.New("not understood; send JSON, YAML or protobuf of the Kubernetes API")

// Body judges a body, or one frame of a watch, of the Kubernetes API by its type (the header Content-Type; empty is
// JSON), in a time that is linear in its length. No quantity in it may be a number that costs too much to parse or to
// compare. The types of objects need not be known: in JSON quantities are what is below the names of their fields, in
// protobuf what has their form. The error wraps ErrQuantity or ErrForm.
func Body(contentType string, raw []byte) error {
	media, _, _ := strings.Cut(contentType, ";")
	switch strings.ToLower(strings.TrimSpace(media)) {
	case "application/vnd.kubernetes.protobuf":
		return message(raw)
	case "application/yaml", "application/apply-patch+yaml":
		converted, err := yaml.YAMLToJSON(raw) // as the API server does
		if err != nil {
			return ErrForm
		}
		return document(converted, false)
	case "", "application/json", "application/merge-patch+json", "application/strategic-merge-patch+json":
		return document(raw, false)
	case "application/json-patch+json": // the fields are in texts, so everything is judged
		return errors.Join(document(raw, true), copies(raw))
	}
	return ErrForm
}

// copies refuses a JSON patch that could make a quantity of a text of the stored object.
func copies(raw []byte) error {
	var operations []map[string]any
	if err := json.Unmarshal(raw, &operations); err != nil {
		return ErrForm
	}
	for _, o := range operations {
		if path, _ := o["path"].(string); (o["op"] == "copy" || o["op"] == "move") && !strings.HasPrefix(path, "/metadata/") {
			return fmt.Errorf("%w: a JSON patch may copy and move within /metadata only; write the value out", ErrForm)
		}
	}
	return nil
}

// document judges JSON: all of it, or what is below the fields of quantities.
func document(raw []byte, all bool) error {
	if !json.Valid(raw) { // which bounds the depth, too
		return ErrForm
	}
	in := json.NewDecoder(bytes.NewReader(raw))
	in.UseNumber()
	return value(in, "", all)
}

// value judges the next value, the one of a field.
func value(in *json.Decoder, field string, judged bool) error {
	token, err := in.Token()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrForm, err)
	}
	switch t := token.(type) {
	case string:
		if judged {
			return number([]byte(strings.TrimSpace(t)))
		}
	case json.Number:
		if judged {
			return number([]byte(t))
		}
	case json.Delim:
		for in.More() {
			name := field // of the elements of a list
			if t == '{' {
				key, err := in.Token()
				if err != nil {
					return fmt.Errorf("%w: %w", ErrForm, err)
				}
				name, _ = key.(string)
			}
			if err := value(in, name, judged || t == '{' && holdsQuantities(field, name)); err != nil {
				return err
			}
		}
		_, err = in.Token() // the end
	}
	return err
}

// fields are the names in JSON of fields that are quantities, or have nothing else below them. A test compares them with
// the types of the Kubernetes API.
var fields = map[string]bool{"requests": true, "limits": true, "capacity": true, "allocatable": true, "allocatedresources": true, "overhead": true, "sizelimit": true,
	"divisor": true, "hard": true, "used": true, "usage": true, "averagevalue": true, "targetvalue": true, "targetaveragevalue": true, "currentvalue": true, "currentaveragevalue": true, "tolerance": true, "maximumvolumesize": true, "counters": true, "consumedcapacity": true}

// holdsQuantities reports whether a field, in the field parent, is one of quantities. Names are compared as encoding/json does.
func holdsQuantities(parent, field string) bool {
	field = folded(field)
	return fields[field] || field == "value" && (folded(parent) == "target" || folded(parent) == "current")
}

func folded(name string) string { return strings.ToLower(strings.ReplaceAll(name, "ſ", "s")) }

// number returns ErrQuantity for a text that Kubernetes would parse as a number with too many digits. It reads the text
// from its beginning only as far as it is a number.
func number(s []byte) error {
	s = bytes.TrimLeft(s, "+-")
	rest := bytes.TrimLeft(s, "0123456789.")
	if len(s)-len(rest) > maxDigits {
		return ErrQuantity
	}
	if len(rest) == 0 || rest[0] != 'e' && rest[0] != 'E' { // "e9" is 0e9
		return nil
	}
	exponent := bytes.TrimLeft(bytes.TrimLeft(rest[1:], "+-"), "0")
	if len(exponent) > maxExponent && len(bytes.TrimLeft(exponent, "0123456789")) == 0 {
		return ErrQuantity
	}
	return nil
}

// message judges protobuf. A quantity is a message whose first field is its text. What looks like one is judged wherever
// it is: the types are not known here, and generated code finds messages where no parser of the format would (it ignores
// the types of the fields of maps).
func message(raw []byte) error {
	for i, b := range raw {
		if b&0x7f != 1<<3|2 { // the first field, with a length; longer forms of the number have zeros above
			continue
		}
		key, n := varint(raw[i:])
		if int32(key>>3) != 1 || n == 0 { // generated code drops higher bits
			continue
		}
		rest := raw[i+n:]
		length, n := varint(rest)
		if rest = rest[n:]; n == 0 || length > uint64(len(rest)) {
			continue
		}
		if err := number(rest[:length]); err != nil {
			return err
		}
	}
	return nil
}

// varint reads a number as generated code does, which ignores bits above the 64th. n is 0 if there is none.
func varint(raw []byte) (v uint64, n int) {
	for ; n < len(raw) && n < 10; n++ {
		v |= uint64(raw[n]&0x7f) << (7 * n)
		if raw[n] < 0x80 {
			return v, n + 1
		}
	}
	return 0, 0
}
