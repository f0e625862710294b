// Package files carries what a device image has besides Debian's packages and the
// units that every installation has (package systemd): presets, the network's
// defaults, the journal's tail, and what runs in the initrd. It reads and writes
// nothing; the builder copies it.
package files

import "embed"

// Root is laid over the root file system, below root/.
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

// Modules are those that may be needed to reach the disk.
func Modules(arch string) string {
	if arch == "arm64" {
		return modulesARM64
	}
	return modulesAMD64
}
