package gatewaypod

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
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
	transport, err := upgradeTransport(cfg)
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
	return &proxied{ReadWriteCloser: conn, pod: pod}, nil
}

// upgradeTransport is of its own for each connection, which ends with it.
func upgradeTransport(cfg *rest.Config) (http.RoundTripper, error) {
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
		TLSClientConfig: tlsConfig, Proxy: proxy, DialContext: dial, TLSHandshakeTimeout: dialWithin, ResponseHeaderTimeout: dialWithin,
		DisableKeepAlives: true, ReadBufferSize: joinBytes,
	})
}

// keepEvery is how often a silent connection to the API server is probed.
const keepEvery = 10 * time.Second

// proxied is one connection to a pod.
type proxied struct {
	io.ReadWriteCloser
	pod string
}

func (p *proxied) LocalAddr() net.Addr  { return podAddr("home") }
func (p *proxied) RemoteAddr() net.Addr { return podAddr(p.pod) }

// The caller enforces deadlines, by closing.
func (*proxied) SetDeadline(time.Time) error      { return nil }
func (*proxied) SetReadDeadline(time.Time) error  { return nil }
func (*proxied) SetWriteDeadline(time.Time) error { return nil }
