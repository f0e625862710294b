package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"rivulet/image/device/card"
	"rivulet/image/device/tree"
)

// pi5 is a tree of the shape of Debian's for the Raspberry Pi 5: the nodes that a
// Compute Module 5 has otherwise, one that it has alike, and the labels. The newer
// chip has other pins.
func pi5(chip string) *tree.Node {
	with := func(n *tree.Node, nodes ...*tree.Node) *tree.Node { n.Nodes = nodes; return n }
	node := func(name string, handle uint32, props ...tree.Prop) *tree.Node {
		return &tree.Node{Name: name, Props: append(props, tree.Cells("phandle", handle))}
	}
	pins := tree.Strings("pins", "emmc_cmd", "emmc_dat0")
	root := with(&tree.Node{Props: []tree.Prop{tree.Strings("compatible", "raspberrypi,5-model-b", "brcm,bcm2712"), tree.Strings("model", "Raspberry Pi 5")}},
		with(node("soc", 1),
			node("mmc@fff000", 2, tree.Strings("compatible", "brcm,bcm2712-sdhci"), tree.Cells("pinctrl-0", 8, 9), tree.Cells("vqmmc-supply", 10), tree.Cells("bus-width", 4), tree.Cells("cd-gpios", 12, 5, 1)),
			node("mmc@1100000", 3, tree.Strings("compatible", "brcm,bcm2712-sdhci"), tree.Cells("pinctrl-0", 20), tree.Flag("non-removable")),
			with(node("pinctrl@7d504100", 4, tree.Strings("compatible", "brcm,bcm2712"+chip+"-pinctrl")), node("emmc-sd-default-state", 8, pins, tree.Flag("bias-pull-up")), node("sdio2-30-default-state", 20)),
			with(node("pinctrl@7d510700", 5, tree.Strings("compatible", "brcm,bcm2712"+chip+"-aon-pinctrl")), node("emmc-aon-cd-default-state", 9)),
			node("gpio@7d517c00", 12, tree.Strings("compatible", "brcm,bcm7445-gpio", "brcm,brcmstb-gpio"), tree.Flag("gpio-controller")),
			with(node("ethernet@40100000", 6, tree.Cells("phy-handle", 40)), with(&tree.Node{Name: "mdio"}, node("ethernet-phy@1", 40, tree.Cells("reg", 1)))),
		),
		node("sd-io-1v8-reg", 10, tree.Strings("compatible", "regulator-gpio"), tree.Cells("regulator-min-microvolt", 1_800_000), tree.Cells("regulator-max-microvolt", 3_300_000),
			tree.Cells("regulator-settling-time-us", 5000), tree.Cells("gpios", 12, 3, 0), tree.Cells("states", 1_800_000, 1, 3_300_000, 0)),
	)
	labels := &tree.Node{Name: "__symbols__"}
	for _, l := range [][2]string{
		{"sdio1", "/soc/mmc@fff000"}, {"sdio2", "/soc/mmc@1100000"}, {"pinctrl", "/soc/pinctrl@7d504100"}, {"emmc_sd_default", "/soc/pinctrl@7d504100/emmc-sd-default-state"},
		{"pinctrl_aon", "/soc/pinctrl@7d510700"}, {"gio_aon", "/soc/gpio@7d517c00"}, {"rp1_eth", "/soc/ethernet@40100000"},
		{"phy1", "/soc/ethernet@40100000/mdio/ethernet-phy@1"}, {"sd_io_1v8_reg", "/sd-io-1v8-reg"},
	} {
		labels.Set(tree.Strings(l[0], l[1]))
	}
	root.Nodes = append(root.Nodes, labels)
	return root
}

// changed is a file's tree with a change.
func changed(t *testing.T, change func(*tree.Node)) func([]byte) []byte {
	return func(raw []byte) []byte {
		n, err := tree.Decode(raw)
		if err != nil {
			t.Fatal(err)
		}
		change(n)
		return n.Encode()
	}
}

// A Compute Module 5's tree, made of the Pi 5's: what the kernel needs to reach disk
// and network, with the older and the newer chip; the Pi 5's stays as it is.
func TestComputeModule5(t *testing.T) {
	t.Run("small", func(t *testing.T) { computeModule5(t, pi5("c0"), pi5("d0")) })
	t.Run("Debian's", func(t *testing.T) {
		const variable = "RIVULET_TREES"
		dir := os.Getenv(variable)
		if dir == "" {
			t.Skipf("needs %s: the folder of Debian's trees, _build/image/arm64/root/usr/lib/modules/*/dtb/broadcom after make image ARCH=arm64; the builder checks what it makes there, too", variable)
		}
		old, err := readTree(filepath.Join(dir, card.Pi5))
		if err != nil {
			t.Fatal(err)
		}
		newer, err := readTree(filepath.Join(dir, card.NewerPi5))
		if err != nil {
			t.Fatal(err)
		}
		computeModule5(t, old, newer)
	})
}

func computeModule5(t *testing.T, old, newer *tree.Node) {
	before := old.Clone()
	over, err := tree.Overlay(old, newer)
	if err != nil {
		t.Fatal(err)
	}
	for _, lite := range []bool{false, true} {
		made, err := module5(old, lite)
		if err != nil {
			t.Fatal(err)
		}
		n, err := tree.Decode(made.Encode())
		if err != nil || !tree.Same(n, made) {
			t.Fatalf("not what was written: %v", err)
		}
		disk, supply := n.Labelled("sdio1"), n.Labelled("sd_io_1v8_reg")
		if disk.Has("cd-gpios") || disk.Has("non-removable") == lite || disk.Has("broken-cd") != lite || disk.Has("mmc-hs200-1_8v") == lite {
			t.Errorf("lite %v: %v", lite, disk)
		}
		width, kind := uint32(8), "regulator-fixed"
		if lite {
			width, kind = 4, "regulator-gpio"
		}
		if got := disk.Words("bus-width"); !slices.Equal(got, []uint32{width}) || supply.Text("compatible") != kind || supply.Has("gpios") != lite {
			t.Errorf("lite %v: %d lines of data, %s, switched: %v", lite, got, supply.Text("compatible"), supply.Has("gpios"))
		}
		if got := disk.Words("vqmmc-supply"); !slices.Equal(got, []uint32{supply.Handle()}) {
			t.Errorf("lite %v: signals from %v", lite, got)
		}
		// Whatever is spoken of is there, and no number is two nodes'.
		numbered(t, n)
		for _, label := range []string{"sdio1", "sdio2"} {
			for _, h := range n.Labelled(label).Words("pinctrl-0") {
				if n.ByHandle(h) == nil {
					t.Errorf("lite %v: %s asks for the pins %d, which are not there", lite, label, h)
				}
			}
		}
		// The line on which the Pi 5 sees a card leads to an antenna here.
		pins := n.Labelled("pinctrl_aon").At("ant-default-state")
		if asked := n.Labelled("sdio2").Words("pinctrl-0"); pins == nil || !slices.Contains(asked, pins.Handle()) || slices.Contains(disk.Words("pinctrl-0"), pins.Handle()) {
			t.Errorf("lite %v: Wi-Fi asks for the pins %v", lite, asked)
		}
		if phy := n.Labelled("phy1"); phy.Has("reg") || !slices.Equal(n.Labelled("rp1_eth").Words("phy-handle"), []uint32{phy.Handle()}) {
			t.Errorf("lite %v: Ethernet's chip: %v", lite, phy)
		}
		// With the newer chip all of this stays, and the pins are the newer ones.
		storage := disk.Clone()
		if err := n.Apply(over); err != nil {
			t.Fatal(err)
		}
		for _, label := range []string{"pinctrl", "pinctrl_aon"} {
			if got, want := n.Labelled(label).Text("compatible"), newer.Labelled(label).Text("compatible"); got != want || !strings.Contains(got, "d0") {
				t.Errorf("lite %v: %s is %s with the newer chip, not %s", lite, label, got, want)
			}
		}
		if !tree.Same(n.Labelled("sdio1"), storage) || n.Labelled("gio_aon").At("ant1-hog") == nil {
			t.Errorf("lite %v: the newer chip's overlay took something away", lite)
		}
	}
	if !tree.Same(old, before) {
		t.Error("the Pi 5's tree was changed")
	}
}

// numbered checks that each number is that of one node.
func numbered(t *testing.T, root *tree.Node) {
	t.Helper()
	seen := map[uint32]string{}
	var walk func(n *tree.Node)
	walk = func(n *tree.Node) {
		if h := n.Handle(); h != 0 {
			if other, twice := seen[h]; twice {
				t.Errorf("%s and %s have the number %d", other, n.Name, h)
			}
			seen[h] = n.Name
		}
		for _, k := range n.Nodes {
			walk(k)
		}
	}
	walk(root)
}

// A kernel whose tree has changed stops the build; none is made by halves.
func TestComputeModule5OfAnotherTree(t *testing.T) {
	for says, change := range map[string]func(*tree.Node){
		"there is no node phy1":  func(n *tree.Node) { n.At("__symbols__").Drop("phy1") },
		"sdio1 has no cd-gpios":  func(n *tree.Node) { n.Labelled("sdio1").Drop("cd-gpios") },
		"sd_io_1v8_reg has no g": func(n *tree.Node) { n.Labelled("sd_io_1v8_reg").Drop("gpios") },
	} {
		n := pi5("c0")
		change(n)
		if _, err := module5(n, false); err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), "compare image/device/build/cm5.go") {
			t.Errorf("%v, want %s", err, says)
		}
	}
}

// A tree that the kernel brings itself is not made in its place.
func TestComputeModule5OfTheKernel(t *testing.T) {
	j := &job{slot: t.TempDir()}
	for name, text := range map[string]string{card.Pi5: string(pi5("c0").Encode()), "bcm2712-rpi-cm5-cm5io.dtb": "Debian's"} {
		if err := put(filepath.Join(j.slot, name), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := j.modules5(); err != nil {
		t.Fatal(err)
	}
	for name := range card.Modules5 {
		raw, err := os.ReadFile(filepath.Join(j.slot, name))
		if err != nil || (string(raw) == "Debian's") != (name == "bcm2712-rpi-cm5-cm5io.dtb") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
