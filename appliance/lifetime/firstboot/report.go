package firstboot

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"rivulet/appliance/health"
	"rivulet/image/device/layout"
)

// Follow reports what initrd and firstboot have found wrong in this boot. On a device of the image it keeps the note of
// its network until ctx ends.
func Follow(ctx context.Context, t *health.Tracker, log *slog.Logger) {
	ReportInitrd("/", t, log)
	Report("/", t, log)
	if _, err := os.Stat(layout.RunSlot); err == nil {
		go KeepNetworkNote(ctx, At("/", layout.BootDir), t, log)
	}
}

// ReportInitrd reports that the image's initrd could not use the data partition: then this device starts from scratch
// at each boot.
func ReportInitrd(root string, t *health.Tracker, log *slog.Logger) {
	why, err := os.ReadFile(filepath.Join(root, layout.DataFailed))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return
	case err != nil:
		why = []byte("the data partition cannot be used: " + err.Error())
	}
	text := strings.Join(strings.Fields(string(why)), " ") + "; all is in memory, and gone at the next start"
	log.Error("nothing is kept", "cause", text)
	t.Set(health.DataInMemory, text, "if there was nothing on this card that you miss, flash it again; else save what can be read of its fourth partition first. If it comes back, take another card")
}

// Report reports errors of the file on the boot partition, which firstboot has read once in this boot.
func Report(root string, t *health.Tracker, log *slog.Logger) {
	note, err := Read(root)
	if err != nil {
		log.Warn("what was done at the first boot cannot be read", "err", err)
	}
	for i, p := range note.Problems {
		subject := ""
		if i > 0 {
			subject = strconv.Itoa(i + 1)
		}
		t.SetFor(health.Firstboot, subject, p.Place()+": "+p.Text, p.Cure)
	}
}
