package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"rivulet/appliance/state/durable"
)

// cmdlineFiles are where a Raspberry Pi's firmware reads the kernel's command line; the newer place first.
var cmdlineFiles = []string{"/boot/firmware/cmdline.txt", "/boot/cmdline.txt"}

// memoryWords enable the controller, and override the firmware's words before them.
var memoryWords = []string{"cgroup_enable=memory", "cgroup_memory=1"}

// noMemoryCgroup returns why the controller is missing, with the cure. The file alone is no proof: some firmware adds
// cgroup_disable=memory, some kernels ignore the word that reverts it, and a second line is never read.
func noMemoryCgroup(e *Env) Result {
	const gone = "containers' memory cannot be limited: the controller is not there"
	booted := strings.Fields(e.read("/proc/cmdline"))
	file := ""
	for _, f := range cmdlineFiles {
		if e.exists(f) && !strings.HasPrefix(e.read(f), "DO NOT EDIT") {
			file = f
			break
		}
	}
	if file == "" {
		if slices.Contains(booted, "cgroup_disable=memory") {
			return Failf("take cgroup_disable=memory off the kernel's command line in the boot loader and reboot", "%s, cgroup_disable=memory is on the command line", gone)
		}
		return Failf("add cgroup_enable=memory to the kernel's command line in the boot loader and reboot", "%s", gone)
	}
	want := withMemory(e.read(file))
	if e.read(file) == want {
		if slices.Contains(booted, memoryWords[0]) {
			return Failf("update the kernel (6.12.34 for the Raspberry Pi 5 is known for it), then reboot",
				"%s although the kernel was told %s", gone, memoryWords[0])
		}
		return Failf("reboot", "%s; %s is right, the running kernel was started before", gone, file)
	}
	why := gone
	if slices.Contains(booted, "cgroup_disable=memory") {
		why += ", the firmware disables it"
	}
	r := Failf(fmt.Sprintf("rivulet doctor --fix, or write all on the one line of %s: %s; then reboot", file, strings.Join(memoryWords, " ")), "%s", why)
	r.Fix = &Fix{
		Says:   fmt.Sprintf("writes %s into %s (the old one is kept as %s); then reboot", strings.Join(memoryWords, " "), file, kept(file)),
		Do:     func(context.Context) error { return rewrite(e.path(file), withMemory) },
		Reboot: true,
	}
	return r
}

// withMemory returns a command line as one line, with the words and without those that contradict them. Everything else
// stays in its place.
func withMemory(text string) string {
	words := slices.DeleteFunc(strings.Fields(text), func(w string) bool { return w == "cgroup_disable=memory" || w == "cgroup_memory=0" })
	for _, w := range memoryWords {
		if !slices.Contains(words, w) {
			words = append(words, w)
		}
	}
	return strings.Join(words, " ")
}

// kept is the name of the copy of a changed file.
func kept(file string) string { return file + ".before-rivulet" }

// Changed are the kernel's command lines of this machine that a fix has changed, and their copies of before.
func Changed() map[string]string {
	out := map[string]string{}
	for _, f := range cmdlineFiles {
		if _, err := os.Stat(kept(f)); err == nil {
			out[f] = kept(f)
		}
	}
	return out
}

// rewrite changes a file in one step: after a power cut the machine boots with the old or the new one. The first
// original is kept for ever.
func rewrite(path string, change func(string) string) error {
	old, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	now := change(string(old))
	if strings.TrimSpace(now) == "" || strings.Contains(now, "\n") {
		return fmt.Errorf("%s: what would be written is not one line; nothing was changed", path)
	}
	if _, err := os.Stat(kept(path)); errors.Is(err, os.ErrNotExist) {
		if err := durable.Write(kept(path), old, 0o644); err != nil {
			return err
		}
	}
	return durable.Write(path, []byte(now+"\n"), 0o644)
}
