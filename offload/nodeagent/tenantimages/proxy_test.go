package tenantimages

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
)

// aProxy is one that has whatever it is asked for connected to one server.
type aProxy struct {
	*httptest.Server
	mu    sync.Mutex
	asked []string // method, address, credentials
}

func newProxy(t *testing.T, to string) *aProxy {
	p := &aProxy{}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		p.asked = append(p.asked, r.Method+" "+r.RequestURI+" "+r.Header.Get("Proxy-Authorization"))
		p.mu.Unlock()
		if to == "" || r.Method != http.MethodConnect {
			http.Error(w, "no", http.StatusForbidden)
			return
		}
		out, err := net.Dial("tcp", to)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer out.Close()
		in, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			return
		}
		defer in.Close()
		fmt.Fprint(in, "HTTP/1.1 200 Connected\r\n\r\n")
		go func() { _, _ = io.Copy(out, in) }()
		_, _ = io.Copy(in, out)
	}))
	t.Cleanup(p.Close)
	return p
}

func (p *aProxy) requests() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.asked)
}

// names are what the device finds under them.
var names = map[string][]string{
	"example.com": {"2606:2800:220:1::1", "10.0.0.1", "93.184.216.34"}, "inside.example.com": {"10.0.0.1", "fd00::1", "127.0.0.1"},
	"own.example.com": {"198.51.100.7"}, "93.184.216.34": {"93.184.216.34"}, "169.254.169.254": {"169.254.169.254"}, "10.0.0.1": {"10.0.0.1"},
}

func proxied(proxy string, t *testing.T) *Relay {
	via, err := url.Parse(proxy)
	if err != nil {
		t.Fatal(err)
	}
	r := NewRelay(RelayConfig{
		Proxy:    func(*http.Request) (*url.URL, error) { return via, nil },
		Networks: func() []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")} },
	})
	r.lookup = func(_ context.Context, _, host string) (out []netip.Addr, err error) {
		if names[host] == nil {
			return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
		}
		for _, a := range names[host] {
			out = append(out, netip.MustParseAddr(a))
		}
		return out, nil
	}
	return r
}

// A proxy is given an address that was judged, never a name under which it may find another, and
// nothing of an address that is not public. The host's certificate is looked at all the same.
func TestAProxyIsGivenPublicAddresses(t *testing.T) {
	host := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "I am "+r.Host) }))
	defer host.Close()
	p := newProxy(t, host.Listener.Addr().String())
	r := proxied(strings.Replace(p.URL, "http://", "http://user:word@", 1), t)
	r.public.TLSClientConfig = host.Client().Transport.(*http.Transport).TLSClientConfig.Clone() // of example.com
	client := &http.Client{Transport: r.public}
	resp, err := client.Get("https://example.com/")
	if err != nil {
		t.Fatal(err)
	}
	if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "I am example.com" {
		t.Errorf("%q, %v", body, err)
	}
	resp.Body.Close()
	want := []string{"CONNECT 93.184.216.34:443 Basic dXNlcjp3b3Jk"}
	if got := p.requests(); !slices.Equal(got, want) {
		t.Errorf("the proxy was asked %q, want %q", got, want)
	}
	for _, to := range []string{"https://inside.example.com/", "https://own.example.com/", "https://169.254.169.254/", "http://inside.example.com/", "http://10.0.0.1/latest/meta-data"} {
		if resp, err := client.Get(to); err == nil || !strings.Contains(err.Error(), "public addresses only") {
			t.Errorf("%s: %v, %v", to, resp, err)
		}
	}
	if resp, err := client.Get("https://nowhere.example.com/"); err == nil || !strings.Contains(err.Error(), "registries.mirrors") {
		t.Errorf("a name that is not found here: %v, %v", resp, err)
	}
	if got := p.requests(); !slices.Equal(got, want) {
		t.Errorf("the proxy was asked %q, want %q", got, want)
	}
	if resp, err := client.Get("https://93.184.216.34/"); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("a host with a certificate for another name: %v, %v", resp, err)
	}
}

// What a proxy refuses, or does not answer, is an error that ends.
func TestAProxyThatDoesNotConnect(t *testing.T) {
	p := newProxy(t, "")
	if c, err := proxied(p.URL, t).dialPublic(t.Context(), "tcp", "example.com:443"); err == nil || !strings.Contains(err.Error(), "403") {
		t.Errorf("%v, %v", c, err)
	}
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		if c, err := silent.Accept(); err == nil {
			defer c.Close()
			_, _ = c.Read(make([]byte, 1))
			cancel()
			<-t.Context().Done()
		}
	}()
	if c, err := proxied("http://"+silent.Addr().String(), t).dialPublic(ctx, "tcp", "example.com:443"); err == nil {
		t.Errorf("%v", c)
	}
	if c, err := proxied("ftp://127.0.0.1:1", t).dialPublic(t.Context(), "tcp", "example.com:443"); err == nil || !strings.Contains(err.Error(), "not supported") {
		t.Errorf("%v, %v", c, err)
	}
}

// A SOCKS proxy is given the address, too.
func TestASOCKSProxyIsGivenTheAddress(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	asked := make(chan []byte, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		hello := make([]byte, 3) // version 5, one method, none
		if _, err := io.ReadFull(c, hello); err != nil {
			return
		}
		_, _ = c.Write([]byte{5, 0})
		request := make([]byte, 10) // version, connect, reserved, IPv4, address, port
		if _, err := io.ReadFull(c, request); err != nil {
			return
		}
		asked <- request
		_, _ = c.Write([]byte{5, 0, 0, 1, 0, 0, 0, 0, 0, 0})
	}()
	c, err := proxied("socks5h://"+l.Addr().String(), t).dialPublic(t.Context(), "tcp", "example.com:443")
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	if got, want := <-asked, []byte{5, 1, 0, 1, 93, 184, 216, 34, 1, 187}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
