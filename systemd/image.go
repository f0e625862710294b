package systemd

import (
	"embed"
)

// ImageMark is written only by the initrd of Rivulet's image: that machine is a device, and not a user's machine with
// Rivulet as a service.
const ImageMark = "/run/rivulet-image/slot"

//go:embed image
var imageFiles embed.FS

// imagePaths are the places of the files that only the image has.
var imagePaths = map[string]string{
	"rivulet-firstboot.service": "/usr/lib/systemd/system/rivulet-firstboot.service",
	"rivulet-console@.service":  "/usr/lib/systemd/system/rivulet-console@.service",
	"reboot.conf":               "/usr/lib/systemd/system/rivulet.service.d/reboot.conf",
	"ssh.conf":                  "/usr/lib/systemd/system/ssh.service.d/rivulet.conf",
	"sshd.conf":                 "/etc/ssh/sshd_config.d/10-rivulet.conf",
	"rivulet.preset":            "/usr/lib/systemd/system-preset/10-rivulet.preset",
}

// ImageFiles are those of a device image, without the binary: the unit and the settings of an installation, at a
// distribution's places, and the files that only a device needs.
func ImageFiles() (out []File) {
	for _, f := range Files() {
		f.Path = distribution(f.Path)
		out = append(out, f)
	}
	for name, path := range imagePaths {
		raw, err := imageFiles.ReadFile("image/" + name)
		if err != nil {
			panic(err) // it is embedded
		}
		out = append(out, File{path, string(raw)})
	}
	return out
}
