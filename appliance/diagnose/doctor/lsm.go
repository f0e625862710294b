package doctor

import (
	"context"

	"rivulet/appliance/health"
	"rivulet/systemd"
)

var lsm = Probe{Kind: health.LSM, Title: "SELinux, AppArmor", Run: probeLSM}

func probeLSM(ctx context.Context, e *Env) Result {
	if e.read("/sys/fs/selinux/enforce") == "1" {
		program := systemd.PackageBinary
		if _, ok := e.changed(systemd.Binary); ok {
			program = systemd.Binary
		}
		return Warnf("restorecon -v "+program+"; where something else is denied (ausearch -m avc -ts boot), allow that: "+
			"ausearch -m avc -ts boot | audit2allow -M rivulet-local && semodule -i rivulet-local.pp",
			"SELinux is enforcing; Rivulet brings no policy for it, containers run unconfined by it")
	}
	if e.read("/sys/module/apparmor/parameters/enabled") == "Y" {
		if _, err := e.Exec(ctx, "apparmor_parser", "--version"); err != nil {
			return Passf("AppArmor is on; containers run without a profile, as apparmor_parser is not installed")
		}
		return Passf("AppArmor is on; containers get its default profile")
	}
	return Passf("neither is in the way")
}
