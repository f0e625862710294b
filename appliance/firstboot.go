package appliance

import (
	"strconv"

	"rivulet/appliance/firstboot"
	"rivulet/appliance/health"
)

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
