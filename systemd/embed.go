// Package systemd has the unit with which a device runs Rivulet, and the system's settings for it. It reads and writes
// nothing: package install copies them to their places.
package systemd

import (
	_ "embed"
	"strings"
)

// Unit is rivulet.service.
//
//go:embed rivulet.service
var Unit string

//go:embed dropin/sysctl.conf
var sysctl string

//go:embed dropin/journald.conf
var journald string

//go:embed dropin/watchdog.conf
var watchdog string

// Binary is the program's path in the unit that `rivulet install` writes, PackageBinary that in a package's.
const (
	Binary        = "/usr/local/bin/rivulet"
	PackageBinary = "/usr/bin/rivulet"
)

// Link is a further name of the program, and what its symbolic link says.
type Link struct{ Path, To string }

// Links are the program's further names: kubectl finds the plug-in, and its completion, by the first two, and sudo the
// program by the last where its secure_path lacks /usr/local/bin (RHEL and its like).
var Links = []Link{
	{"/usr/local/bin/kubectl-rivulet", "rivulet"},
	{"/usr/local/bin/kubectl_complete-rivulet", "rivulet"},
	{"/usr/bin/rivulet", "../local/bin/rivulet"},
}

// PackageLinks are the further names that a package has.
var PackageLinks = []Link{
	{"/usr/bin/kubectl-rivulet", "rivulet"},
	{"/usr/bin/kubectl_complete-rivulet", "rivulet"},
}

// UnitName is the unit's name for systemctl.
const UnitName = "rivulet.service"

type File struct{ Path, Content string }

const (
	UnitPath     = "/etc/systemd/system/" + UnitName
	SysctlPath   = "/etc/sysctl.d/90-rivulet.conf"
	JournalPath  = "/etc/systemd/journald.conf.d/90-rivulet.conf"
	WatchdogPath = "/etc/systemd/system.conf.d/90-rivulet.conf"
	// ModulesPath lists the kernel modules that `rivulet doctor --fix` loads at boot.
	ModulesPath = "/etc/modules-load.d/rivulet.conf"
)

// Files are those of an installation, without the binary.
func Files() []File {
	return append([]File{{UnitPath, Unit}, {SysctlPath, sysctl}}, MachineFiles()...)
}

// PackageFiles are those of a package, at a distribution's places: the unit, and the kernel's settings. The limit of the
// journal and the watchdog are for the whole machine, so no package has them: see MachineFiles.
func PackageFiles() []File {
	return []File{
		{distribution(UnitPath), strings.ReplaceAll(Unit, Binary, PackageBinary)},
		{distribution(SysctlPath), sysctl},
	}
}

// distribution returns the place below /usr/lib of a file that an owner has below /etc.
func distribution(path string) string { return strings.Replace(path, "/etc/", "/usr/lib/", 1) }

// MachineFiles are settings of the whole machine. A package's first installation writes them, and no later one: from then
// on they are the owner's.
func MachineFiles() []File {
	return []File{{JournalPath, journald}, {WatchdogPath, watchdog}}
}
