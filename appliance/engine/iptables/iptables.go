// Package iptables decides which iptables the engine uses: the host's, or the
// bundled one on a host that has none or one that does not work.
//
// It reads PATH, the kernel (by loading a few rules into a network namespace made
// for that) and, when there is a choice of backend, the rules that are there. It
// writes nothing. It is asked anew each time the engine starts. When neither
// works, the error says what each of them said, and the engine waits.
//
//	the host's    if it has iptables, iptables-save and iptables-restore, and
//	              they load rules and find them again
//	the bundled   otherwise, with the backend (nft or legacy) that the kernel
//	              has and in which there are rules already
//
// The rules of the two backends live beside each other in the kernel: one that
// changes from one start to the next would leave the rules of the other behind.
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
	// Bundled is true if it is the bundled one.
	Bundled bool `json:"bundled"`
	// Backend is nft or legacy.
	Backend string `json:"backend"`
	// Version as the program says it, without the v.
	Version string `json:"version"`
	// Why the host's is not used, empty if it is.
	Why string `json:"why,omitempty"`
	// standby is the folder of the bundled one with the same backend.
	standby string
}

// The two ways into the kernel's packet filter; folders of the bundle are called so.
const (
	NFT    = "nft"
	Legacy = "legacy"
)

// programs are what kube-proxy and flannel call.
var programs = []string{"iptables", "iptables-save", "iptables-restore"}

// PATH puts the bundled iptables into a path of the host's folders: first if it
// is chosen, else last, for the case that the host's is removed while we run.
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

// Choose looks through the folders of PATH and at the bundle's, netfilter.
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
	return Choice{}, fmt.Errorf("iptables: this host's cannot be used (%w) and the kernel takes no rules from ours (%w); "+
		"the kernel needs nf_tables, nft_compat and xt_comment or ip_tables, with nat: modprobe nft_compat", why, errors.Join(failed...))
}

// hosts is the host's own, or why it is not used.
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

// findIn is exec.LookPath for a PATH other than ours.
func findIn(path, name string) string {
	for _, dir := range filepath.SplitList(path) {
		at := filepath.Join(dir, name)
		if info, err := os.Stat(at); err == nil && filepath.IsAbs(dir) && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return at
		}
	}
	return ""
}

// order is the backends to try, the better first. Rules of Kubernetes that are
// there decide: they are ours, or of another that ours have to live with. Then
// the backend with more rules, which is the host's firewall's; then nft.
func order(ctx context.Context, netfilter string) []string {
	nft := count(save(ctx, filepath.Join(netfilter, NFT)))
	legacy := count(save(ctx, filepath.Join(netfilter, Legacy)))
	if legacy.kube > nft.kube || legacy.kube == nft.kube && legacy.rules > nft.rules {
		return []string{Legacy, NFT}
	}
	return []string{NFT, Legacy}
}

type rules struct{ rules, kube int }

// count reads what iptables-save writes.
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
