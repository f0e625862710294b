package lab

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// slow holds the devices to a tenth of a core: one that wants more is stopped, again and again.
func slow(s story) {
	for _, wrong := range []float64{-1, 0.001, math.NaN(), math.Inf(1)} {
		if err := s.lab.SetCPUs(wrong); err == nil {
			s.Errorf("%v cores are taken", wrong)
		}
	}
	if err := s.lab.SetCPUs(0.1); err != nil {
		s.Fatal(err)
	}
	busy, err := s.a.Command(s.ctx, "timeout", "30", "sh", "-c", "while :; do :; done")
	if err == nil {
		err = busy.Start()
	}
	if err != nil {
		s.Fatal(err)
	}
	defer func() { busy.Process.Kill(); busy.Wait() }()
	before := s.stopped("a")
	s.eventually("a busy device is stopped", func() bool { return s.stopped("a") >= before+10 })
}

// stillSlow: the bound outlives the power cut, and can be lifted.
func stillSlow(s story) {
	if quota := s.cpu("a", "cpu.max", "cpu.cfs_quota_us"); !strings.HasPrefix(quota, "2000") {
		s.Errorf("after a power cut: %q", quota)
	}
	if err := s.lab.SetCPUs(0); err != nil {
		s.Fatal(err)
	}
	if quota := s.cpu("a", "cpu.max", "cpu.cfs_quota_us"); !strings.HasPrefix(quota, "max") && !strings.HasPrefix(quota, "-1") {
		s.Errorf("lifted: %q", quota)
	}
}

// stopped is in how many periods the device had used up its share.
func (s story) stopped(device string) (n int) {
	for line := range strings.Lines(s.cpu(device, "cpu.stat", "cpu.stat")) {
		fmt.Sscanf(line, "nr_throttled %d", &n)
	}
	return n
}

// cpu reads a file of the device's cpu cgroup, as v2 or v1 calls it.
func (s story) cpu(device, v2, v1 string) string {
	hs, err := hostHierarchies()
	if err != nil {
		s.Fatal(err)
	}
	state, err := loadState(s.lab.dir)
	if err != nil {
		s.Fatal(err)
	}
	for _, h := range hs {
		name := v1
		if pure(hs) {
			name = v2
		} else if h.V2 || !slices.Contains(strings.Split(h.Opts, ","), "cpu") {
			continue
		}
		raw, err := os.ReadFile(filepath.Join(h.Mount, cgroupName(state.ID), device, name))
		if err != nil {
			s.Fatal(err)
		}
		return string(raw)
	}
	s.Fatal("no cpu cgroup")
	return ""
}
