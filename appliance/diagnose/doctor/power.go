package doctor

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"rivulet/appliance/health"
)

var (
	power       = Probe{Kind: health.Power, Title: "power supply", Every: often, Run: probePower}
	temperature = Probe{Kind: health.Temperature, Title: "temperature", Every: often, Run: probeTemperature}
)

const powerCure = "use the board's own power supply and a short, thick cable; take USB devices off. Low voltage damages the card's contents"

// probePower reads a Raspberry Pi's state: from the kernel's sensor, and from the firmware, which also has the history
// since the boot.
func probePower(ctx context.Context, e *Env) Result {
	asked := false
	for _, f := range e.glob("/sys/class/hwmon/hwmon*/name") {
		if e.read(f) != "rpi_volt" {
			continue
		}
		asked = true
		if e.read(filepath.Dir(f)+"/in0_lcrit_alarm") == "1" {
			return Failf(powerCure, "the voltage is too low, or was since it was last asked")
		}
	}
	if flags, ok := throttled(ctx, e); ok {
		asked = true
		switch {
		case flags&(1<<0) != 0:
			return Failf(powerCure, "the voltage is too low now (firmware: %#x)", flags)
		case flags&(1<<16) != 0:
			return Warnf(powerCure, "the voltage was too low since the boot (firmware: %#x)", flags)
		}
	}
	if !asked {
		return Skipf("this board does not tell")
	}
	return Passf("no low voltage")
}

// throttled is the firmware's value: low bits hold now, those from bit 16 on since the boot.
func throttled(ctx context.Context, e *Env) (uint64, bool) {
	text := e.read("/sys/devices/platform/soc/soc:firmware/get_throttled")
	if text == "" && e.exists("/proc/device-tree/model") {
		out, err := e.Exec(ctx, "vcgencmd", "get_throttled")
		if err != nil {
			return 0, false
		}
		_, text, _ = strings.Cut(strings.TrimSpace(out), "=")
	} else if text != "" && !strings.HasPrefix(text, "0x") {
		text = "0x" + text
	}
	n, err := strconv.ParseUint(text, 0, 64)
	return n, err == nil
}

// A Raspberry Pi throttles at 80 °C and more at 85 °C; other machines have their own critical point.
const (
	warm        = 80
	hot         = 85
	nearTrip    = 10
	coolingCure = "give it a heat sink or a fan, and air"
)

func probeTemperature(_ context.Context, e *Env) Result {
	worst, top, found := Result{Status: Pass}, -273, false
	for _, zone := range e.glob("/sys/class/thermal/thermal_zone*") {
		milli, err := strconv.Atoi(e.read(zone + "/temp"))
		if err != nil {
			continue
		}
		found = true
		c := milli / 1000
		if c > top {
			top = c
		}
		slow, stop := warm, hot
		if trip := e.criticalTrip(zone); trip > 0 && !strings.HasPrefix(e.read("/proc/device-tree/model"), "Raspberry") {
			slow, stop = trip-nearTrip, trip
		}
		where := fmt.Sprintf("%s (%s)", e.read(zone+"/type"), filepath.Base(zone))
		switch {
		case c >= stop:
			return Failf(coolingCure, "%s is at %d °C, its limit is %d", where, c, stop)
		case c >= slow:
			worst = Warnf(coolingCure, "%s is at %d °C, near its limit: the board slows down", where, c)
		}
	}
	switch {
	case !found:
		return Skipf("this board does not tell")
	case worst.Status != Pass:
		return worst
	}
	return Passf("%d °C", top)
}

// criticalTrip is the temperature at which the zone's driver switches off, 0 if there is none.
func (e *Env) criticalTrip(zone string) int {
	for _, f := range e.glob(zone + "/trip_point_*_type") {
		if e.read(f) == "critical" {
			milli, _ := strconv.Atoi(e.read(strings.TrimSuffix(f, "_type") + "_temp"))
			return milli / 1000
		}
	}
	return 0
}
