package doctor

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"rivulet/appliance/health"
	"rivulet/image/device/layout"
)

// bootFiles reads some 10 MB: the supervisor, which repeats a probe with a finding each 10 s, does not run it.
var bootFiles = Probe{Kind: health.BootFiles, Title: "files of the boot partition", Run: probeBootFiles}

// probeBootFiles compares what the firmware of a flashed device reads first, which no upgrade writes, with what the
// running version has.
func probeBootFiles(_ context.Context, e *Env) Result {
	if !e.exists(layout.RunSlot) {
		return Skipf("this is not a flashed device")
	}
	var old, copies []string
	for _, f := range layout.BootFiles[runtime.GOARCH] {
		from, to := "/"+f.Root, filepath.Join(layout.BootDir, f.Boot)
		newest, err := os.ReadFile(e.path(from))
		if err != nil {
			return Skipf("%v", err)
		}
		if has, err := os.ReadFile(e.path(to)); err != nil && !os.IsNotExist(err) {
			return Skipf("only root can see that: %v", err)
		} else if !bytes.Equal(has, newest) {
			old, copies = append(old, f.Boot), append(copies, "cp "+from+" "+to)
		}
	}
	if len(old) == 0 {
		return Passf("as this version brings them")
	}
	return Warnf("where the power will not go meanwhile: mount -o remount,rw "+layout.BootDir+" && "+strings.Join(copies, " && ")+"; sync; mount -o remount,ro "+layout.BootDir+
		"; or flash a new card", "of another version than the one that runs, as upgrades leave them: %s", strings.Join(old, ", "))
}
