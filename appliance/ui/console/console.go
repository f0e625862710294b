// Package console draws what a device shows on its screen or serial line: the summary of the status page as text,
// within 80 columns and 25 rows, and a QR code with which another device becomes its peer. It reads and writes nothing
// itself: `rivulet console` sends requests to the supervisor and prints.
package console

import (
	"strings"
	"unicode/utf8"

	"rivulet/appliance/ui/summary"
	"rivulet/fabric/peer"
)

// Size is a terminal's.
type Size struct{ Columns, Rows int }

// Least is the size of every screen and serial terminal.
var Least = Size{80, 25}

// Invite is an invite for another device, or a code that signs in to the web console.
type Invite struct {
	Code   string
	SignIn string   // the console's address; empty: an invite
	Until  string   // end of its validity, time of day
	QR     []string // one string per row; each is Width wide on the screen
	Width  int      // columns of the QR code
}

// leastText is the least width of the text, whatever is beside it.
const leastText = 36

// Draw returns the picture as rows, within the size of the terminal. note replaces the summary if the device cannot
// answer.
func Draw(v *summary.View, note string, i *Invite, size Size) []string {
	size.Columns, size.Rows = max(size.Columns, 40), max(size.Rows, 10)
	foot := footer(i, size)
	room := size.Rows - len(foot)
	var right []string
	width := size.Columns
	if i != nil && len(i.QR) > 0 && len(i.QR) <= room && size.Columns-i.Width-1 >= leastText {
		right, width = i.QR, size.Columns-i.Width-1
	}
	left := text(v, note, width, room)
	for n := range left {
		left[n] = strings.Map(shown, left[n])
	}
	var out []string
	for n := range max(len(left), len(right)) {
		row := ""
		if n < len(left) {
			row = left[n]
		}
		if n < len(right) {
			row += strings.Repeat(" ", width+1-utf8.RuneCountInString(row)) + right[n]
		}
		out = append(out, row)
	}
	for len(out) < room && len(foot) > 0 {
		out = append(out, "")
	}
	return append(out, foot...)
}

// shown drops what a terminal does not only show: names and messages of others are in the summary.
func shown(r rune) rune {
	if !peer.Shown(r) {
		return -1
	}
	return r
}

func text(v *summary.View, note string, width, room int) []string {
	if v == nil {
		return head(append([]string{"Rivulet", ""}, wrap(note, width, "")...), room)
	}
	out := []string{clip(v.Name, width)}
	out = append(out, wrap(v.Summary, width, "")...)
	where := v.Addresses
	if v.URL != "" {
		where = append([]string{v.URL}, where...)
	}
	out = append(out, wrap(strings.Join(where[:min(len(where), 3)], "  "), width, "")...)
	out = append(out, "")
	for _, s := range v.Steps {
		out = append(out, head(wrap(mark[s.State]+" "+pad(s.Name, 10)+s.Text, width, strings.Repeat(" ", 14)), 2)...)
		if s.Cure != "" {
			out = append(out, wrap("  do: "+s.Cure, width, "      ")...)
		}
	}
	if len(v.Problems) > 0 {
		out = append(out, "")
	}
	for n, p := range v.Problems {
		rows := wrap(strings.TrimSuffix("! "+p.Title+": "+p.Text, ": "), width, "  ")
		if p.Cure != "" {
			rows = append(rows, wrap("  do: "+p.Cure, width, "      ")...)
		}
		if left := len(v.Problems) - n + v.MoreProblems; len(out)+len(rows) > room-1 && (left > 1 || len(out)+len(rows) > room) {
			out = append(head(out, room-1), clip("  more: rivulet status", width))
			break
		}
		out = append(out, rows...)
	}
	return head(out, room)
}

// mark shows a step's state in ASCII.
var mark = map[summary.State]string{summary.Done: "ok", summary.Working: "..", summary.Failed: "!!", summary.Waiting: "  "}

func footer(i *Invite, size Size) []string {
	if i == nil {
		return []string{clip("to pair another device: press Enter for a code", size.Columns)}
	}
	if i.SignIn != "" {
		return head(wrap("to sign in, until "+i.Until+", once: scan, or open "+i.SignIn+" and type: "+i.Code, size.Columns, "  "), 4)
	}
	return head(wrap("to pair, until "+i.Until+", once: scan, or type there: rivulet peer --invite "+i.Code, size.Columns, "  "), 4)
}

func pad(s string, n int) string {
	return s + strings.Repeat(" ", max(0, n-utf8.RuneCountInString(s))) + " "
}

func head(rows []string, n int) []string { return rows[:min(len(rows), max(n, 0))] }

func clip(s string, width int) string {
	if r := []rune(s); len(r) > width {
		return string(r[:width-1]) + "…"
	}
	return s
}

// wrap breaks a text at spaces, or anywhere if a word is longer than a row; rows after the first begin with indent.
func wrap(s string, width int, indent string) (out []string) {
	lead := s[:len(s)-len(strings.TrimLeft(s, " "))]
	row, begun := lead, false
	flush := func() {
		out = append(out, strings.TrimRight(row, " "))
		row, begun = indent, false
	}
	for _, field := range fields(s[len(lead):]) {
		word := []rune(field)
		gap := 0
		if begun {
			gap = 1
		}
		if begun && utf8.RuneCountInString(row)+gap+len(word) > width {
			flush()
			gap = 0
		}
		for room := width - utf8.RuneCountInString(row) - gap; len(word) > room; room = width - utf8.RuneCountInString(row) {
			row += string(word[:room])
			word = word[room:]
			flush()
			gap = 0
		}
		row += strings.Repeat(" ", gap) + string(word)
		begun = true
	}
	if begun || len(out) == 0 {
		flush()
	}
	return out
}

// fields are words; runs of spaces that form columns stay with the word before.
func fields(s string) (out []string) {
	for len(s) > 0 {
		end := strings.IndexByte(s, ' ')
		if end < 0 {
			return append(out, s)
		}
		rest := strings.TrimLeft(s[end:], " ")
		spaces := len(s) - end - len(rest) - 1
		out = append(out, s[:end]+strings.Repeat(" ", spaces))
		s = rest
	}
	return out
}
