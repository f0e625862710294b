package doctor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/plugins/snapshots/overlay/overlayutils"
	"github.com/miekg/dns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/client-go/kubernetes"

	"rivulet/appliance/addons/podview"
	"rivulet/appliance/api"
	"rivulet/appliance/config/fixed"
	"rivulet/appliance/engine"
	"rivulet/appliance/state/paths"
	"rivulet/fabric/netmon"
)

// Here is the Env of this machine. The supervisor is queried once.
func Here(state, run string) *Env { return here(state, run, nil, nil) }

// here is Here with the supervisor of this process and its position of a pod; nil if another process runs it.
func here(state, run string, own api.Supervisor, pods *podview.View) *Env {
	name, _ := os.Hostname()
	m := &thisMachine{bundled: bundled(state), run: run, hostname: name, own: own, pods: pods}
	return &Env{Machine: m, State: absolute(state), Run: absolute(run), Now: time.Now, Hostname: name, User: os.Geteuid()}
}

// thisMachine is the Machine on which the process runs.
type thisMachine struct {
	system
	bundled
	run, hostname string
	own           api.Supervisor
	pods          *podview.View

	queried, listened      sync.Once
	status                 api.Status
	received               Received
	statusErr, receivedErr error
}

func (m *thisMachine) Supervisor(ctx context.Context) (api.Status, error) {
	m.queried.Do(func() {
		if m.own != nil {
			m.status = m.own.Status()
		} else {
			m.status, m.statusErr = api.Get(ctx, m.run)
		}
	})
	return m.status, m.statusErr
}

func (m *thisMachine) API() (kubernetes.Interface, error) {
	cfg, err := engine.RESTConfig(paths.Kubeconfig(absolute(string(m.bundled))))
	if err != nil {
		return nil, err
	}
	return kubernetes.NewForConfig(cfg)
}

func (m *thisMachine) Listen() (Received, error) {
	m.listened.Do(func() { m.received, m.receivedErr = listen(m.hostname) })
	return m.received, m.receivedErr
}

func (m *thisMachine) AsPod(ctx context.Context, node podview.Node) (podview.Finding, error) {
	view := m.pods
	if view == nil {
		view = podview.New(fixed.Bridge, "doctor", doctorsView())
		defer view.Close()
	}
	return view.Check(ctx, node)
}

func absolute(dir string) string {
	if abs, err := filepath.Abs(dir); err == nil {
		return abs
	}
	return dir
}

// bundled is a state folder, for the bundled iptables if the host has none.
type bundled string

func (state bundled) find(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err == nil {
		return path, nil
	}
	own := filepath.Join(string(state), "bundle", "current", "netfilter", "nft", filepath.Base(name))
	if _, there := os.Stat(own); there == nil {
		return own, nil
	}
	return "", err
}

// Exec runs a program without a terminal and in English.
func (state bundled) Exec(ctx context.Context, name string, args ...string) (string, error) {
	path, err := state.find(name)
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	cmd.WaitDelay = time.Second
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil && stderr.Len() > 0 {
		err = fmt.Errorf("%w: %.300s", err, strings.Join(strings.Fields(stderr.String()), " "))
	}
	return string(out), err
}

// system is what the kernel and the network of this machine answer.
type system struct{}

func (system) Statfs(path string) (fs unix.Statfs_t, err error) { return fs, unix.Statfs(path, &fs) }

func (system) Adjtimex() (tx unix.Timex, state int, err error) {
	state, err = unix.Adjtimex(&tx)
	return tx, state, err
}

func (system) Overlay(dir string) error { return overlayutils.SupportsMultipleLowerDir(dir) }

func (system) Links() ([]Link, error) {
	all, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	addrs, err := netlink.AddrList(nil, netlink.FAMILY_ALL) // one call: a device has a link per pod
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	var out []Link
	for _, l := range all {
		a := l.Attrs()
		_, noRadio := os.Stat("/sys/class/net/" + a.Name + "/phy80211")
		link := Link{
			Name: a.Name, LAN: netmon.MayBeLAN(l, all), Wireless: noRadio == nil,
			Up: a.Flags&net.FlagUp != 0, Carrier: a.RawFlags&unix.IFF_RUNNING != 0,
		}
		for _, addr := range addrs {
			if ip, ok := netip.AddrFromSlice(addr.IP); ok && addr.LinkIndex == a.Index {
				ones, _ := addr.Mask.Size()
				link.Addrs = append(link.Addrs, netip.PrefixFrom(ip.Unmap(), ones))
			}
		}
		out = append(out, link)
	}
	return out, nil
}

func (system) RouteTo(to netip.Addr) (string, error) {
	found, err := netlink.RouteGet(to.AsSlice())
	if err != nil {
		return "", fmt.Errorf("route to %s: %w", to, err)
	}
	for _, r := range found {
		if l, err := netlink.LinkByIndex(r.LinkIndex); err == nil {
			return l.Attrs().Name, nil
		}
	}
	return "", fmt.Errorf("route to %s: no interface", to)
}

// Routes reads every table but the local one: VPNs have their own tables.
func (system) Routes() ([]Route, error) {
	all, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	var out []Route
	for _, r := range all {
		if r.Table == unix.RT_TABLE_LOCAL || r.Type != unix.RTN_UNICAST {
			continue
		}
		to := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		if r.Dst != nil {
			if addr, ok := netip.AddrFromSlice(r.Dst.IP.To4()); ok {
				bits, _ := r.Dst.Mask.Size()
				to = netip.PrefixFrom(addr, bits)
			}
		}
		route := Route{To: to}
		if via, ok := netip.AddrFromSlice(r.Gw); ok {
			route.Via = via.Unmap()
		}
		if l, err := netlink.LinkByIndex(r.LinkIndex); err == nil {
			route.Link = l.Attrs().Name
		}
		out = append(out, route)
	}
	return out, nil
}

func (k system) Neighbours() ([]netip.Addr, error) {
	all, err := netlink.NeighList(0, netlink.FAMILY_V4)
	if err != nil {
		return nil, fmt.Errorf("list neighbours: %w", err)
	}
	lans, _ := k.Links()
	var out []netip.Addr
	for _, n := range all {
		const answered = netlink.NUD_REACHABLE | netlink.NUD_STALE | netlink.NUD_DELAY | netlink.NUD_PROBE
		addr, ok := netip.AddrFromSlice(n.IP)
		if !ok || n.State&answered == 0 || addr.IsMulticast() {
			continue
		}
		onLAN := slices.ContainsFunc(lans, func(l Link) bool {
			return l.LAN && slices.ContainsFunc(l.Addrs, func(p netip.Prefix) bool { return p.Contains(addr.Unmap()) })
		})
		if onLAN {
			out = append(out, addr.Unmap())
		}
	}
	return out, nil
}

func (system) Dial(ctx context.Context, addr netip.AddrPort) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr.String())
	if err != nil {
		return err
	}
	return c.Close()
}

func (system) QueryDNS(ctx context.Context, server netip.AddrPort, question dns.Question) error {
	m := new(dns.Msg)
	m.SetQuestion(question.Name, question.Qtype)
	var err error
	for range 2 { // UDP may be lost once
		c := &dns.Client{Timeout: 2 * time.Second}
		if _, _, err = c.ExchangeContext(ctx, m, server.String()); err == nil {
			return nil // any answer shows that it is there
		}
	}
	return err
}

// Fsync writes blocks of 4 KiB one after the other, each synced before the next, as a database does with its log. It
// stops when ctx ends.
func (system) Fsync(ctx context.Context, dir string, blocks int) (took []time.Duration, err error) {
	f, err := os.CreateTemp(dir, ".doctor-*")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	block := bytes.Repeat([]byte("rivulet\n"), 512)
	for range blocks {
		begun := time.Now()
		if _, err := f.Write(block); err != nil {
			return took, err
		}
		if err := f.Sync(); err != nil {
			return took, err
		}
		took = append(took, time.Since(begun))
		if ctx.Err() != nil {
			break
		}
	}
	return took, nil
}
