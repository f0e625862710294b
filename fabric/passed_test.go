package fabric

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"rivulet/fabric/control"
	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
)

// A connection to a passed name inside the tunnel is the handler's, byte for byte;
// outside of it, and under any other name, the control port is what it was.
func TestPassedNames(t *testing.T) {
	w := newWorld(t)
	a, b := w.cluster(1, "a"), w.cluster(2, "b")
	a.awaitState(b, peer.Connected)

	// The API server, with a certificate of its own.
	id, err := rpc.NewIdentity(newKey(7), "api")
	if err != nil {
		t.Fatal(err)
	}
	b.Pass(func(c net.Conn) {
		defer c.Close()
		s := tls.Server(c, &tls.Config{Certificates: []tls.Certificate{id.Certificate}})
		if _, err := io.Copy(s, io.LimitReader(s, 5)); err != nil {
			t.Errorf("the handler's connection: %v", err)
		}
		s.Close()
	}, "kubernetes.default.svc")

	ask := func(host, name string) string {
		t.Helper()
		c, err := tls.DialWithDialer(&net.Dialer{Timeout: 5 * time.Second}, "tcp", net.JoinHostPort(host, fmt.Sprint(b.cfg.Port)),
			&tls.Config{InsecureSkipVerify: true, ServerName: name})
		if err != nil {
			return "refused"
		}
		defer c.Close()
		if err := c.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(c, "hello"); err != nil {
			return "refused"
		}
		got, err := io.ReadAll(c)
		if err != nil && len(got) == 0 {
			return "refused" // no certificate of a cluster was shown
		}
		return string(got)
	}
	for _, c := range []struct{ host, name, want string }{
		{inTunnel.String(), "kubernetes.default.svc", "hello"},
		{inTunnel.String(), "Kubernetes.Default.svc", "hello"},
		{inTunnel.String(), "kubernetes.default", "refused"},
		{inTunnel.String(), string(b.cfg.Identity.ID), "refused"},
		{onLAN.String(), "kubernetes.default.svc", "refused"},
	} {
		if got := ask(c.host, c.name); got != c.want {
			t.Errorf("%s at %s: %q, want %q", c.name, c.host, got, c.want)
		}
	}

	// On the LAN there are names of its own.
	b.PassLAN(func(c net.Conn) {
		defer c.Close()
		s := tls.Server(c, &tls.Config{Certificates: []tls.Certificate{id.Certificate}})
		if _, err := io.Copy(s, io.LimitReader(s, 5)); err != nil {
			t.Errorf("the handler's connection: %v", err)
		}
		s.Close()
	}, "kubernetes.rivulet")
	for _, c := range []struct{ host, name, want string }{
		{onLAN.String(), "kubernetes.rivulet", "hello"},
		{onLAN.String(), "kubernetes.default.svc", "refused"},
		{inTunnel.String(), "kubernetes.rivulet", "refused"},
	} {
		if got := ask(c.host, c.name); got != c.want {
			t.Errorf("%s at %s: %q, want %q", c.name, c.host, got, c.want)
		}
	}

	// Neither a peer, which offers TLS 1.3 alone, nor for a passed name: a browser.
	b.PassLAN(func(c net.Conn) {
		defer c.Close()
		s := tls.Server(c, &tls.Config{Certificates: []tls.Certificate{id.Certificate}})
		_, _ = io.Copy(s, io.LimitReader(s, 5))
		s.Close()
	}, control.Browsers)
	for _, c := range []struct{ host, name, want string }{
		{onLAN.String(), "", "hello"}, {onLAN.String(), "lab-1.local", "hello"}, {inTunnel.String(), "", "refused"}, {inTunnel.String(), "lab-1.local", "refused"},
	} {
		if got := ask(c.host, c.name); got != c.want {
			t.Errorf("a browser for %q at %s: %q, want %q", c.name, c.host, got, c.want)
		}
	}
	peers, err := tls.Dial("tcp", net.JoinHostPort(onLAN.String(), fmt.Sprint(b.cfg.Port)), rpc.ClientTLS(a.cfg.Identity, b.cfg.Identity.ID))
	if err != nil {
		t.Fatalf("a peer without a name, beside browsers: %v", err)
	}
	peers.Close()
	b.PassLAN(nil, control.Browsers)

	// One that says nothing, and one that speaks no TLS, hold up nobody.
	for _, say := range []string{"", "GET / HTTP/1.1\r\n\r\n"} {
		c, err := net.Dial("tcp", net.JoinHostPort(inTunnel.String(), fmt.Sprint(b.cfg.Port)))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := io.WriteString(c, say); err != nil {
			t.Fatal(err)
		}
	}
	client, url, err := a.Client(b.cfg.Identity.ID)
	if err == nil {
		err = rpc.Call(t.Context(), client, http.MethodGet, url+"/v1/ping", nil, nil)
	}
	if err != nil {
		t.Errorf("the control port beside it: %v", err)
	}
	b.Pass(nil, "kubernetes.default.svc")
	b.PassLAN(nil, "kubernetes.rivulet")
	if got := ask(onLAN.String(), "kubernetes.rivulet"); got != "refused" {
		t.Errorf("on the LAN after the end of it: %q", got)
	}
	if got := ask(inTunnel.String(), "kubernetes.default.svc"); got != "refused" {
		t.Errorf("after the end of it: %q", got)
	}
}
