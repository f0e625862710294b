package main

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"rivulet/image/device/card"
	"rivulet/image/device/layout"
	"rivulet/image/device/tree"
)

// elfHeader is the beginning of a program for a processor.
func elfHeader(class byte, machine uint16) string {
	h := make([]byte, 64)
	copy(h, []byte{0x7f, 'E', 'L', 'F', class, 1, 1})
	binary.LittleEndian.PutUint16(h[16:], 2)
	binary.LittleEndian.PutUint16(h[18:], machine)
	binary.LittleEndian.PutUint32(h[20:], 1)
	binary.LittleEndian.PutUint16(h[52:], 64)
	return string(h)
}

// labelled is the node of a label, by which the sources of a tree and its overlays name it.
func labelled(n *tree.Node, label string) *tree.Node {
	return n.At(n.At("/__symbols__").Text(label))
}

// setProp gives a node a property, in place of one of that name.
func setProp(n *tree.Node, p tree.Prop) {
	n.Props = append(slices.DeleteFunc(n.Props, func(old tree.Prop) bool { return old.Name == p.Name }), p)
}

func flagOf(name string) tree.Prop { return tree.Prop{Name: name, Value: []byte{}} }

func cellsOf(name string, words ...uint32) tree.Prop {
	p := flagOf(name)
	for _, w := range words {
		p.Value = binary.BigEndian.AppendUint32(p.Value, w)
	}
	return p
}

func stringsOf(name string, words ...string) tree.Prop {
	return tree.Prop{Name: name, Value: []byte(strings.Join(words, "\x00") + "\x00")}
}

// board is a tree as small as one can be.
func board(compatible string) string {
	return string((&tree.Node{Props: []tree.Prop{stringsOf("compatible", compatible)}}).Encode())
}

// pi5 is a tree of the shape of Debian's for the Raspberry Pi 5: the nodes that a
// Compute Module 5 has otherwise, one that it has alike, and the labels. The newer
// chip has other pins.
func pi5(chip string) *tree.Node {
	with := func(n *tree.Node, nodes ...*tree.Node) *tree.Node { n.Nodes = nodes; return n }
	node := func(name string, handle uint32, props ...tree.Prop) *tree.Node {
		return &tree.Node{Name: name, Props: append(props, cellsOf("phandle", handle))}
	}
	pins := stringsOf("pins", "emmc_cmd", "emmc_dat0")
	root := with(&tree.Node{Props: []tree.Prop{stringsOf("compatible", "raspberrypi,5-model-b", "brcm,bcm2712"), stringsOf("model", "Raspberry Pi 5")}},
		with(node("soc", 1),
			node("mmc@fff000", 2, stringsOf("compatible", "brcm,bcm2712-sdhci"), cellsOf("pinctrl-0", 8, 9), cellsOf("vqmmc-supply", 10), cellsOf("bus-width", 4), cellsOf("cd-gpios", 12, 5, 1)),
			node("mmc@1100000", 3, stringsOf("compatible", "brcm,bcm2712-sdhci"), cellsOf("pinctrl-0", 20), flagOf("non-removable")),
			with(node("pinctrl@7d504100", 4, stringsOf("compatible", "brcm,bcm2712"+chip+"-pinctrl")), node("emmc-sd-default-state", 8, pins, flagOf("bias-pull-up")), node("sdio2-30-default-state", 20)),
			with(node("pinctrl@7d510700", 5, stringsOf("compatible", "brcm,bcm2712"+chip+"-aon-pinctrl")), node("emmc-aon-cd-default-state", 9)),
			node("gpio@7d517c00", 12, stringsOf("compatible", "brcm,bcm7445-gpio", "brcm,brcmstb-gpio"), flagOf("gpio-controller")),
			with(node("ethernet@40100000", 6, cellsOf("phy-handle", 40)), with(&tree.Node{Name: "mdio"}, node("ethernet-phy@1", 40, cellsOf("reg", 1)))),
		),
		node("sd-io-1v8-reg", 10, stringsOf("compatible", "regulator-gpio"), cellsOf("regulator-min-microvolt", 1_800_000), cellsOf("regulator-max-microvolt", 3_300_000),
			cellsOf("regulator-settling-time-us", 5000), cellsOf("gpios", 12, 3, 0), cellsOf("states", 1_800_000, 1, 3_300_000, 0)),
	)
	labels := &tree.Node{Name: "__symbols__"}
	for _, l := range [][2]string{
		{"sdio1", "/soc/mmc@fff000"}, {"sdio2", "/soc/mmc@1100000"}, {"pinctrl", "/soc/pinctrl@7d504100"}, {"emmc_sd_default", "/soc/pinctrl@7d504100/emmc-sd-default-state"},
		{"pinctrl_aon", "/soc/pinctrl@7d510700"}, {"gio_aon", "/soc/gpio@7d517c00"}, {"rp1_eth", "/soc/ethernet@40100000"},
		{"phy1", "/soc/ethernet@40100000/mdio/ethernet-phy@1"}, {"sd_io_1v8_reg", "/sd-io-1v8-reg"},
	} {
		setProp(labels, stringsOf(l[0], l[1]))
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

// smallPi are a few bytes in place of each file that the firmware reads.
func smallPi(t *testing.T, content map[string]string) {
	t.Helper()
	const trees = "root/usr/lib/modules/6.1/dtb/broadcom/"
	for name, compatible := range map[string]string{
		"bcm2837-rpi-3-b": "3-model-b", "bcm2837-rpi-3-b-plus": "3-model-b-plus", "bcm2837-rpi-3-a-plus": "3-model-a-plus", "bcm2837-rpi-cm3-io3": "3-compute-module",
		"bcm2711-rpi-4-b": "4-model-b", "bcm2711-rpi-400": "400", "bcm2711-rpi-cm4-io": "4-compute-module",
	} {
		content[trees+name+".dtb"] = board("raspberrypi," + compatible)
	}
	content[trees+card.Pi5] = string(pi5("c0").Encode())
	content[trees+card.NewerPi5] = string(pi5("d0").Encode())
	for _, f := range layout.BootFiles["arm64"] {
		content["root/"+f.Root] = elfHeader(1, 137) + strings.Repeat(f.Boot, 200)
	}
	kernel := make([]byte, 4096)
	copy(kernel[56:], "ARM\x64")
	binary.LittleEndian.PutUint64(kernel[16:], 8192) // what it needs
	binary.LittleEndian.PutUint64(kernel[24:], 1<<1) // pages of 4 kB
	content["vmlinuz"] = string(kernel)

	dir := t.TempDir()
	const modules = "usr/lib/modules/6.1/modules."
	for name, text := range map[string]string{"init": "#!/bin/sh\n", "bin/busybox": elfHeader(2, 183),
		modules + "alias":           "# Aliases\nalias of:N*T*Cbrcm,bcm2712-sdhciC* sdhci_brcmstb\nalias of:N*T*Cregulator-fixed fixed\nalias of:N*T*Cregulator-gpio gpio_regulator\nalias of:N*T*Cbrcm,brcmstb-gpio gpio_brcmstb\n",
		modules + "builtin.modinfo": "pin.alias=of:N*T*Cbrcm,bcm2712c0-pinctrl\x00pin.alias=of:N*T*Cbrcm,bcm2712d0-pinctrlC*\x00pin.alias=of:N*T*Cbrcm,bcm2712c0-aon-pinctrl\x00pin.license=GPL\x00",
	} {
		if err := put(filepath.Join(dir, name), text, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	var packed bytes.Buffer
	z, err := zstd.NewWriter(&packed)
	if err != nil {
		t.Fatal(err)
	}
	if err := writeCPIO(z, dir, time.Unix(0, 0), 4); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	content["slot/initrd"] = packed.String()
}

// What the Raspberry Pi's chip reads before any kernel does: nothing is missing, and
// whatever is taken away, torn or set otherwise is noticed.
func TestBootPartitionOfARaspberryPi(t *testing.T) {
	j := small(t, "arm64")
	if err := j.check(); err != nil {
		t.Fatal(err)
	}
	files, found, err := card.Image(j.rawImage())
	if err != nil || len(found) > 0 {
		t.Fatalf("%v, %v", err, found)
	}
	optional := []string{"rivulet.yaml.example", "a/" + layout.Good}
	for name := range files {
		if slices.Contains(optional, name) {
			continue
		}
		for what, change := range map[string]func([]byte) []byte{
			"without": nil, "torn": func(b []byte) []byte { return b[:len(b)/2] },
		} {
			if what == "torn" && (slices.Contains([]string{"a/overlays/README", "bootcode.bin", "fixup.dat", "fixup4.dat", "start.elf", "start4.elf"}, name)) {
				continue // of these no more is known than what they begin with
			}
			if got := card.Check(with(files, name, change)); !strings.Contains(strings.Join(got, "\n"), strings.TrimPrefix(name, "a/")) {
				t.Errorf("%s %s: %q", what, name, got)
			}
		}
	}
	replaced := func(old, new string) func([]byte) []byte {
		return func(b []byte) []byte {
			if !bytes.Contains(b, []byte(old)) {
				t.Errorf("there is no %q", old)
			}
			return bytes.Replace(b, []byte(old), []byte(new), 1)
		}
	}
	for _, c := range []struct {
		file, says string
		change     func([]byte) []byte
	}{
		{"config.txt", `"gpu_mem=16" is not known`, replaced("\nkernel=", "\ngpu_mem=16\nkernel=")},
		{"config.txt", `"[pi4]" is not known`, replaced("\nkernel=", "\n[pi4]\nkernel=")},
		{"config.txt", "names that Debian's kernel does not have", replaced("upstream_kernel=1", "upstream_kernel=0")},
		{"config.txt", "a/overlays/vc4.dtbo is not there", replaced("\nkernel=", "\ndtoverlay=vc4,x\nkernel=")},
		{"config.txt", "names no initramfs", replaced("initramfs initrd followkernel\n", "")},
		{"config.txt", "reads 98 characters", replaced("# Rivulet", "# "+strings.Repeat("Rivulet ", 12))},
		{"slot.cfg", "b/kernel8.img", replaced("os_prefix=a", "os_prefix=b")},
		{"config.txt", "the firmware takes \"\", the slot is a", replaced("include slot.cfg\n", "")},
		{"slot.cfg", "\"DEFAULT a   \" is not known", replaced("os_prefix=a/", "DEFAULT a   ")},
		{"a/cmdline.txt", "lacks cgroup_enable=memory", replaced("cgroup_enable=memory", "cgroup_enable=cpu")},
		{"a/cmdline.txt", "root=/dev/mmcblk0p2", replaced("quiet", "root=/dev/mmcblk0p2")},
		{"a/cmdline.txt", "one line", replaced("quiet", "quiet\n")},
		{"a/kernel8.img", "no Image of a kernel", func([]byte) []byte { return []byte("MZ\x00\x00zimg" + strings.Repeat("\x00", 100)) }},
		{"a/bcm2712-rpi-5-b.dtb", "no driver for sd-io-1v8-reg (regulator-other)", changed(t, func(n *tree.Node) { setProp(labelled(n, "sd_io_1v8_reg"), stringsOf("compatible", "regulator-other")) })},
		{"a/bcm2712-d-rpi-5-b.dtb", "no driver for gpio@7d517c00 (another)", changed(t, func(n *tree.Node) { setProp(labelled(n, "gio_aon"), stringsOf("compatible", "another")) })},
		{"a/bcm2711-rpi-4-b.dtb", "is for \"raspberrypi,5\"", func([]byte) []byte { return []byte(board("raspberrypi,5")) }},
		{"a/overlays/bcm2712d0.dtbo", "does not make", func([]byte) []byte { return (&tree.Node{}).Encode() }},
		{"start4.elf", "is no firmware", func(b []byte) []byte { return append([]byte(elfHeader(1, 183)), b[64:]...) }},
		{"rivulet.yaml", "every device would read the same", func([]byte) []byte { return []byte("name: x\n") }},
		{"b/linux", "with the second slot", func([]byte) []byte { return make([]byte, layout.BootSize/2) }},
	} {
		got := card.Check(with(files, c.file, c.change))
		if !strings.Contains(strings.Join(got, "\n"), c.says) {
			t.Errorf("%s: %q, want %q", c.file, got, c.says)
		}
	}
	// The table is on the disk alone.
	f, err := os.OpenFile(j.rawImage(), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte{0xee}, 446+4); err != nil { // the first partition's type
		t.Fatal(err)
	}
	if err := j.check(); err == nil || !strings.Contains(err.Error(), "partition 1: type ee") || !strings.Contains(err.Error(), "no Raspberry Pi would start it") {
		t.Errorf("another partition table: %v", err)
	}
}

// with is the files with one of them changed, or without it.
func with(files card.Files, name string, change func([]byte) []byte) card.Files {
	all := card.Files{}
	for n, raw := range files {
		all[n] = raw
	}
	delete(all, name)
	if change != nil {
		all[name] = change(slices.Clone(files[name]))
	}
	return all
}
