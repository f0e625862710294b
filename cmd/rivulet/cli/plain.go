package cli

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"sync"
	"unicode/utf16"
	"unicode/utf8"

	"rivulet/fabric/peer"
)

// plain is the output of all verbs: text for a person. Others have written parts of it: messages of pods, names, logs.
// Whatever they contain, a terminal only shows it: control characters but tabs and ends of lines, characters that change
// the direction of writing and invalid UTF-8 are left out. What a verb writes for the terminal itself goes to raw.
type plain struct {
	file *os.File

	mu   sync.Mutex // kubectl's drain writes from many goroutines
	rest []byte     // the beginning of a character whose end has not come yet
}

// Write implements io.Writer.
func (p *plain) Write(text []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(text)
	text = append(p.rest, text...)
	p.rest = nil
	out := make([]byte, 0, len(text))
	for len(text) > 0 {
		r, size := utf8.DecodeRune(text)
		if r == utf8.RuneError && !utf8.FullRune(text) {
			p.rest = bytes.Clone(text)
			break
		}
		if r == '\n' || r == '\t' || peer.Shown(r) && (r != utf8.RuneError || size > 1) {
			out = append(out, text[:size]...)
		}
		text = text[size:]
	}
	if _, err := p.file.Write(out); err != nil {
		return 0, err
	}
	return n, nil
}

// raw is the stream below an output, for bytes that are no text, and for what a verb itself tells a terminal.
func raw(out io.Writer) io.Writer {
	if p, ok := out.(*plain); ok {
		return p.file
	}
	return out
}

// escaped writes the characters of JSON that plain leaves out as \u sequences, so that a program reads the same texts.
func escaped(text []byte) []byte {
	out := make([]byte, 0, len(text))
	for _, r := range string(text) {
		switch {
		case r == '\n' || peer.Shown(r):
			out = utf8.AppendRune(out, r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			out = fmt.Appendf(out, `\u%04x\u%04x`, high, low)
		default:
			out = fmt.Appendf(out, `\u%04x`, r)
		}
	}
	return out
}
