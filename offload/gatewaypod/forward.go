package gatewaypod

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/httpstream"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
)

// forward opens a connection to a port on the loopback of a pod, through the API server: over a WebSocket, or SPDY if
// that is not supported. The proxy is that of the rest.Config, otherwise that of HTTPS_PROXY. The connection below is
// pinged every few seconds; ends is closed with it.
func forward(ctx context.Context, cfg *rest.Config, client kubernetes.Interface, namespace, pod string, port uint16) (net.Conn, error) {
	at := client.CoreV1().RESTClient().Post().Resource("pods").Namespace(namespace).Name(pod).SubResource("portforward").URL()
	dialer, err := dialerTo(cfg, at)
	if err != nil {
		return nil, fmt.Errorf("gateway: port-forward: %w", err)
	}
	type dialled struct {
		conn httpstream.Connection
		err  error
	}
	done := make(chan dialled, 1)
	go func() { // it has no context
		c, _, err := dialer.Dial(portforward.PortForwardProtocolV1Name)
		done <- dialled{c, err}
	}()
	var d dialled
	select {
	case d = <-done:
	case <-ctx.Done():
		go func() {
			if d := <-done; d.err == nil {
				d.conn.Close()
			}
		}()
		return nil, ctx.Err()
	}
	if d.err != nil {
		return nil, fmt.Errorf("gateway: port-forward to %s: %w", pod, d.err)
	}
	headers := http.Header{}
	headers.Set(corev1.StreamType, corev1.StreamTypeError)
	headers.Set(corev1.PortHeader, strconv.Itoa(int(port)))
	headers.Set(corev1.PortForwardRequestIDHeader, "0")
	failures, err := d.conn.CreateStream(headers)
	if err == nil {
		failures.Close() // nothing is written to it
		headers.Set(corev1.StreamType, corev1.StreamTypeData)
		var data httpstream.Stream
		if data, err = d.conn.CreateStream(headers); err == nil {
			f := &forwarded{Stream: data, conn: d.conn, pod: pod}
			go f.readFailures(failures)
			return f, nil
		}
	}
	d.conn.Close()
	return nil, fmt.Errorf("gateway: port-forward to %s: %w", pod, err)
}

func dialerTo(cfg *rest.Config, at *url.URL) (httpstream.Dialer, error) {
	transport, upgrader, err := spdy.RoundTripperFor(cfg)
	if err != nil {
		return nil, err
	}
	old := spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, at)
	sockets, err := portforward.NewSPDYOverWebsocketDialer(at, cfg)
	if err != nil {
		return nil, err
	}
	return portforward.NewFallbackDialer(sockets, old, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	}), nil
}

// forwarded is one connection to a pod.
type forwarded struct {
	httpstream.Stream
	conn httpstream.Connection
	pod  string
	once sync.Once

	mu  sync.Mutex
	why error
}

// readFailures ends the connection when the pod's end reports a failure.
func (f *forwarded) readFailures(failures io.Reader) {
	text, _ := io.ReadAll(io.LimitReader(failures, 4<<10))
	if len(text) > 0 {
		f.mu.Lock()
		f.why = errors.New("gateway: port-forward to " + f.pod + ": " + strings.TrimSpace(string(text)))
		f.mu.Unlock()
		f.Close()
	}
}

func (f *forwarded) Read(b []byte) (int, error) {
	n, err := f.Stream.Read(b)
	if err != nil {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.why != nil {
			err = f.why
		}
	}
	return n, err
}

func (f *forwarded) Close() error {
	f.once.Do(func() {
		f.Reset() //nolint:errcheck // the connection is closed too
		f.conn.Close()
	})
	return nil
}

// The caller enforces deadlines, by closing.
func (*forwarded) SetDeadline(time.Time) error      { return nil }
func (*forwarded) SetReadDeadline(time.Time) error  { return nil }
func (*forwarded) SetWriteDeadline(time.Time) error { return nil }

type podAddr string

func (podAddr) Network() string  { return "port-forward" }
func (a podAddr) String() string { return string(a) }

func (f *forwarded) LocalAddr() net.Addr  { return podAddr("home") }
func (f *forwarded) RemoteAddr() net.Addr { return podAddr(f.pod) }
