package layout

// BootFile is a file of the boot partition that the firmware reads before it knows of slots. An upgrade leaves it as it
// is: FAT has no order of writes in which a power cut leaves the old or the new.
type BootFile struct {
	Boot string // below BootDir
	Root string // in a slot's root, the newest
}

// UEFI starts the shim, and the shim starts the loader, by this name alone. There is no fbx64.efi beside it: the shim
// would start that instead.
const (
	Shim = "EFI/BOOT/BOOTX64.EFI"
	UEFI = "EFI/BOOT/grubx64.efi"
)

// BootFiles are a PC's with UEFI and a Raspberry Pi's, by GOARCH: what is started comes before what starts it. Of the
// Raspberry Pi's the 3 reads bootcode and start, the 4 start4; the 5 has them in its EEPROM.
var BootFiles = map[string][]BootFile{
	"amd64": {
		{UEFI, "usr/lib/systemd/boot/efi/systemd-bootx64.efi.signed"},
		{Shim, "usr/lib/shim/shimx64.efi.signed"},
	},
	"arm64": {
		{"start.elf", "usr/lib/raspi-firmware/start.elf"},
		{"fixup.dat", "usr/lib/raspi-firmware/fixup.dat"},
		{"start4.elf", "usr/lib/raspi-firmware/start4.elf"},
		{"fixup4.dat", "usr/lib/raspi-firmware/fixup4.dat"},
		{"bootcode.bin", "usr/lib/raspi-firmware/bootcode.bin"},
	},
}
