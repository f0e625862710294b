package layout

import (
	"path"
	"slices"
	"strings"
)

// The kernel's command line. gpt: use the second partition table if the first was cut while it was written. gpt_auto:
// the initrd makes all mounts. panic: the device restarts. memory: for kernels of the Raspberry Pi's makers; Debian's
// have that cgroup on. The serial line is ttyAMA10 on the Pi 5, ttyS1 on earlier ones. crash: memory that survives a
// restart, for the last 32 kB that a kernel logs as it crashes (its Documentation: admin-guide/kernel-parameters,
// admin-guide/ramoops).
const (
	crash     = " reserve_mem=256K:4096:crash pstore.kmsg_bytes=32768"
	CommandPC = "rivulet.slot=@SLOT@ console=tty0 console=ttyS0,115200 net.ifnames=0 panic=10 gpt systemd.gpt_auto=no quiet systemd.show_status=auto" + crash
	CommandPi = "rivulet.slot=@SLOT@ console=ttyAMA10,115200 console=ttyS1,115200 console=tty1 net.ifnames=0 panic=10 cgroup_enable=memory cgroup_memory=1 quiet systemd.show_status=auto" + crash
)

// Files of a slot's boot folder that have the command line: the Raspberry Pi's, and syslinux's entry. systemd-boot's is
// EntryFile.
const (
	CommandFile   = "cmdline.txt"
	SyslinuxEntry = "entry.cfg"
)

// CommandLimit is how long the command line of a Raspberry Pi may be, bytes.
const CommandLimit = 1024

// Added returns the words of a slot's command line, in a file of its boot folder or its entry for systemd-boot, that the
// image does not have: somebody wrote them there. Words that decide what is started are not among them.
func Added(file, text string, s Slot) (added []string) {
	image := CommandPC
	if path.Base(file) == CommandFile {
		image = CommandPi
	}
	known := words(Fill(image, s, 0))
	for _, line := range commandLines(file, text) {
		command, _ := commandIn(file, line)
		for _, w := range words(command) {
			key, _, _ := strings.Cut(w, "=")
			if !slices.Contains(known, w) && !slices.Contains([]string{"rivulet.slot", "root", "init", "rdinit", "initrd"}, key) {
				added = append(added, w)
			}
		}
	}
	return added
}

// Add appends words to the command line in a file of a slot's boot folder; other files stay as they are.
func Add(file, text string, added []string) string {
	if len(added) == 0 {
		return text
	}
	for _, line := range commandLines(file, text) {
		text = strings.Replace(text, line, strings.TrimRight(line, " \r\n")+" "+strings.Join(added, " ")+"\n", 1)
	}
	return text
}

// commandLines are the lines of a file that have the command line: the first of cmdline.txt, which is all that is read.
func commandLines(file, text string) (lines []string) {
	for line := range strings.Lines(text) {
		if _, ok := commandIn(file, line); ok {
			lines = append(lines, line)
		}
		if path.Base(file) == CommandFile {
			break
		}
	}
	return lines
}

// commandIn returns the command line in a line of a file: what follows the loader's keyword.
func commandIn(file, line string) (command string, ok bool) {
	key := ""
	switch base := path.Base(file); {
	case base == CommandFile:
		return line, true
	case base == SyslinuxEntry:
		key = "append"
	case path.Ext(base) == ".conf":
		key = "options"
	}
	first, command, _ := strings.Cut(strings.TrimLeft(line, " \t"), " ")
	return command, key != "" && strings.EqualFold(first, key)
}

// words splits a command line as the kernel does: blanks in quotes are part of a word.
func words(line string) []string {
	quoted := false
	return strings.FieldsFunc(line, func(r rune) bool {
		if r == '"' {
			quoted = !quoted
		}
		return !quoted && strings.ContainsRune(" \t\r\n", r)
	})
}
