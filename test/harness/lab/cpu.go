package lab

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// cpuPeriod is over what time a device's share is counted, in microseconds: short, because a processor that stops for
// most of a tenth of a second is not like a slower one.
const cpuPeriod = 20_000

// leastCPUs is a device's smallest share: the kernel wants a millisecond of each period.
const leastCPUs = 1000.0 / cpuPeriod

// SetCPUs gives every device so many of the host's cores, all that runs on it together, from now on and after the next
// power cut; 0: all of them. Devices see the number of cores that the host has, as any container does.
func (l *Lab) SetCPUs(cpus float64) error {
	if err := validCPUs(cpus); err != nil {
		return err
	}
	hs, err := hostHierarchies()
	if err != nil {
		return err
	}
	return l.locked(func(s *state) error {
		s.CPUs = cpus
		if err := s.save(l.dir); err != nil {
			return err
		}
		for _, d := range s.Devices {
			if d.Init == (Proc{}) {
				continue // off: boot does it
			}
			if err := limitCPU(hs, s.ID, d.Name, cpus); err != nil {
				return err
			}
		}
		return nil
	})
}

func validCPUs(cpus float64) error {
	if cpus != 0 && !(cpus >= leastCPUs) || math.IsInf(cpus, 0) {
		return fmt.Errorf("lab: %v cores for a device: choose %v or more, or 0 for all of the host's", cpus, leastCPUs)
	}
	return nil
}

// limitCPU bounds what all processes of a device may take in each period. The host must have the cpu controller with
// bandwidth control.
func limitCPU(hs []hierarchy, id, name string, cpus float64) error {
	for _, h := range hs {
		dir := filepath.Join(h.Mount, cgroupName(id), name)
		var err error
		switch {
		case h.V2 && pure(hs):
			err = os.WriteFile(filepath.Join(dir, "cpu.max"), []byte(cpuMax(cpus)), 0)
		case !h.V2 && slices.Contains(strings.Split(h.Opts, ","), "cpu"):
			quota, _, _ := strings.Cut(cpuMax(cpus), " ")
			if quota == "max" {
				quota = "-1"
			}
			err = os.WriteFile(filepath.Join(dir, "cpu.cfs_period_us"), []byte(strconv.Itoa(cpuPeriod)), 0)
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, "cpu.cfs_quota_us"), []byte(quota), 0)
			}
		default:
			continue
		}
		if err != nil {
			return fmt.Errorf("lab: hold %s to %v cores: %w: a pod on it may have a larger limit; remove it, or boot a kernel with CONFIG_CFS_BANDWIDTH", name, cpus, err)
		}
		return nil
	}
	return errors.New("lab: this host has no cpu cgroup, so a device cannot be slow; mount one under /sys/fs/cgroup")
}

// cpuMax is the bound as cgroup v2 writes it.
func cpuMax(cpus float64) string {
	if cpus == 0 {
		return fmt.Sprintf("max %d", cpuPeriod)
	}
	return fmt.Sprintf("%d %d", int(math.Round(cpus*cpuPeriod)), cpuPeriod)
}
