package host

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A state on a disk of its own, which is not there at a boot (nofail): no new cluster begins on the card, not even where
// an older copy of the state lies below.
func TestTheStatesDiskIsNotMounted(t *testing.T) {
	root := t.TempDir()
	state, source := filepath.Join(root, "var/lib/rivulet"), filepath.Join(root, "etc/rivulet/config.yaml")
	byUUID := filepath.Join(root, "dev/disk/by-uuid")
	if err := errors.Join(os.MkdirAll(state, 0o700), os.MkdirAll(byUUID, 0o755)); err != nil {
		t.Fatal(err)
	}
	for device, uuid := range map[string]string{"sda1": "11-aa", "sdb1": "22-bb", "mmcblk0p2": "33-cc"} {
		if err := errors.Join(os.WriteFile(filepath.Join(root, "dev", device), nil, 0o600), os.Symlink("../../"+device, filepath.Join(byUUID, uuid))); err != nil {
			t.Fatal(err)
		}
	}
	card := "22 1 179:2 / / rw,noatime shared:1 - ext4 /dev/mmcblk0p2 rw\n"
	disk := func(device string) string {
		return card + "40 22 8:1 / " + strings.ReplaceAll(state, " ", `\040`) + " rw shared:9 - ext4 /dev/" + device + " rw\n"
	}
	start := func(mountinfo string) string {
		err := StateDisk(root, state, source, mountinfo, slog.New(slog.DiscardHandler))
		if err == nil {
			return ""
		}
		if !errors.Is(err, errNoStateDisk) {
			t.Error(err)
		}
		return err.Error()
	}
	store := filepath.Join(state, "state.db")
	record := filepath.Join(root, "etc/rivulet/state-disk.json")
	for i, step := range []struct {
		what, mounted string
		stored        bool   // the folder that is seen has a state
		want          string // in the error; empty for a start
	}{
		{"beside the configuration", card, false, ""},
		{"the first start on a disk", disk("sda1"), false, ""},
		{"again", disk("sda1"), true, ""},
		{"without the disk", card, false, "sudo mount " + state},
		{"without the disk, over an old copy", card, true, "(UUID=11-aa)"},
		{"another disk, empty", disk("sdb1"), false, "UUID=22-bb is mounted there"},
		{"another disk with the state", disk("sdb1"), true, ""},
		{"which is the disk then", card, true, "(UUID=22-bb)"},
	} {
		os.Remove(store)
		if step.stored {
			if err := os.WriteFile(store, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got := start(step.mounted); (got == "") != (step.want == "") || !strings.Contains(got, step.want) {
			t.Errorf("%s: %q, want %q", step.what, got, step.want)
		}
		if _, err := os.Stat(record); (err == nil) != (i > 0) {
			t.Errorf("%s: the record: %v", step.what, err)
		}
	}
	if err := os.Remove(record); err != nil { // as the error says
		t.Fatal(err)
	}
	if got := start(card); got != "" {
		t.Error(got)
	}
	if err := os.WriteFile(record, []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := start(disk("sda1")); !strings.Contains(got, "remove the file") {
		t.Errorf("a torn record: %q", got)
	}
}
