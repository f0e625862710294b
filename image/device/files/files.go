// Package files has the files of a device image that are neither in Debian's packages nor units of every installation
// (package systemd): presets, the network's defaults, the journal's limits, and the programs of the initrd. It reads
// and writes nothing; the builder copies them.
package files

import "embed"

// Root is copied over the root file system, below root/.
//
//go:embed all:root
var Root embed.FS

// Init is the program of the initrd.
//
//go:embed initrd/init
var Init string

// Modules of the initrd, one name in a line, for each architecture.
var (
	//go:embed initrd/modules-amd64
	modulesAMD64 string
	//go:embed initrd/modules-arm64
	modulesARM64 string
)

// Modules are those that may be needed to read the disk.
func Modules(arch string) string {
	if arch == "arm64" {
		return modulesARM64
	}
	return modulesAMD64
}
