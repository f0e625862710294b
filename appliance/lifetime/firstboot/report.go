package firstboot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"rivulet/appliance/health"
	"rivulet/appliance/lifecycle"
	"rivulet/appliance/lifetime/slots"
	"rivulet/appliance/version"
	"rivulet/image/device/layout"
)

// Follow reports what initrd and firstboot have found wrong in this boot. On a device of the image it keeps the note of
// its network until ctx ends.
func Follow(ctx context.Context, t *health.Tracker, log *slog.Logger) {
	ReportInitrd("/", t, log)
	ReportLeft("/", t, log)
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
	text := strings.Join(strings.Fields(string(why)), " ") + "; no cluster is started and no peer is trusted, and settings are in memory and gone at the next start"
	log.Error("nothing is kept", "cause", text)
	t.Set(health.DataInMemory, text, "wait: the device starts again half an hour after its start (to keep it on: sudo systemctl stop rivulet-data-again.timer). If this comes back, save what can be read of the card's fourth partition, and take another card; if nothing on it is missed, flash it once more")
}

// ReportLeft reports that the initrd has left the other slot, because that did not come up.
func ReportLeft(root string, t *health.Tracker, log *slog.Logger) {
	raw, err := os.ReadFile(filepath.Join(root, layout.RunSlot))
	runs := strings.TrimSpace(string(raw))
	if err != nil || len(runs) != 1 || !layout.Slot(runs[0]).Valid() {
		return // no image
	}
	left := layout.Slot(runs[0]).Other()
	why, err := os.ReadFile(filepath.Join(root, layout.BootDir, left.String(), layout.Left))
	if err != nil {
		return
	}
	text := fmt.Sprintf("slot %s was left: %s; slot %s runs, with rivulet %s", left, strings.Join(strings.Fields(string(why)), " "), runs, version.Version)
	log.Error("one of the two slots did not come up", "cause", text)
	t.Set(health.SlotLeft, text, "write it anew, with the bundle of a release: sudo rivulet upgrade FILE. If it comes back, take another card or disk")
}

// Kept is a component that is ready unless the data partition could not be used. An empty cluster with a new key would be
// another one, which peers would trust in the place of the one on the disk. On a device of the image it also has the initrd
// know that this slot comes up (package slots).
func Kept(root string) func(context.Context, *lifecycle.Stage) error {
	return func(ctx context.Context, stage *lifecycle.Stage) error {
		if _, err := os.Stat(filepath.Join(root, layout.DataFailed)); errors.Is(err, fs.ErrNotExist) {
			stage.Ready()
		} else {
			stage.Waiting("for the data partition, until the next start: see %s", health.DataInMemory.Code)
		}
		if _, err := os.Stat(filepath.Join(root, layout.RunSlot)); err == nil {
			slots.Lasts(ctx, filepath.Join(root, layout.Starts), stage.Log())
		}
		<-ctx.Done()
		return nil
	}
}

// Report reports errors of the file and the folder on the boot partition, which firstboot has read once in this boot.
func Report(root string, t *health.Tracker, log *slog.Logger) {
	note, err := Read(root)
	if err != nil {
		log.Warn("what was done at the first boot cannot be read", "err", err)
	}
	for i, p := range note.All() {
		subject := ""
		if i > 0 {
			subject = strconv.Itoa(i + 1)
		}
		t.SetFor(health.Firstboot, subject, p.Place()+": "+p.Text, p.Cure)
	}
}
