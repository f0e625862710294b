package gatewaypod

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"rivulet/fabric/gateway/gatewayproto"
)

// upgraded opens a stream to the gateway in a pod through the API server's proxy of pods: the API server connects to the
// pod's address itself, where a port-forward passes the kubelet and the container runtime too, in frames of two
// protocols. It needs the right on pods/proxy, a gateway that knows it, and an API server that reaches pods; otherwise
// there is an error, and a port-forward may do.
func upgraded(ctx context.Context, cfg *rest.Config, client kubernetes.Interface, namespace, pod string) (net.Conn, error) {
	p := &proxied{pod: pod}
	transport, err := upgradeTransport(cfg, &p.ahead)
	if err != nil {
		return nil, err
	}
	at := client.CoreV1().RESTClient().Get().Resource("pods").Namespace(namespace).
		Name(pod + ":" + strconv.Itoa(gatewayproto.ReadyPort)).SubResource("proxy").Suffix(gatewayproto.StreamPath).URL()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", gatewayproto.StreamUpgrade)
	answer, err := transport.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	conn, ok := answer.Body.(io.ReadWriteCloser)
	if answer.StatusCode != http.StatusSwitchingProtocols || !ok {
		answer.Body.Close()
		return nil, fmt.Errorf("the API server answers %s", answer.Status)
	}
	p.ReadWriteCloser = conn
	return p, nil
}

// upgradeTransport is of its own for each connection, which ends with it. It reads by ahead.
func upgradeTransport(cfg *rest.Config, ahead *atomic.Pointer[ahead]) (http.RoundTripper, error) {
	tlsConfig, err := rest.TLSConfigFor(cfg)
	if err != nil {
		return nil, err
	}
	if tlsConfig != nil {
		tlsConfig.NextProtos = []string{"http/1.1"} // HTTP/2 has no Upgrade
	}
	proxy := http.ProxyFromEnvironment
	if cfg.Proxy != nil {
		proxy = cfg.Proxy
	}
	dial := cfg.Dial
	if dial == nil {
		dial = (&net.Dialer{Timeout: dialWithin, KeepAlive: keepEvery}).DialContext
	}
	return rest.HTTPWrappersForConfig(cfg, &http.Transport{
		TLSClientConfig: tlsConfig, Proxy: proxy, DialContext: readAhead(dial, ahead), TLSHandshakeTimeout: dialWithin, ResponseHeaderTimeout: dialWithin,
		DisableKeepAlives: true, ReadBufferSize: joinBytes,
	})
}

// keepEvery is how often a silent connection to the API server is probed.
const keepEvery = 10 * time.Second

// ahead is the connection below TLS, which is read in larger pieces than TLS does: one record at a time.
type ahead struct {
	net.Conn
	buf *bufio.Reader
	n   atomic.Int64 // bytes in buf
}

// aheadBytes is how much is read at once, recordBytes more than the longest record of TLS, with its header.
const aheadBytes, recordBytes = 256 << 10, 17 << 10

func readAhead(dial func(context.Context, string, string) (net.Conn, error), to *atomic.Pointer[ahead]) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		a := &ahead{Conn: c, buf: bufio.NewReaderSize(c, aheadBytes)}
		to.Store(a)
		return a, nil
	}
}

func (a *ahead) Read(b []byte) (int, error) {
	n, err := a.buf.Read(b)
	a.n.Store(int64(a.buf.Buffered()))
	return n, err
}

// proxied is one connection to a pod.
type proxied struct {
	io.ReadWriteCloser
	pod   string
	ahead atomic.Pointer[ahead]
}

// more reports whether there is a whole record, so that a Read does not wait.
func (p *proxied) more() bool {
	a := p.ahead.Load()
	return a != nil && a.n.Load() >= recordBytes
}

func (p *proxied) LocalAddr() net.Addr  { return podAddr("home") }
func (p *proxied) RemoteAddr() net.Addr { return podAddr(p.pod) }

// The caller enforces deadlines, by closing.
func (*proxied) SetDeadline(time.Time) error      { return nil }
func (*proxied) SetReadDeadline(time.Time) error  { return nil }
func (*proxied) SetWriteDeadline(time.Time) error { return nil }
