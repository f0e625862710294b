package doctor

import (
	"context"
	"regexp"
	"time"

	"rivulet/appliance/health"
)

var kernelCrash = Probe{Kind: health.KernelCrash, Title: "crashes of the kernel", Every: rarely, Run: probeKernelCrash}

// crashMind is how long a crash of the kernel is reported.
const crashMind = 7 * 24 * time.Hour

// crashWords match the line with the reason in the kernel's last output: of a disk that does not answer (the image's
// disk-answers), of a panic, else of an oops.
var crashWords = []*regexp.Regexp{
	regexp.MustCompile(`the disk of this device [^\n]* has not answered [^\n]*`),
	regexp.MustCompile(`Kernel panic - not syncing: [^\n]*`),
	regexp.MustCompile(`(?:BUG: |Oops: |Oops - |Unable to handle |general protection fault)[^\n]*`),
}

// CrashFolder is where systemd-pstore(8) stores the kernel's last output, at the start after a crash.
const CrashFolder = "/var/lib/systemd/pstore"

// CrashRecords are the patterns of its text files, directly in it or in a folder per crash.
var CrashRecords = []string{"dmesg*", "*/dmesg*", "*/*/dmesg*"}

// probeKernelCrash reports the newest crash of the last days.
func probeKernelCrash(_ context.Context, e *Env) Result {
	if !e.exists("/sys/fs/pstore") {
		return Skipf("this kernel keeps nothing of a crash")
	}
	newest, text := time.Time{}, ""
	for _, depth := range CrashRecords {
		for _, file := range e.glob(CrashFolder + "/" + depth) {
			if at, ok := e.changed(file); ok && e.Now().Sub(at) <= crashMind && at.After(newest) {
				newest, text = at, e.read(file)
			}
		}
	}
	if newest.IsZero() {
		return Passf("none in the last week")
	}
	why := "it did not say why"
	for _, words := range crashWords {
		if found := words.FindString(text); found != "" {
			why = found
			break
		}
	}
	return Warnf("what it said is in "+CrashFolder+" and goes into the archive of rivulet support; if it comes again look at the power supply, the memory and the last thing that was plugged in",
		"found at the start of %s: %.200s", newest.UTC().Format("2006-01-02 15:04 MST"), why)
}
