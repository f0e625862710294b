package dns

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	_ "github.com/coredns/coredns/plugin/cache" // registers its set-up
	"github.com/coredns/coredns/plugin/forward"
	miekg "github.com/miekg/dns"
)

// upstream resolves every other name by the servers in resolv.conf, through a cache. A query checks the files, at most
// once in fresh: a laptop that changes its network needs no restart, an idle device no timer.
//
// CoreDNS's loop detection ends the process when it finds a loop. The cluster's own addresses are never used as upstream,
// and a loop by way of somebody's resolver on this host ends by the time limit of a query.
type upstream struct {
	files []string
	own   func(netip.Addr) bool
	lans  func() []netip.Prefix
	log   *slog.Logger

	mu      sync.Mutex
	looked  time.Time
	state   string // of the files at the last read
	place   string // the LANs then
	servers []string
	forward *forward.Forward
	cached  plugin.Handler // in front of forward; nil without servers
}

const fresh = time.Second

// remembered is the most that an answer is kept, also that there is no such name, seconds: as the usual cluster DNS of
// Kubernetes does. A certificate's name is often asked for before it exists.
const remembered = 30

func newUpstream(files []string, own func(netip.Addr) bool, lans func() []netip.Prefix, log *slog.Logger) *upstream {
	return &upstream{files: files, own: own, lans: lans, log: log}
}

func (u *upstream) Name() string { return "upstream" }

func (u *upstream) ServeDNS(ctx context.Context, w miekg.ResponseWriter, r *miekg.Msg) (int, error) {
	h := u.handler(time.Now())
	if h == nil {
		return miekg.RcodeServerFailure, nil
	}
	return h.ServeDNS(ctx, w, r)
}

func (u *upstream) handler(now time.Time) plugin.Handler {
	u.mu.Lock()
	defer u.mu.Unlock()
	if now.Sub(u.looked) < fresh {
		return u.cached
	}
	u.looked = now
	place := fmt.Sprint(u.lans())
	moved := place != u.place
	u.place = place
	if looks := stateOf(u.files); looks != u.state || moved {
		u.state = looks
		u.use(servers(u.files, u.own), moved)
	}
	return u.cached
}

// use changes the servers and drops cached answers; moved: another network may have the same server's address.
func (u *upstream) use(servers []string, moved bool) {
	if slices.Equal(servers, u.servers) && (u.cached != nil || len(servers) == 0) && !moved {
		return
	}
	old := u.forward
	u.servers, u.forward, u.cached = servers, nil, nil
	if old != nil {
		_ = old.OnShutdown()
	}
	if len(servers) == 0 {
		u.log.Info("no upstream DNS server in resolv.conf: only names of the cluster are answered")
		return
	}
	f, err := newForward(servers)
	var cached plugin.Handler
	if err == nil {
		cached, err = made("cache", fmt.Sprintf("cache %d .", remembered), f)
	}
	if err != nil {
		u.log.Warn("upstream DNS servers cannot be used", "servers", servers, "err", err)
		return
	}
	u.forward, u.cached = f, cached
	u.log.Info("upstream DNS servers", "servers", servers)
}

// newForward returns what asks the servers, each in its turn. CoreDNS's check of servers is off: it asks for the root's name
// servers, and a router is silent on that while the Internet is out, and knows the LAN's names.
func newForward(servers []string) (*forward.Forward, error) {
	h, err := made("forward", fmt.Sprintf(`forward . %s {
		policy sequential
		max_connect_attempts %d
		max_fails 0
		max_concurrent 1000
	}`, strings.Join(servers, " "), len(servers)), nil)
	if err != nil {
		return nil, err
	}
	f, ok := h.(*forward.Forward)
	if !ok {
		return nil, fmt.Errorf("dns: the forward plugin is a %T", h)
	}
	return f, f.OnStartup()
}

// made is the handler of a line of CoreDNS's configuration. Some options only CoreDNS's set-up code can set.
func made(name, line string, next plugin.Handler) (plugin.Handler, error) {
	controller := caddy.NewTestController("dns", line)
	setup, err := caddy.DirectiveAction("dns", name)
	if err != nil {
		return nil, err
	}
	if err := setup(controller); err != nil {
		return nil, err
	}
	handlers := dnsserver.GetConfig(controller).Plugin
	if len(handlers) != 1 {
		return nil, fmt.Errorf("dns: the %s plugin made %d handlers, want 1", name, len(handlers))
	}
	return handlers[0](next), nil
}

// servers returns the upstream servers (host:port): those of the first file, a resolver on this host among them, such as
// Pi-hole, or systemd-resolved, which knows the domains of VPNs. The servers that resolved itself has, in the second file,
// follow it, for versions without a proxy, and are asked if the first names none that may be. A resolver on this host is not
// asked where resolved has the cluster as a server: a loop.
func servers(files []string, own func(netip.Addr) bool) (out []string) {
	var all []netip.Addr
	for i, file := range files {
		conf, err := miekg.ClientConfigFromFile(file)
		if err != nil {
			continue
		}
		named, loop := nameservers(conf.Servers, own)
		if i > 0 && loop {
			all = slices.DeleteFunc(all, netip.Addr.IsLoopback)
		}
		if len(all) == 0 || all[len(all)-1] == resolvedStub {
			all = append(all, named...)
		}
	}
	for _, a := range all {
		if a == resolvedStub {
			a = resolvedProxy
		}
		out = append(out, netip.AddrPortFrom(a, 53).String())
	}
	return out
}

// systemd-resolved's stub answers from /etc/hosts and by multicast, too, which pods do not ask for; its proxy, since version
// 249, passes queries on, to the servers of a domain (systemd-resolved.service(8)).
var resolvedStub, resolvedProxy = netip.MustParseAddr("127.0.0.53"), netip.MustParseAddr("127.0.0.54")

// nameservers are those that may be asked; ours reports whether the cluster's own DNS is named, too.
func nameservers(named []string, own func(netip.Addr) bool) (out []netip.Addr, ours bool) {
	for _, s := range named {
		switch a, err := netip.ParseAddr(s); {
		case err != nil || a.IsUnspecified():
		case own(a):
			ours = true
		default:
			out = append(out, a)
		}
	}
	return out, ours
}

// stateOf describes the files without reading them; links are followed.
func stateOf(files []string) string {
	var text strings.Builder
	for _, file := range files {
		info, err := os.Stat(file)
		if err != nil {
			fmt.Fprintf(&text, "%s -\n", file)
			continue
		}
		fmt.Fprintf(&text, "%s %d %d %v\n", file, info.Size(), info.ModTime().UnixNano(), inode(info))
	}
	return text.String()
}
