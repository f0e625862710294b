package dns

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/cache"
	"github.com/coredns/coredns/plugin/forward"
	miekg "github.com/miekg/dns"
)

// upstream resolves every other name by the servers in resolv.conf, through a cache. A query checks the files, at most
// once in fresh: a laptop that changes its network needs no restart, an idle device no timer.
//
// CoreDNS's loop detection ends the process when it finds a loop. Here there are no loops: the device's own addresses
// are never used as upstream.
type upstream struct {
	files []string
	own   func(netip.Addr) bool
	log   *slog.Logger

	mu      sync.Mutex
	looked  time.Time
	state   string // of the files at the last read
	servers []string
	forward *forward.Forward
	cached  plugin.Handler // in front of forward; nil without servers
}

const fresh = time.Second

func newUpstream(files []string, own func(netip.Addr) bool, log *slog.Logger) *upstream {
	return &upstream{files: files, own: own, log: log}
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
	if looks := stateOf(u.files); looks != u.state {
		u.state = looks
		u.use(servers(u.files, u.own))
	}
	return u.cached
}

// use changes the servers and drops cached answers.
func (u *upstream) use(servers []string) {
	if slices.Equal(servers, u.servers) && (u.cached != nil || len(servers) == 0) {
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
	if err != nil {
		u.log.Warn("upstream DNS servers cannot be used", "servers", servers, "err", err)
		return
	}
	c := cache.New()
	c.Next = f
	u.forward, u.cached = f, c
	u.log.Info("upstream DNS servers", "servers", servers)
}

// newForward sets options that only CoreDNS's set-up code can set.
func newForward(servers []string) (*forward.Forward, error) {
	controller := caddy.NewTestController("dns", fmt.Sprintf(`forward . %s {
		policy sequential
		max_connect_attempts %d
		failfast_all_unhealthy_upstreams
		max_concurrent 1000
	}`, strings.Join(servers, " "), len(servers)))
	setup, err := caddy.DirectiveAction("dns", "forward")
	if err != nil {
		return nil, err
	}
	if err := setup(controller); err != nil {
		return nil, err
	}
	made := dnsserver.GetConfig(controller).Plugin
	if len(made) != 1 {
		return nil, fmt.Errorf("dns: the forward plugin made %d handlers, want 1", len(made))
	}
	f, ok := made[0](nil).(*forward.Forward)
	if !ok {
		return nil, fmt.Errorf("dns: the forward plugin is a %T", made[0](nil))
	}
	return f, f.OnStartup()
}

// servers returns the upstream servers (host:port): of the first file that names one that is not on this host; else the
// local stub of the first.
func servers(files []string, own func(netip.Addr) bool) []string {
	var local []string
	for _, file := range files {
		conf, err := miekg.ClientConfigFromFile(file)
		if err != nil {
			continue
		}
		var remote, stubs []string
		for _, s := range conf.Servers {
			a, err := netip.ParseAddr(s)
			if err != nil || own(a) || a.IsUnspecified() {
				continue
			}
			if a.IsLoopback() {
				stubs = append(stubs, net.JoinHostPort(s, conf.Port))
			} else {
				remote = append(remote, net.JoinHostPort(s, conf.Port))
			}
		}
		if len(remote) > 0 {
			return remote
		}
		if local == nil {
			local = stubs
		}
	}
	return local
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
