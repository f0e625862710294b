package lab

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// Fingerprint lists what a test may have left on the device outside of its cluster, a line each, sorted: its configuration,
// what listens on fixed ports, mounts but those of pods, chains of nftables but those of Services, with the number of
// their rules, and cables that are out or cut. A device that is off has one line.
func (d *Device) Fingerprint() ([]string, error) {
	s, err := loadState(d.lab.dir)
	if err != nil {
		return nil, err
	}
	ds := s.device(d.Name)
	if ds == nil {
		return nil, fmt.Errorf("lab: there is no device %q", d.Name)
	}
	var lines []string
	for _, n := range ds.nics() {
		if n.Unplugged {
			lines = append(lines, "the cable of "+n.Name+" is out")
		}
	}
	for _, c := range s.Cuts {
		if slices.Contains(c[:], d.Name) {
			lines = append(lines, fmt.Sprintf("%s and %s are cut", c[0], c[1]))
		}
	}
	if !ds.Init.Alive() {
		return append(lines, "it is off"), nil
	}
	proc := fmt.Sprintf("/proc/%d/", ds.Init.PID)
	for _, f := range []func(string) ([]string, error){configLines, listenLines, mountLines} {
		more, err := f(proc)
		if err != nil {
			return nil, fmt.Errorf("lab: %s: %w", d.Name, err)
		}
		lines = append(lines, more...)
	}
	rules, err := ruleLines(ds.Init)
	if err != nil {
		return nil, err
	}
	lines = append(lines, rules...)
	slices.Sort(lines)
	return slices.Compact(lines), nil
}

func configLines(proc string) ([]string, error) {
	raw, err := os.ReadFile(proc + "root/etc/rivulet/config.yaml")
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(bytes.TrimSpace(raw)) == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return []string{fmt.Sprintf("config.yaml %x", sha256.Sum256(raw))}, nil
}

// firstEphemeral is the port from which the kernel hands them out.
const firstEphemeral = 32768

// listenLines reads /proc/PID/net: address and port in hexadecimal in the second column, the state in the fourth.
func listenLines(proc string) (lines []string, _ error) {
	for file, listens := range map[string]string{"tcp": "0A", "tcp6": "0A", "udp": "07", "udp6": "07"} {
		raw, err := os.ReadFile(proc + "net/" + file)
		if err != nil {
			return nil, err
		}
		for sc := bufio.NewScanner(bytes.NewReader(raw)); sc.Scan(); {
			f := strings.Fields(sc.Text())
			if len(f) < 4 || f[3] != listens {
				continue
			}
			_, hex, _ := strings.Cut(f[1], ":")
			if port, err := strconv.ParseUint(hex, 16, 16); err == nil && port < firstEphemeral {
				lines = append(lines, fmt.Sprintf("listens on %s port %d", file, port))
			}
		}
	}
	return lines, nil
}

// ofPods are mounts that come and go with pods, and with calls of the engine.
var ofPods = regexp.MustCompile(`/kubelet/pods/|/containerd/|/run/netns/|/run/k3s/|/var/lib/kubelet/`)

func mountLines(proc string) (lines []string, _ error) {
	raw, err := os.ReadFile(proc + "mountinfo")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(raw)) {
		if f := strings.Fields(line); len(f) > 4 && !ofPods.MatchString(f[4]) {
			lines = append(lines, "mount "+f[4])
		}
	}
	return lines, nil
}

// ruleLines leaves out handles and counters, and kube-proxy's chains of Services and their endpoints.
func ruleLines(p Proc) (lines []string, _ error) {
	err := inNetns(p, func(_ *netlink.Handle, ns netns.NsHandle) error {
		c, err := nftables.New(nftables.WithNetNSFd(int(ns)))
		if err != nil {
			return err
		}
		chains, err := c.ListChains()
		if err != nil {
			return err
		}
		for _, chain := range chains {
			if strings.HasPrefix(chain.Name, "KUBE-") {
				continue
			}
			rules, err := c.GetRules(chain.Table, chain)
			if err != nil {
				return err
			}
			lines = append(lines, fmt.Sprintf("nft table %d %s, chain %s: %d rules", chain.Table.Family, chain.Table.Name, chain.Name, len(rules)))
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("lab: rules: %w", err)
	}
	return lines, nil
}
