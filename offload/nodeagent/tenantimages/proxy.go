package tenantimages

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"syscall"
	"time"

	"golang.org/x/net/proxy"

	"rivulet/fabric/ipam"
)

// connecting bounds the time to connect to a proxy.
const connecting = 30 * time.Second

var errNotPublic = errors.New("images are fetched for other clusters from public addresses only")

// dialPublic connects to a public address of a host. With a proxy the name is resolved here, and the proxy gets the
// checked address: by the name it might reach another, chosen by the name's owner. TLS is end to end.
func (r *Relay) dialPublic(ctx context.Context, network, addr string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	scheme := "https"
	if port == "80" {
		scheme = "http"
	}
	via, err := r.cfg.Proxy(&http.Request{URL: &url.URL{Scheme: scheme, Host: addr, Path: "/"}})
	if err != nil {
		return nil, err
	}
	if via == nil {
		d := net.Dialer{Timeout: connecting, ControlContext: func(_ context.Context, _, addr string, _ syscall.RawConn) error {
			if to, err := netip.ParseAddrPort(addr); err != nil || !r.isPublic(to.Addr()) {
				return errNotPublic
			}
			return nil
		}}
		return d.DialContext(ctx, network, addr)
	}
	found, err := r.lookup(ctx, "ip", host)
	if err != nil {
		return nil, fmt.Errorf("%w; where only the proxy looks names up, set %s up as a mirror in registries.mirrors", err, host)
	}
	found = slices.DeleteFunc(found, func(a netip.Addr) bool { return !r.isPublic(a) })
	if len(found) == 0 {
		return nil, errNotPublic
	}
	slices.SortStableFunc(found, func(a, b netip.Addr) int { return a.Unmap().BitLen() - b.Unmap().BitLen() }) // every proxy supports IPv4
	ctx, cancel := context.WithTimeout(ctx, connecting)
	defer cancel()
	return through(ctx, via, net.JoinHostPort(found[0].Unmap().String(), port))
}

// isPublic reports whether an address is on the Internet and in none of this device's networks.
func (r *Relay) isPublic(a netip.Addr) bool {
	return ipam.Public(a, r.cfg.Networks()...)
}

// through connects to an address by a proxy. ctx bounds only the connecting.
func through(ctx context.Context, via *url.URL, addr string) (net.Conn, error) {
	ports := map[string]string{"http": "80", "https": "443", "socks5": "1080", "socks5h": "1080"}
	if ports[via.Scheme] == "" {
		return nil, fmt.Errorf("a proxy by %s is not supported; use http, https or socks5", via.Scheme)
	}
	at := net.JoinHostPort(via.Hostname(), cmp.Or(via.Port(), ports[via.Scheme]))
	password, _ := via.User.Password()
	if ports[via.Scheme] == "1080" {
		var auth *proxy.Auth
		if via.User != nil {
			auth = &proxy.Auth{User: via.User.Username(), Password: password}
		}
		d, err := proxy.SOCKS5("tcp", at, auth, &net.Dialer{})
		if err != nil {
			return nil, err
		}
		return d.(proxy.ContextDialer).DialContext(ctx, "tcp", addr)
	}
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", at)
	if err != nil {
		return nil, err
	}
	if via.Scheme == "https" {
		c = tls.Client(c, &tls.Config{ServerName: via.Hostname()})
	}
	stop := context.AfterFunc(ctx, func() { c.Close() })
	ask := &http.Request{Method: http.MethodConnect, URL: &url.URL{Opaque: addr}, Host: addr, Header: http.Header{}}
	if via.User != nil {
		ask.Header.Set("Proxy-Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(via.User.Username()+":"+password)))
	}
	in := bufio.NewReader(c)
	err = ask.Write(c)
	var answer *http.Response
	if err == nil {
		answer, err = http.ReadResponse(in, ask)
	}
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("the proxy does not connect to %s: %s", addr, answer.Status)
	} else if err == nil && in.Buffered() > 0 {
		err = errors.New("the proxy sends before it is asked")
	}
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}
