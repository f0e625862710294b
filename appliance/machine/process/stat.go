package process

import "strings"

// StatFields are those of a /proc/PID/stat behind the program's name, which may hold blanks and brackets: first the
// state, then the parent.
func StatFields(stat string) []string {
	return strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
}
