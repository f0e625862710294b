package layout

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
)

// Loader is a boot loader that does not count starts itself.
type Loader int

// The loaders: syslinux on PCs without UEFI, the firmware of the Raspberry Pi.
// (systemd-boot has files of its own, see EntryName.)
const (
	Syslinux Loader = iota
	PiFirmware
)

// ChoiceFile is the file on the FAT partition that holds a Choice. It has one sector and is rewritten in place, so that
// a power cut leaves the old or the new.
const ChoiceFile = "slot.cfg"

// Choice is the slot that the loader starts, and the state of both.
type Choice struct {
	Load  Slot // the loader starts it
	Good  Slot // it works
	Try   Slot // it is being tried; or 0
	Tries int  // starts that are left to Try
}

// Encode makes the file, always one sector.
func (c Choice) Encode(l Loader) []byte {
	try := "-"
	if c.Try.Valid() {
		try = c.Try.String()
	}
	first := "DEFAULT " + c.Load.String()
	if l == PiFirmware {
		first = "os_prefix=" + c.Load.String() + "/"
	}
	text := fmt.Sprintf("%s\n# rivulet good=%s try=%s tries=%d\n", first, c.Good, try, c.Tries)
	return append([]byte(text), bytes.Repeat([]byte("\n"), Sector-len(text))...)
}

var choice = regexp.MustCompile(`^(?:DEFAULT ([ab])|os_prefix=([ab])/)\n# rivulet good=([ab]) try=([ab-]) tries=([0-9])\n`)

// DecodeChoice reads the file. If it returns an error, the caller continues with the slot that runs.
func DecodeChoice(raw []byte) (Choice, error) {
	m := choice.FindSubmatch(raw)
	if m == nil {
		return Choice{}, fmt.Errorf("%s does not say which slot boots; it is written anew by the next update", ChoiceFile)
	}
	c := Choice{Load: Slot((string(m[1]) + string(m[2]))[0]), Good: Slot(m[3][0]), Tries: int(m[5][0] - '0')}
	if m[4][0] != '-' {
		c.Try = Slot(m[4][0])
	}
	return c, nil
}

// Fill puts the slot and the version of its entry into the text files of a slot's boot folder.
func Fill(text string, s Slot, version int) string {
	return strings.NewReplacer("@SLOT@", s.String(), "@VERSION@", fmt.Sprint(version)).Replace(text)
}

// HasSlot reports whether Fill applies to a file of the boot folder.
func HasSlot(name string) bool {
	for _, end := range []string{".txt", ".cfg", ".conf"} {
		if strings.HasSuffix(name, end) {
			return true
		}
	}
	return false
}

// EntryFile is systemd-boot's entry, the one file of a slot's boot folder that is installed elsewhere.
const EntryFile = "loader.conf"
