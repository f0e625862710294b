package card

import (
	"slices"

	"rivulet/image/device/tree"
)

// Names in a slot's folder.
const (
	Pi5          = "bcm2712-rpi-5-b.dtb"
	NewerPi5     = "bcm2712-d-rpi-5-b.dtb" // as Debian has it, with the newer revision of the chip
	Overlays     = "overlays"
	NewerOverlay = Overlays + "/bcm2712d0.dtbo" // what the firmware lays over a tree where the chip is newer
)

// Module5 is the board for which all of Modules5 are.
const Module5 = "raspberrypi,5-compute-module"

// Modules5 are the trees of the Compute Module 5, and whether each is for a Lite, which
// has no storage of its own. The firmware asks for those with cm5io, whatever carries
// the module (rpi-eeprom, release of 2025-03-27; it cannot see what does). The Raspberry
// Pi's kernel has two for the older carrier, too; a file that is never asked for costs
// nothing, one that is not there the start.
var Modules5 = map[string]bool{
	"bcm2712-rpi-cm5-cm5io.dtb":  false,
	"bcm2712-rpi-cm5-cm4io.dtb":  false,
	"bcm2712-rpi-cm5l-cm5io.dtb": true,
	"bcm2712-rpi-cm5l-cm4io.dtb": true,
}

// boards are the others that are supported, by the tree that the firmware asks for
// with upstream_kernel set, and what the tree says that it is for.
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

// boards checks the trees; known is what the initrd has drivers for.
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
	// The firmware takes overlays from the slot only where this file is.
	if _, ok := f[prefix+Overlays+"/README"]; !ok {
		p.add("%s is not there: the firmware would look for overlays outside of the slot", prefix+Overlays+"/README")
	}
	over := read(NewerOverlay, "")
	if over != nil && trees[Pi5] != nil && trees[NewerPi5] != nil {
		if err := trees[Pi5].Apply(over); err != nil || !tree.Same(trees[Pi5], trees[NewerPi5]) {
			p.add("%s does not make %s of %s (%v)", prefix+NewerOverlay, NewerPi5, Pi5, err)
		}
	}
	for name, lite := range Modules5 {
		n := read(name, Module5)
		if n == nil {
			continue
		}
		p.reach(prefix+name, n, known)
		p.storage(prefix+name, n, lite)
		if over != nil {
			p.newer(prefix+name, n, over)
		}
	}
}

// storage checks what a tree of the Compute Module 5 says of the disk: with the Pi 5's
// the kernel would wait for a card on a line that leads elsewhere, and give a chip
// signals of a voltage that the module does not have.
func (p *problems) storage(name string, n *tree.Node, lite bool) {
	disk := n.Labelled("sdio1")
	if disk == nil {
		p.add("%s has no node sdio1, where the storage is", name)
		return
	}
	if disk.Has("cd-gpios") || !disk.Has("non-removable") && !disk.Has("broken-cd") {
		p.add("%s: the kernel would wait until a line says that the storage is there, and the module has no such line", name)
	}
	var signals *tree.Node
	if w := disk.Words("vqmmc-supply"); len(w) == 1 {
		signals = n.ByHandle(w[0])
	}
	highest := uint32(1_800_000)
	if lite {
		highest = 3_300_000
	}
	if signals == nil || !slices.Equal(signals.Words("regulator-max-microvolt"), []uint32{highest}) || signals.Has("gpios") != lite {
		p.add("%s: the signals of the storage have to go to %.1f V (switched: %v), and do not", name, float64(highest)/1e6, lite)
	}
}

// newer checks that the overlay of the newer chip does to a tree just what it is to
// do: the firmware asks for it on modules (nerves-project/nerves_system_rpi5, pull
// request 44).
func (p *problems) newer(name string, n, over *tree.Node) {
	with := n.Clone()
	err := with.Apply(over)
	if err == nil {
		var change *tree.Node
		if change, err = tree.Overlay(n, with); err == nil && tree.Same(change, over) {
			return
		}
	}
	p.add("%s cannot be changed by %s to the newer chip (%v)", name, NewerOverlay, err)
}
