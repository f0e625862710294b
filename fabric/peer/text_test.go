package peer

import (
	"reflect"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func TestText(t *testing.T) {
	for in, want := range map[string]string{
		"pi-1":                                         "pi-1",
		"Küche, 2. Stock (日本) 🙂":                       "Küche, 2. Stock (日本) 🙂",
		"a\x1b[31mred\x1b]0;title\x07b":                "a [31mred ]0;title b",
		"a\u009b31mb":                                  "a 31mb",
		"one\r\ntwo\n\n three\t":                       "one two three",
		"evil\u202egnp.exe":                            "evilgnp.exe",
		"\u2066x\u2069\u200b\ufeff":                    "x",
		"a\u2028b\u2029c\u0085d":                       "a b c d",
		"\xff\xfea\x00b":                               "a b",
		"e\u0301\u0301\u0301\u0301\u0301\u0301\u0301!": "e\u0301\u0301\u0301\u0301!",
		"\U000e0041\ue000x":                            "x",
	} {
		if got := Text(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
	if got := Text(strings.Repeat("ü", 1000)); len(got) > maxText || !strings.HasSuffix(got, "…") || !utf8.ValidString(got) {
		t.Errorf("a long one: %q", got)
	}
	if got, want := Prose("panic: x\n\tat main.go:1  \x1b[0m\n"), "panic: x\n\tat main.go:1   [0m\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// fit is what may reach a terminal.
func fit(s string, limit int, spaces string) bool {
	for _, r := range s {
		if r != ' ' && !strings.ContainsRune(spaces, r) && (!unicode.IsPrint(r) || r == utf8.RuneError && !strings.ContainsRune(s, utf8.RuneError)) {
			return false
		}
	}
	return len(s) <= limit && utf8.ValidString(s)
}

func checkText(t interface{ Fatalf(string, ...any) }, s string) {
	for _, one := range []struct {
		by     func(string) string
		limit  int
		spaces string
	}{{Text, maxText, ""}, {Prose, maxProse, "\n\t"}} {
		got := one.by(s)
		if !fit(got, one.limit, one.spaces) {
			t.Fatalf("%q: %q", s, got)
		}
		if again := one.by(got); again != got {
			t.Fatalf("%q: %q, and once more %q", s, got, again)
		}
	}
}

func TestTextIsFitAndStays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) { checkText(t, rapid.String().Draw(t, "text")) })
	rapid.Check(t, func(t *rapid.T) { checkText(t, string(rapid.SliceOf(rapid.Byte()).Draw(t, "bytes"))) })
}

func FuzzText(f *testing.F) {
	f.Add("a\x1b[31m\u202e\u009b" + strings.Repeat("e\u0301", 400))
	f.Add(strings.Repeat("x ", 3000))
	f.Fuzz(func(t *testing.T, s string) { checkText(t, s) })
}

// Every text of a message is reached, wherever it is in it.
func TestCleanReachesAll(t *testing.T) {
	type inner struct {
		Kind  State
		Texts []string
		Bytes []byte
	}
	type message struct {
		Name   string
		Labels map[string]string
		Inner  *inner
		More   map[string]inner
		Any    any
		hidden string
		Count  int
	}
	bad := "a\x1b\u202eb"
	m := message{Name: bad, Labels: map[string]string{bad: bad}, Inner: &inner{State(bad), []string{bad, "ok"}, []byte(bad)},
		More: map[string]inner{"k": {Kind: State(bad)}}, Any: &inner{Kind: State(bad)}, hidden: bad, Count: 3}
	Clean(&m, Text)
	want := message{Name: "a b", Labels: map[string]string{"a b": "a b"}, Inner: &inner{"a b", []string{"a b", "ok"}, []byte(bad)},
		More: map[string]inner{"k": {Kind: "a b"}}, Any: &inner{Kind: "a b"}, hidden: bad, Count: 3}
	if !reflect.DeepEqual(m, want) {
		t.Errorf("%+v, want %+v", m, want)
	}
	Clean((*message)(nil), Text)
	Clean(nil, Text)
}
