// Package redact removes secrets from text that leaves the device: keys, tokens, passwords, values with such names, and
// known secrets. It has no side effects and no state.
//
// It removes too much rather than too little. It cannot detect a secret that looks like an ordinary word and has no
// such name.
package redact

import (
	"regexp"
	"slices"
	"strings"
)

// Removed replaces what was removed.
const Removed = "[removed]"

// Shortest is the length of the shortest known secret to look for: a shorter one would match ordinary words.
const Shortest = 6

// Redactor has the device's own secrets beside the general patterns. It may be used concurrently.
type Redactor struct{ known *strings.Replacer }

// New returns a redactor that also removes these strings everywhere.
func New(known []string) *Redactor {
	known = slices.DeleteFunc(slices.Clone(known), func(s string) bool { return len(s) < Shortest })
	// The longest first: a secret may begin with another.
	slices.SortFunc(known, func(a, b string) int {
		if len(a) != len(b) {
			return len(b) - len(a)
		}
		return strings.Compare(a, b)
	})
	var pairs []string
	for _, s := range slices.Compact(known) {
		pairs = append(pairs, s, Removed)
	}
	return &Redactor{strings.NewReplacer(pairs...)}
}

// Text returns text without secrets.
func (r *Redactor) Text(text string) string {
	if r != nil {
		text = r.known.Replace(text)
	}
	for _, rule := range rules {
		text = rule.find.ReplaceAllString(text, rule.put)
	}
	return text
}

// telling matches names of secret values.
const telling = `(?:pass(?:w(?:or)?d|phrase|code)|pwd|secret|token|psk|api[_.-]?key|private[_.-]?key|access[_.-]?key|client-key|key-data|credential|authorization|signature)`

var rules = []struct {
	find *regexp.Regexp
	put  string
}{
	// Complete, or truncated at the end of a log.
	{regexp.MustCompile(`(?s)-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?-----END [A-Z0-9 ]*PRIVATE KEY-----`), Removed},
	{regexp.MustCompile(`-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----(?:(?:\s|\\n)+(?:(?:Proc-Type|DEK-Info):[^\n\\]*|[A-Za-z0-9+/=]{16,}))*(?:(?:\s|\\n)+[A-Za-z0-9+/=]{1,15})?`), Removed},
	{regexp.MustCompile(`(?:[A-Za-z0-9+/=]{16,}(?:\s|\\n)+)*(?:[A-Za-z0-9+/=]{1,15}(?:\s|\\n)+)?-----END [A-Z0-9 ]*PRIVATE KEY-----`), Removed},
	// "-----BEGIN" in base64, as in a kubeconfig.
	{regexp.MustCompile(`LS0tLS1CRUdJTi[A-Za-z0-9+/=]*`), Removed},
	// k3s's tokens, of both forms; JSON web tokens; bootstrap tokens; age; a few well-known services.
	{regexp.MustCompile(`\bK10[0-9a-f]{64}(?:::[^\s"',;]+)?`), Removed},
	{regexp.MustCompile(`::(?:server|node|agent):[^\s"',;]+`), "::" + Removed},
	{regexp.MustCompile(`\beyJ[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*){1,2}`), Removed},
	{regexp.MustCompile(`\b[a-z0-9]{6}\.[a-z0-9]{16}\b`), Removed},
	{regexp.MustCompile(`AGE-SECRET-KEY-1[0-9A-Z]+`), Removed},
	{regexp.MustCompile(`\b(?:gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{30,}|glpat-[\w-]{20,}|AKIA[0-9A-Z]{16})\b`), Removed},
	// Users in URLs.
	{regexp.MustCompile(`([a-z][a-z0-9+.-]*://)[^/\s@"']+@`), "${1}" + Removed + "@"},
	{regexp.MustCompile(`(?i)\b(bearer|basic|digest)(\s+)[A-Za-z0-9+/=._~-]{8,}`), "${1}${2}" + Removed},
	// A YAML block under such a name: all that is indented deeper.
	{regexp.MustCompile(`(?im)^([ \t]*(?:- )?["']?[\w.-]*` + telling + `[\w.-]*["']?[ \t]*:[ \t]*[|>][+-]?[0-9]*)[ \t]*\n(?:[ \t]+[^\n]*(?:\n|$)|[ \t]*\n)+`), "${1} " + Removed + "\n"},
	// name: value, name=value, "name": "value", also with escaped quotes.
	{regexp.MustCompile(`(?i)([\w.-]*` + telling + `[\w.-]*(?:\\?["'])?\s*[:=]\s*)(?:\\"[^"\n]*?\\"|"(?:[^"\\\n]|\\.)*"?|'[^'\n]*'?|[^\s"',;}\])&|>\[][^\s,;}&]*)`), "${1}" + Removed},
	// An environment variable of a pod: the name, then the value on the next line.
	{regexp.MustCompile(`(?i)(["']?name["']?\s*:\s*["']?[\w.-]*` + telling + `[\w.-]*["']?\s*,?\s*["']?value["']?\s*:\s*)(?:"(?:[^"\\\n]|\\.)*"?|'[^'\n]*'?|[^\s"',;}]+)`), "${1}" + Removed},
	// A flag and its value.
	{regexp.MustCompile(`(?i)(\s--?[\w-]*` + telling + `[\w-]*\s+)(?:"[^"\n]*"|'[^'\n]*'|[^\s"'-][^\s"',]*)`), "${1}" + Removed},
	// auth of a registry's configuration.
	{regexp.MustCompile(`(?i)(["']?\bauth["']?\s*[:=]\s*)(["']?)[A-Za-z0-9+/=_-]{4,}(["']?)`), "${1}${2}" + Removed + "${3}"},
	// Keys of 32 bytes in base64, as WireGuard's. Public ones look the same and go too.
	{regexp.MustCompile(`(^|[^A-Za-z0-9+/=])[A-Za-z0-9+/]{42}[AEIMQUYcgkosw048]=`), "${1}" + Removed},
}
