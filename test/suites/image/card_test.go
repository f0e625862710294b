package image

import (
	"path/filepath"
	"testing"

	"rivulet/image/device/card"
)

// The image for the Raspberry Pi, file by file, as the firmware will read it. The same
// check on an image made of a few bytes is in image/device/build, in every run.
func TestCardForTheRaspberryPi(t *testing.T) {
	packed := image(t, "RIVULET_IMAGE_ARM64")
	raw := filepath.Join(t.TempDir(), "disk.img")
	tool(t, "zstd", "-q", "-d", "--sparse", packed, "-o", raw)
	files, found, err := card.Image(raw)
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range found {
		t.Error(problem)
	}
	for _, name := range []string{"a/kernel8.img", "a/initrd", "start4.elf", "a/overlays/bcm2712d0.dtbo"} {
		t.Logf("%s: %d bytes", name, len(files[name]))
	}
}
