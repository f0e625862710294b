package firstboot

import (
	"slices"
	"strings"

	"rivulet/appliance/config"
)

// sheet is a file of sections with KEY=VALUE lines, as systemd-networkd and iwd read them.
type sheet struct {
	name     string
	lines    []string
	settings []setting
}

// setting is one line; a section's own line has no key.
type setting struct {
	line                int // counts from 1
	section, key, value string
}

// parseSheet reads a file; wrong receives lines that are neither.
func parseSheet(name, text string, wrong func(line int, text, cure string)) *sheet {
	text = strings.TrimPrefix(text, "\ufeff") // an editor's mark, which iwd does not know
	s := &sheet{name: name, lines: strings.Split(strings.ReplaceAll(text, "\r\n", "\n"), "\n")}
	section := ""
	for i, line := range s.lines {
		line = strings.TrimLeft(line, " \t")
		if line == "" || line[0] == '#' || line[0] == ';' {
			continue
		}
		if head, ok := strings.CutPrefix(strings.TrimRight(line, " \t"), "["); ok && strings.HasSuffix(head, "]") {
			section = strings.TrimSuffix(head, "]")
			s.settings = append(s.settings, setting{line: i + 1, section: section})
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		switch key = strings.TrimRight(key, " \t"); {
		case !ok || key == "":
			wrong(i+1, "it is neither [SECTION] nor KEY=VALUE", "write one of them, or # before a remark")
		case section == "":
			wrong(i+1, key+" is in no section", "write the line of its section, for example [Match], before it")
		default:
			// networkd takes no blank at the end of a value, iwd does: in a password it may be meant.
			if value = strings.TrimLeft(value, " \t"); !secretKey.MatchString(key) || strings.TrimSpace(value) == config.Moved {
				value = strings.TrimRight(value, " \t")
			}
			s.settings = append(s.settings, setting{i + 1, section, key, value})
		}
	}
	return s
}

// all returns the settings of a key, given as Section.Key.
func (s *sheet) all(key string) (found []setting) {
	for _, k := range s.settings {
		if k.key != "" && k.section+"."+k.key == key {
			found = append(found, k)
		}
	}
	return found
}

// get returns the last setting of a key that is not empty.
func (s *sheet) get(key string) (found setting, ok bool) {
	for _, k := range s.all(key) {
		if k.value != "" {
			found, ok = k, true
		}
	}
	return found, ok
}

// words are all values of a key, split at blanks.
func (s *sheet) words(key string) (out []string) {
	for _, k := range s.all(key) {
		out = append(out, strings.Fields(k.value)...)
	}
	return out
}

// with returns the text of the file with some lines' values replaced.
func (s *sheet) with(values map[int]string) []byte {
	lines := slices.Clone(s.lines)
	for _, k := range s.settings {
		if v, ok := values[k.line]; ok {
			lines[k.line-1] = k.key + "=" + v
		}
	}
	return []byte(strings.Join(lines, "\n"))
}

// filled returns the sheet as it is with those values.
func (s *sheet) filled(values map[int]string) *sheet {
	return parseSheet(s.name, string(s.with(values)), func(int, string, string) {})
}
