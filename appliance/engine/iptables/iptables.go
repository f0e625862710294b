// Package iptables selects the iptables for the engine: the host's, or the bundled one if the host's is missing or does
// not work. With it the engine keeps the host's rules for pods (PodRules).
//
//	the host's    if it has iptables, iptables-save and iptables-restore, and
//	              they load rules and find them again
//	the bundled   otherwise, with the backend (nft or legacy) that the kernel
//	              has and in which there are rules already
//
// It reads PATH, the kernel (by loading a few rules into a temporary network namespace) and, if there are two backends,
// the existing rules. The selection writes nothing. It runs at each start of the engine. If neither works, the error has the
// messages of both, and the engine waits. The rules of both backends coexist in the kernel: a backend that changed from
// one start to the next would leave the rules of the other behind.
package iptables

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Choice is the iptables that the engine calls.
type Choice struct {
	// Path of the program iptables.
	Path string `json:"path"`
	// Bundled is true for the bundled one.
	Bundled bool `json:"bundled"`
	// Backend is nft or legacy.
	Backend string `json:"backend"`
	// Version is the program's version without the v.
	Version string `json:"version"`
	// Why is the reason not to use the host's, empty if it is used.
	Why string `json:"why,omitempty"`
	// standby is the folder of the bundled one with the same backend.
	standby string
}

// The two backends of the kernel's packet filter, and their folders in the bundle.
const (
	NFT    = "nft"
	Legacy = "legacy"
)

// programs are what kube-proxy and PodRules call.
var programs = []string{"iptables", "iptables-save", "iptables-restore"}

// PATH adds the bundled iptables to a path of the host's folders: first if it is chosen, else last, in case the host's
// is removed meanwhile.
func (c Choice) PATH(host string) string {
	switch {
	case c.standby == "":
		return host
	case c.Bundled:
		return c.standby + ":" + host
	}
	return host + ":" + c.standby
}

func (c Choice) String() string {
	if c.Bundled {
		return fmt.Sprintf("bundled %s (%s), because %s", c.Version, c.Backend, c.Why)
	}
	return fmt.Sprintf("%s %s (%s)", c.Path, c.Version, c.Backend)
}

// Choose searches the folders of PATH, and the bundle's in netfilter.
func Choose(ctx context.Context, netfilter string) (Choice, error) {
	return choose(ctx, os.Getenv("PATH"), netfilter)
}

func choose(ctx context.Context, path, netfilter string) (Choice, error) {
	c, err := hosts(ctx, path)
	if err == nil {
		c.standby = filepath.Join(netfilter, c.Backend)
		return c, nil
	}
	why := err
	var failed []error
	for _, backend := range order(ctx, netfilter) {
		dir := filepath.Join(netfilter, backend)
		c := Choice{Path: filepath.Join(dir, "iptables"), Bundled: true, Backend: backend, Why: why.Error(), standby: dir}
		if c.Version, _, err = version(ctx, c.Path); err == nil {
			err = works(ctx, c.Path, c.Path+"-restore")
		}
		if err == nil {
			return c, nil
		}
		failed = append(failed, fmt.Errorf("bundled %s: %w", backend, err))
	}
	ours := errors.Join(failed...)
	if notLoaded(ours) {
		return Choice{}, fmt.Errorf("iptables: ours does not load (%w) and this host's cannot be used (%w): apt-get install iptables", ours, why)
	}
	return Choice{}, fmt.Errorf("iptables: this host's cannot be used (%w) and the kernel takes no rules from ours (%w); "+
		"the kernel needs nf_tables, nft_compat and xt_comment or ip_tables, with nat: modprobe nft_compat", why, ours)
}

// notLoaded reports whether a program or one of its extensions could not be loaded: no module of the kernel mends that.
func notLoaded(err error) bool {
	return strings.Contains(err.Error(), "loading shared libraries") || // the loader, of a library of the program
		strings.Contains(err.Error(), "shared object file") || strings.Contains(err.Error(), "ELF load command") // of an extension
}

// hosts returns the host's iptables, or why it is not used.
func hosts(ctx context.Context, path string) (Choice, error) {
	var missing []string
	found := map[string]string{}
	for _, p := range programs {
		if found[p] = findIn(path, p); found[p] == "" {
			missing = append(missing, p)
		}
	}
	if len(missing) > 0 {
		return Choice{}, fmt.Errorf("the host has no %s", strings.Join(missing, ", "))
	}
	c := Choice{Path: found["iptables"]}
	var err error
	if c.Version, c.Backend, err = version(ctx, c.Path); err != nil {
		return Choice{}, err
	}
	if err := works(ctx, c.Path, found["iptables-restore"]); err != nil {
		return Choice{}, fmt.Errorf("the host's %s (%s) does not work: %w", c.Version, c.Backend, err)
	}
	return c, nil
}

// findIn is exec.LookPath for another PATH.
func findIn(path, name string) string {
	for _, dir := range filepath.SplitList(path) {
		at := filepath.Join(dir, name)
		if info, err := os.Stat(at); err == nil && filepath.IsAbs(dir) && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return at
		}
	}
	return ""
}

// order returns the backends to try, the better first. Existing Kubernetes rules decide: they are this cluster's, or of
// another one that has to coexist. Then the backend with more rules, which is the host firewall's; then nft.
func order(ctx context.Context, netfilter string) []string {
	nft := count(save(ctx, filepath.Join(netfilter, NFT)))
	legacy := count(save(ctx, filepath.Join(netfilter, Legacy)))
	if legacy.kube > nft.kube || legacy.kube == nft.kube && legacy.rules > nft.rules {
		return []string{Legacy, NFT}
	}
	return []string{NFT, Legacy}
}

type rules struct{ rules, kube int }

// count reads the output of iptables-save.
func count(text string) (n rules) {
	for line := range strings.Lines(text) {
		switch {
		case strings.HasPrefix(line, "-A "):
			n.rules++
		case strings.HasPrefix(line, ":KUBE-"), strings.HasPrefix(line, ":FLANNEL-"):
			n.kube++
		}
	}
	return n
}
