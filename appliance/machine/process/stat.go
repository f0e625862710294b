package process

import "strings"

// StatFields returns the fields of /proc/PID/stat after the program's name, which may contain blanks and brackets:
// first the state, then the parent.
func StatFields(stat string) []string {
	return strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
}
