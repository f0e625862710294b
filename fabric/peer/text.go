package peer

import (
	"reflect"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Texts of other clusters reach terminals, pages and objects. Code that decodes another cluster's message calls Text or
// Clean before any other use.

const (
	maxText  = 300  // bytes of Text
	maxProse = 4096 // bytes of Prose: the kubelet's limit for a termination message
	// maxMarks bounds the marks on one letter.
	maxMarks = 4
	more     = "…"
)

// Text makes a stranger's text safe to show: one line of letters, marks, digits, punctuation and symbols of any script
// with single spaces, at most 300 bytes. It removes terminal controls (C0, C1), characters that change the direction of
// writing, invisible characters and invalid UTF-8.
func Text(s string) string { return clean(s, maxText, "") }

// Prose is Text for several lines, at most 4096 bytes. Line ends, tabs and spaces stay.
func Prose(s string) string { return clean(s, maxProse, " \n\t") }

// Line is Text with a bound of its own, bytes.
func Line(s string, most int) string { return clean(s, most, "") }

// Shown reports whether a terminal only shows a character: a letter, mark, digit, punctuation or symbol of any script, or
// a space. It is false for controls, for characters that change the direction of writing, and for invisible ones.
func Shown(r rune) bool { return unicode.IsPrint(r) || unicode.Is(unicode.Zs, r) }

// clean keeps the whitespace listed in as; all other whitespace becomes single spaces.
func clean(s string, limit int, as string) string {
	if len(s) > 4*limit { // the rest would be cut off
		s = s[:4*limit] + more
	}
	var out []byte
	gap, marks := false, 0
	for i, r := range s {
		switch {
		case r == utf8.RuneError && !strings.HasPrefix(s[i:], string(utf8.RuneError)):
			continue // invalid UTF-8
		case strings.ContainsRune(as, r):
			marks = 0
		case unicode.IsSpace(r), unicode.IsControl(r):
			gap = len(out) > 0
			continue
		case !Shown(r):
			continue
		case unicode.IsMark(r):
			if marks++; marks > maxMarks {
				continue
			}
		default:
			marks = 0
		}
		if gap && r != ' ' {
			out = append(out, ' ')
		}
		gap = false
		out = utf8.AppendRune(out, r)
	}
	text := string(out)
	if len(text) <= limit {
		return text
	}
	text = text[:limit-len(more)]
	for !utf8.ValidString(text) {
		text = text[:len(text)-1]
	}
	return strings.TrimRight(text, " ") + more
}

// Clean applies the function to all texts in what v points to: fields, elements, keys and values. It is for decoded
// messages of other clusters.
func Clean(v any, by func(string) string) { cleanValue(reflect.ValueOf(v), by) }

func cleanValue(v reflect.Value, by func(string) string) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			cleanValue(v.Elem(), by)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				cleanValue(v.Field(i), by)
			}
		}
	case reflect.Slice, reflect.Array:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return
		}
		for i := range v.Len() {
			cleanValue(v.Index(i), by)
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			k, e := reflect.New(key.Type()).Elem(), reflect.New(v.Type().Elem()).Elem()
			k.Set(key)
			e.Set(v.MapIndex(key))
			cleanValue(k, by)
			cleanValue(e, by)
			v.SetMapIndex(key, reflect.Value{})
			v.SetMapIndex(k, e)
		}
	case reflect.String:
		if s := by(v.String()); v.CanSet() && s != v.String() {
			v.SetString(s)
		}
	}
}
