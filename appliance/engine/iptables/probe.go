package iptables

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"rivulet/appliance/machine/host"
)

// sample has a rule of each kind that kube-proxy and flannel need.
//
//go:embed sample.rules
var sample []byte

// patience bounds one call. On a small board the kernel first loads a module for each kind of rule.
const patience = 20 * time.Second

// version parses `iptables --version`: "iptables v1.8.9 (nf_tables)". Versions before 1.8 have one backend and do not
// name it.
func version(ctx context.Context, program string) (number, backend string, err error) {
	out, err := call(ctx, nil, program, "--version")
	if err != nil {
		return "", "", err
	}
	for _, line := range strings.Split(out, "\n") { // a preloaded library may print errors first
		if f := strings.Fields(line); len(f) >= 2 && strings.HasPrefix(f[1], "v") {
			if len(f) > 2 && f[2] == "(nf_tables)" {
				return f[1][1:], NFT, nil
			}
			return f[1][1:], Legacy, nil
		}
	}
	return "", "", fmt.Errorf("%s --version says %q", program, out)
}

// found are rules of the sample that `iptables -C` has to find. Some versions do not (1.8.2 the first, 1.8.10 the
// second): then programs that check before adding, such as flannel and the kubelet, fill the kernel with copies.
var found = [][]string{
	{"-C", "KUBE-FORWARD", "-m", "comment", "--comment", "two matches", "-m", "mark", "--mark", "0x4000/0x4000", "-j", "ACCEPT"},
	{"-t", "nat", "-C", "PREROUTING", "-m", "comment", "--comment", "two matches", "-m", "addrtype", "--dst-type", "LOCAL", "-j", "KUBE-SERVICES"},
}

// works loads the sample in a network namespace that ends with the call; the host's rules are not changed.
func works(ctx context.Context, iptables, restore string) error {
	return host.OnThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("no network namespace to try it in: %w", err)
		}
		_, err := call(ctx, sample, restore)
		for _, rule := range found {
			if err != nil {
				break
			}
			if _, err = call(ctx, nil, iptables, rule...); err != nil {
				err = fmt.Errorf("it does not find a rule that is there (%w)", err)
			}
		}
		return err
	})
}

// save returns the host's rules as one backend lists them, empty if it does not work.
func save(ctx context.Context, dir string) string {
	out, _ := call(ctx, nil, filepath.Join(dir, "iptables-save"))
	return out
}

func call(ctx context.Context, input []byte, program string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdin, cmd.WaitDelay = bytes.NewReader(input), time.Second
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if ctx.Err() != nil {
		err = errors.Join(ctx.Err(), err)
	}
	if err != nil {
		said, _, _ := strings.Cut(strings.TrimSpace(errs.String()), "\n")
		return "", fmt.Errorf("%s: %w %s", filepath.Base(program), err, said)
	}
	return string(out), nil
}
