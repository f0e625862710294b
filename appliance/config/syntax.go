package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// document parses the root of a YAML document, nil if it is empty.
func document(file string, data []byte) (*yaml.Node, Problems) {
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf")) // Windows editors write it before UTF-8
	if p := encoding(file, data); p != nil {
		return nil, Problems{*p}
	}
	docs, err := parse(data)
	if err != nil {
		return nil, Problems{syntax(file, data, err)}
	}
	if len(docs) == 0 || len(docs[0].Content) == 0 {
		return nil, nil
	}
	if len(docs) > 1 {
		return nil, Problems{{File: file, Line: docs[1].Line, Column: max(docs[1].Column, 1), Text: "a second document begins here", Cure: "remove the line with --- and what follows, or put it above"}}
	}
	root := docs[0].Content[0]
	return root, references(file, root)
}

// parse reads all documents. The library may panic on odd input, and no input may end the appliance.
func parse(data []byte) (docs []*yaml.Node, err error) {
	defer func() {
		if p := recover(); p != nil {
			docs, err = nil, fmt.Errorf("yaml: %v", p)
		}
	}()
	for d := yaml.NewDecoder(bytes.NewReader(data)); ; {
		var n yaml.Node
		switch err := d.Decode(&n); {
		case errors.Is(err, io.EOF):
			return docs, nil
		case err != nil:
			return nil, err
		}
		docs = append(docs, &n)
	}
}

// encoding finds content that is not text.
func encoding(file string, data []byte) *Problem {
	if bytes.HasPrefix(data, []byte("\xff\xfe")) || bytes.HasPrefix(data, []byte("\xfe\xff")) {
		return &Problem{File: file, Line: 1, Column: 1, Text: "the file is UTF-16", Cure: "save it as UTF-8"}
	}
	line, column := 1, 1
	for rest := data; len(rest) > 0; {
		r, n := utf8.DecodeRune(rest)
		switch {
		case r == utf8.RuneError && n == 1:
			return &Problem{File: file, Line: line, Column: column, Text: fmt.Sprintf("byte 0x%02x is not UTF-8", rest[0]), Cure: "save the file as UTF-8"}
		case r < ' ' && r != '\t' && r != '\n' && r != '\r' || r == 0x7f:
			return &Problem{File: file, Line: line, Column: column, Text: fmt.Sprintf("control character 0x%02x", r), Cure: "remove it; is it a text file?"}
		}
		column++
		if r == '\n' {
			line, column = line+1, 1
		}
		rest = rest[n:]
	}
	return nil
}

var namedLine = regexp.MustCompile(`^yaml: (line \d+: )?`)

// syntax finds the line of a syntax error. The library's line is that of the surrounding construct, often far above.
func syntax(file string, data []byte, err error) Problem {
	lines := bytes.SplitAfter(data, []byte("\n"))
	at := firstBad(lines)
	line := strings.TrimRight(string(lines[at]), "\r\n")
	indent := line[:len(line)-len(strings.TrimLeft(line, " \t"))]
	p := Problem{File: file, Line: at + 1, Column: len(indent) + 1, Text: "this is not YAML", Cure: "see: rivulet config example"}
	said := namedLine.ReplaceAllString(err.Error(), "")
	if tab := strings.IndexByte(indent, '\t'); tab >= 0 {
		p.Column, p.Text, p.Cure = tab+1, "a tab in the indentation", "use spaces"
		return p
	}
	for _, k := range []struct{ said, text, cure string }{
		{"mapping values are not allowed", "a second key on one line, or a line too far to the right", "one key on each line; keys of one group begin in the same column; a value with a colon needs quotes"},
		{"did not find expected key", "this line does not fit the ones above", "keys of one group begin in the same column"},
		{"could not find expected ':'", "a key without a colon", "write key: value"},
		{"did not find expected ',' or", "a bracket that is not closed, or a comma that is missing", "write [a, b] or {key: value}"},
		{"did not find expected node content", "something is missing here", "write [a, b] or {key: value}"},
		{"found unexpected end of stream", "a quote that is not closed", "end the text with the quote that it begins with"},
		{"found unknown escape character", "an unknown escape in a quoted text", "use single quotes, where \\ is only itself"},
		{"found character that cannot start any token", "a character that no value can begin with", "put the value in quotes"},
		{"unknown anchor", "a value that begins with *", "put it in quotes"},
		{"did not find expected alphabetic or numeric character", "a value that begins with * or &", "put it in quotes"},
		{"block sequence entries are not allowed", "a list entry where none can be", "begin the list on a line of its own, or write [a, b]"},
		{"block collections are not allowed", "a list or a group where none can be", "begin it on a line of its own"},
	} {
		if strings.Contains(said, k.said) {
			p.Text, p.Cure = k.text, k.cure
			break
		}
	}
	return p
}

// ahead is how many lines further firstBad looks for a text that parses: a bracket may be closed some lines below.
const ahead = 100

// effort bounds the work of firstBad, bytes parsed; beyond that the reported line is too early.
const effort = 4 << 20

// firstBad returns the index of the line after the longest prefix that is valid YAML.
func firstBad(lines [][]byte) int {
	spent := 0
	ok := func(n int) bool {
		text := bytes.Join(lines[:n], nil)
		if spent += len(text); spent > effort {
			return false
		}
		_, err := parse(text)
		return err == nil
	}
	good := 0
	for bad := len(lines); good < len(lines); bad = min(good+1+ahead, len(lines)) {
		for bad-good > 1 { // good parses, bad does not
			if mid := (good + bad) / 2; ok(mid) {
				good = mid
			} else {
				bad = mid
			}
		}
		further := 0
		for n := good + 1; n <= min(good+ahead, len(lines)); n++ {
			if ok(n) {
				further = n
			}
		}
		if further == 0 {
			break
		}
		good = further
	}
	for good < len(lines)-1 && len(bytes.TrimSpace(lines[good])) == 0 {
		good++
	}
	return min(good, len(lines)-1)
}

// references finds anchors, aliases, tags and the like, by which the file means something else than it seems to: a
// small file does not need them, and they could make it large.
func references(file string, root *yaml.Node) (out Problems) {
	var look func(*yaml.Node)
	look = func(n *yaml.Node) {
		if n.Kind == yaml.AliasNode || n.Anchor != "" {
			out = append(out, Problem{File: file, Line: n.Line, Column: n.Column, Text: "anchors (&) and references (*) are not known here", Cure: "write the value itself; put a text that begins with & or * in quotes"})
			return
		}
		if n.Style&yaml.TaggedStyle != 0 {
			out = append(out, Problem{File: file, Line: max(n.Line, 1), Column: max(n.Column, 1), Text: "tags (!) are not known here", Cure: "remove it, or put a text that begins with ! in quotes"})
		}
		for _, c := range n.Content {
			look(c)
		}
	}
	look(root)
	return out
}
