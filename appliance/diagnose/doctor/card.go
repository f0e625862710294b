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
	cardLife = Probe{Kind: health.CardLife, Title: "life of the card or eMMC", Every: rarely, Run: probeCardLife}
	swap     = Probe{Kind: health.Swap, Title: "swap", Every: rarely, Run: probeSwap}
)

// probeCardLife reads the wear of eMMC (JEDEC, from version 5.0) and a few SD cards: life_time in tenths for two kinds
// of cells, 0x0B being past the end, and pre_eol_info: 2 when 80 %, 3 when 90 % of the spare blocks are used up.
func probeCardLife(_ context.Context, e *Env) Result {
	cards := e.glob("/sys/block/mmcblk*/device")
	if len(cards) == 0 {
		return Skipf("there is no card or eMMC")
	}
	const cure = "copy it to a new one, and soon: rivulet backup FILE"
	var good, silent []string
	worst := Result{Status: Pass}
	for _, dir := range cards {
		name := filepath.Base(filepath.Dir(dir))
		used := 0
		for _, f := range strings.Fields(e.read(dir + "/life_time")) {
			if n, err := strconv.ParseUint(f, 0, 8); err == nil {
				used = max(used, int(n))
			}
		}
		spare, _ := strconv.ParseUint(e.read(dir+"/pre_eol_info"), 0, 8)
		switch {
		case used >= 0x0b || spare == 3:
			return Failf(cure, "%s has reached its promised life (life_time %#x, pre_eol_info %d)", name, used, spare)
		case used >= 0x09 || spare == 2:
			worst = Warnf(cure, "%s has used up %d %% or more of its promised life (pre_eol_info %d)", name, (used-1)*10, spare)
		case used == 0:
			silent = append(silent, name)
		default:
			good = append(good, fmt.Sprintf("%s: %d to %d %% used", name, (used-1)*10, used*10))
		}
	}
	switch {
	case worst.Status != Pass:
		return worst
	case len(good) > 0:
		return Passf("%s", strings.Join(good, ", "))
	}
	return Skipf("%s does not tell, as most SD cards", strings.Join(silent, ", "))
}

// probeSwap warns of swap on flash, which wears out; swap in memory (zram) is good.
func probeSwap(_ context.Context, e *Env) Result {
	lines := strings.Split(e.read("/proc/swaps"), "\n")
	if len(lines) < 2 {
		return Passf("none")
	}
	var names []string
	for _, line := range lines[1:] {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		device := f[0]
		if f[1] == "file" {
			m, _ := e.mountOf(f[0])
			device = m.device
		}
		if strings.Contains(device, "mmcblk") {
			return Warnf("switch it off: systemctl disable --now dphys-swapfile (or swapoff "+f[0]+" and its line in /etc/fstab); zram is kind to the card",
				"%s is on a card: swapping wears it out, and stalls the device when memory is short", f[0])
		}
		names = append(names, f[0])
	}
	return Passf("%s", strings.Join(names, ", "))
}
