package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"rivulet/appliance/health"
	"rivulet/appliance/machine/host"
)

var limits = Probe{Kind: health.Limits, Title: "kernel limits", Run: probeLimits}

func probeLimits(_ context.Context, e *Env) Result {
	low := host.LowLimits(e.path("/proc/sys"))
	if len(low) == 0 {
		return Passf("inotify: enough for containers")
	}
	var names, set []string
	for _, l := range low {
		names = append(names, fmt.Sprintf("%s is %d", l.Name, l.Have))
		set = append(set, fmt.Sprintf("%s=%d", l.Name, l.Want))
	}
	r := Warnf("sysctl -w "+strings.Join(set, " ")+", or: rivulet doctor --fix",
		"%s: containers may fail with \"too many open files\"", strings.Join(names, ", "))
	r.Fix = &Fix{
		Says: "sets " + strings.Join(set, " ") + " until the next boot (each start of rivulet run does so)",
		Do: func(context.Context) error {
			if left := host.RaiseLimitsAt(e.path("/proc/sys")); len(left) > 0 {
				return errors.New(strings.Join(left, ", ") + " cannot be raised from here; set it on the host of this container")
			}
			return nil
		},
	}
	return r
}
