package engine

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"rivulet/appliance/config"
	"rivulet/appliance/machine/host"
)

// resolvFile is for pods with the host's resolver (dnsPolicy Default, and hostNetwork). The kubelet reads it for each
// pod, so it may change while the engine runs. By itself k3s reads the host's file once, before DHCP has answered, and
// then uses public servers for its lifetime (locateOrGenerateResolvConf in its pkg/agent/config).
func (e *Engine) resolvFile() string { return filepath.Join(e.cfg.RunDir, "k3s-resolv.conf") }

func (e *Engine) writeResolv() error {
	content := resolvConf(host.ResolvFiles, func(a netip.Addr) bool { return a == e.cfg.NodeIP || a == e.cfg.ClusterDNS }, e.cfg.ClusterDNS)
	if now, err := os.ReadFile(e.resolvFile()); err == nil && bytes.Equal(now, []byte(content)) {
		return nil
	}
	return writeFile(e.resolvFile(), content)
}

// keepResolv follows the host's files until ctx ends.
func (e *Engine) keepResolv(ctx context.Context) {
	write := func() {
		if err := e.writeResolv(); err != nil {
			e.cfg.Log.Warn("new pods with the host's resolver ask servers of before", "err", err)
		}
	}
	for _, file := range host.ResolvFiles {
		go func() {
			if err := config.Watch(ctx, file, write, write); err != nil {
				e.cfg.Log.Warn("new pods with the host's resolver ask the servers of now until the engine is started again", "file", file, "err", err)
			}
		}()
	}
}

// maxResolv bounds the part of a file that is read, bytes.
const maxResolv = 64 << 10

// resolvConf returns the first file with a server that pods can reach, with only such servers; else, and where that names a
// resolver on this host, the first existing file with the cluster's DNS as server, which asks that resolver.
func resolvConf(files []string, own func(netip.Addr) bool, fallback netip.Addr) string {
	var first []string
	for _, file := range files {
		f, err := os.Open(file)
		if err != nil {
			continue
		}
		servers, others, here := resolvLines(io.LimitReader(f, maxResolv), own)
		f.Close()
		if len(servers) > 0 && !here {
			return strings.Join(append(servers, others...), "")
		}
		if first == nil {
			first = slices.Clip(others)
		}
		if here {
			break
		}
	}
	return strings.Join(append(first, fmt.Sprintf("nameserver %s\n", fallback)), "")
}

// resolvLines reads what pods may use: servers that are not on this host, search domains, options. Here reports whether
// there is a resolver on this host, too.
func resolvLines(r io.Reader, own func(netip.Addr) bool) (servers, others []string, here bool) {
	for lines := bufio.NewScanner(r); lines.Scan(); {
		words := strings.Fields(lines.Text())
		if len(words) < 2 {
			continue
		}
		if words[0] == "domain" { // the same (resolv.conf(5)), and the kubelet does not support it
			words[0] = "search"
		}
		line := strings.Join(words, " ") + "\n"
		switch words[0] {
		case "nameserver": // a pod takes three, and the kubelet warns of more
			a, err := netip.ParseAddr(words[1])
			here = here || err == nil && a.IsLoopback()
			if err == nil && a.IsGlobalUnicast() && !own(a) && len(servers) < 3 {
				servers = append(servers, line)
			}
		case "search", "options":
			others = append(others, line)
		}
	}
	return servers, others, here
}
