package main

import (
	"errors"
	"fmt"
	"path/filepath"

	"rivulet/image/device/card"
	"rivulet/image/device/tree"
)

// modules5 makes the trees of the Raspberry Pi Compute Module 5. Debian's kernel has
// none, its drivers are those of the Pi 5, and the firmware starts no module whose
// tree it does not find. One that a later kernel brings is left as it is.
func (j *job) modules5() error {
	from, err := readTree(filepath.Join(j.slot, card.Pi5))
	if err != nil {
		return err
	}
	for name, lite := range card.Modules5 {
		to := filepath.Join(j.slot, name)
		if exists(to) {
			continue
		}
		n, err := module5(from, lite)
		if err != nil {
			return fmt.Errorf("%s cannot be made of %s: %w", name, card.Pi5, err)
		}
		if err := put(to, string(n.Encode()), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// module5 is the tree of a Compute Module 5, made of the Raspberry Pi 5's. What is
// not named here is the same on both. The facts are from the trees of the Raspberry
// Pi's own kernel (bcm2712-rpi-cm5.dtsi, and bcm2712-rpi-cm5l.dtsi for the Lite; below
// "its tree") where nothing else is said; labels are Debian's, which are nearly the
// same. Nobody here had a module: see docs/image.md.
func module5(pi5 *tree.Node, lite bool) (*tree.Node, error) {
	e := &edit{root: pi5.Clone()}
	// Wi-Fi's firmware has a file of settings for each board, by the first of these words.
	e.root.Set(tree.Strings("compatible", card.Module5, "brcm,bcm2712"))
	model := "Raspberry Pi Compute Module 5"
	if lite {
		model += " Lite"
	}
	e.root.Set(tree.Strings("model", model))

	// No line says that a card is there (raspberrypi/linux, pull request 6744); the
	// Pi 5's leads to an antenna here.
	e.drop("sdio1", "cd-gpios")
	e.set("sdio1", tree.Cells("pinctrl-0", e.node("emmc_sd_default").Handle()))
	if lite {
		// A slot of the carrier. All else of it is as on the Pi 5; its tree has eight lines
		// of data, of which a card has four.
		e.set("sdio1", tree.Flag("broken-cd"))
	} else {
		e.chip()
	}

	// The Ethernet chip is the same, BCM54213PE with its reset at pin 32 of RP1. It has
	// been seen at address 0 (pull request 6942; its tree says so since), and at 1, as
	// its tree said before. Without an address the kernel looks for it at each of them.
	e.drop("phy1", "reg")

	// Two lines choose the antenna: on the module, and off the plug of another one. Set
	// as in its tree, where Wi-Fi's device asks for the pins.
	antenna := e.root.NextHandle()
	e.add("pinctrl_aon", &tree.Node{Name: "ant-default-state", Props: []tree.Prop{
		tree.Strings("function", "gpio"), tree.Strings("pins", "aon_gpio5", "aon_gpio6"), tree.Cells("phandle", antenna)}})
	e.set("sdio2", tree.Cells("pinctrl-0", append(e.node("sdio2").Words("pinctrl-0"), antenna)...))
	e.add("gio_aon", line("ant1", 5, "output-high"))
	e.add("gio_aon", line("ant2", 6, "output-low"))
	return e.root, e.err
}

// chip is what differs where a chip is soldered on (eMMC) instead of a slot.
func (e *edit) chip() {
	// Its tree has broken-cd: then the kernel asks for a card each second, for ever, where
	// none answers (siderolabs/sbc-raspberrypi, issue 92). A chip stays.
	e.set("sdio1", tree.Flag("non-removable"))
	// Eight lines of data, pulled up like the four.
	e.set("sdio1", tree.Cells("bus-width", 8))
	e.set("emmc_sd_default", tree.Strings("pins", "emmc_cmd", "emmc_dat0", "emmc_dat1", "emmc_dat2", "emmc_dat3", "emmc_dat4", "emmc_dat5", "emmc_dat6", "emmc_dat7"))
	// Signals of 1.8 V only, nothing switches them.
	e.drop("sd_io_1v8_reg", "gpios", "states", "regulator-settling-time-us")
	e.set("sd_io_1v8_reg", tree.Strings("compatible", "regulator-fixed"))
	e.set("sd_io_1v8_reg", tree.Cells("regulator-max-microvolt", 1_800_000))
	// 200 MB/s. Its tree has twice that, with a strobe: the driver of Debian's kernel
	// (sdhci-brcmstb) knows none on this chip, nor how to come down from one speed to the other.
	e.set("sdio1", tree.Flag("mmc-hs200-1_8v"))
}

// line is a pin that stays as it is set.
func line(name string, pin uint32, level string) *tree.Node {
	return &tree.Node{Name: name + "-hog", Props: []tree.Prop{
		tree.Flag("gpio-hog"), tree.Cells("gpios", pin, 0), tree.Flag(level), tree.Strings("line-name", name)}}
}

// edit changes a tree. Whatever it does not find where it looks is an error: then
// the kernel's tree is another than the one that this file was written for.
type edit struct {
	root *tree.Node
	err  error
}

func (e *edit) fail(format string, args ...any) {
	e.err = errors.Join(e.err, fmt.Errorf(format+"; compare image/device/build/cm5.go with this kernel's tree", args...))
}

// node is the one of a label.
func (e *edit) node(label string) *tree.Node {
	n := e.root.Labelled(label)
	if n == nil {
		e.fail("there is no node %s", label)
		return &tree.Node{}
	}
	return n
}

func (e *edit) set(label string, p tree.Prop) { e.node(label).Set(p) }

func (e *edit) drop(label string, names ...string) {
	n := e.node(label)
	for _, name := range names {
		if !n.Drop(name) {
			e.fail("%s has no %s", label, name)
		}
	}
}

func (e *edit) add(label string, n *tree.Node) {
	at := e.node(label)
	at.Nodes = append(at.Nodes, n)
}
