package card

import "rivulet/image/device/tree"

// Names in a slot's folder.
const (
	Pi5          = "bcm2712-rpi-5-b.dtb"
	NewerPi5     = "bcm2712-d-rpi-5-b.dtb" // Debian's, with the newer revision of the chip
	Overlays     = "overlays"
	NewerOverlay = Overlays + "/bcm2712d0.dtbo" // applied by the firmware if the chip is newer
)

// boards are the supported ones: the device tree that the firmware loads with upstream_kernel set, and the tree's value
// of compatible.
var boards = map[string]string{
	"bcm2837-rpi-3-b.dtb":      "raspberrypi,3-model-b",
	"bcm2837-rpi-3-b-plus.dtb": "raspberrypi,3-model-b-plus",
	"bcm2837-rpi-3-a-plus.dtb": "raspberrypi,3-model-a-plus",
	"bcm2837-rpi-cm3-io3.dtb":  "raspberrypi,3-compute-module",
	"bcm2711-rpi-4-b.dtb":      "raspberrypi,4-model-b",
	"bcm2711-rpi-400.dtb":      "raspberrypi,400",
	"bcm2711-rpi-cm4-io.dtb":   "raspberrypi,4-compute-module",
	Pi5:                        "raspberrypi,5-model-b",
	NewerPi5:                   "raspberrypi,5-model-b",
}

// boards checks the trees; known are the drivers in the initrd.
func (p *problems) boards(f Files, prefix string, known map[string]bool) {
	read := func(name, compatible string) *tree.Node {
		n, err := tree.Decode(f[prefix+name])
		if err != nil {
			p.add("%s: %v", prefix+name, err)
		} else if n.Text("compatible") != compatible {
			p.add("%s is for %q, not for %s", prefix+name, n.Text("compatible"), compatible)
		}
		return n
	}
	trees := map[string]*tree.Node{}
	for name, compatible := range boards {
		if trees[name] = read(name, compatible); trees[name] != nil {
			p.reach(prefix+name, trees[name], known)
		}
	}
	// The firmware uses the slot's overlays only if this file exists.
	if _, ok := f[prefix+Overlays+"/README"]; !ok {
		p.add("%s is not there: the firmware would look for overlays outside of the slot", prefix+Overlays+"/README")
	}
	over := read(NewerOverlay, "")
	if over != nil && trees[Pi5] != nil && trees[NewerPi5] != nil {
		if err := trees[Pi5].Apply(over); err != nil || !tree.Same(trees[Pi5], trees[NewerPi5]) {
			p.add("%s does not make %s of %s (%v)", prefix+NewerOverlay, NewerPi5, Pi5, err)
		}
	}
}
