package appliance

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"rivulet/appliance/firstboot"
	"rivulet/appliance/health"
	"rivulet/image/device/layout"
)

// tellInitrd shows that the initrd of our image could not use the data partition: this
// device begins anew at each start.
func (s *System) tellInitrd(root string) {
	why, err := os.ReadFile(filepath.Join(root, layout.DataFailed))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return
	case err != nil:
		why = []byte("the data partition cannot be used: " + err.Error())
	}
	text := strings.Join(strings.Fields(string(why)), " ") + "; all is in memory, and gone at the next start"
	s.cfg.Log.Error("nothing is kept", "cause", text)
	s.health.Set(health.DataInMemory, text, "if there was nothing on this card that you miss, flash it again; else save what can be read of its fourth partition first. If it comes back, take another card")
}

// tellFirstboot shows what could not be taken of the file on the boot partition; it was
// read before us, once for this boot.
func (s *System) tellFirstboot(root string) {
	note, err := firstboot.Read(root)
	if err != nil {
		s.cfg.Log.Warn("what was done at the first boot cannot be read", "error", err)
	}
	for i, p := range note.Problems {
		subject := ""
		if i > 0 {
			subject = strconv.Itoa(i + 1)
		}
		s.health.SetFor(health.Firstboot, subject, p.Place()+": "+p.Text, p.Cure)
	}
}
