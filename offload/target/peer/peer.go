// Package peer makes a target of a peer: another Rivulet cluster at the end of a
// tunnel. It speaks the routes of docs/architecture.md.
//
// It reads the peer's offers, twins and API, and writes only through them. It
// keeps nothing but a short memory of the twins' names, so a restart costs one
// request for each namespace. A peer that is silent for longer than two
// heartbeats is an offer that is not ready, with the reason; every other failure
// is the error of the call that met it.
package peer

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/connrotation"

	"rivulet/fabric/changes"
	"rivulet/fabric/peer"
	"rivulet/offload/offer"
	"rivulet/offload/target"
)

// Config is what a Target needs. All fields but Dial are required.
type Config struct {
	// Name is the virtual node's.
	Name string
	Link peer.Link
	// Links lists all peers: their pods have to be told to this one, too.
	Links func() []peer.Link
	// PodCIDR is home's.
	PodCIDR netip.Prefix
	// Dial opens connections inside the tunnel; nil dials without one.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// HTTP reaches the peer's control routes under BaseURL.
	HTTP    *http.Client
	BaseURL string
	// Cert and Key are ours, ServerCert is the peer's, all PEM; ServerName is the name to expect in it.
	Cert, Key, ServerCert []byte
	ServerName            string
	Log                   *slog.Logger
}

// Target is one peer. It implements target.Target.
type Target struct {
	cfg    Config
	rest   *rest.Config
	client kubernetes.Interface
	conns  *connrotation.Dialer // of client
	// streams are the connections of whoever takes Config.
	streams *connrotation.Dialer

	mu     sync.Mutex
	twins  map[string]memory
	latest offer.Offer // the last line of the peer's stream
	reach  changes.Signal
}

// memory is a twin's name, and when it was last heard.
type memory struct {
	name string
	at   time.Time
}

var _ target.Target = (*Target)(nil)

// New makes a Target. It does not use the network.
func New(cfg Config) (*Target, error) {
	if cfg.Dial == nil {
		cfg.Dial = (&net.Dialer{}).DialContext
	}
	config := &rest.Config{
		Host: "https://" + cfg.Link.Addr.String() + "/k8s",
		TLSClientConfig: rest.TLSClientConfig{
			CertData: cfg.Cert, KeyData: cfg.Key, CAData: cfg.ServerCert, ServerName: cfg.ServerName},
		Dial: cfg.Dial,
		QPS:  200, Burst: 400,
		UserAgent: "rivulet",
	}
	unbounded := *cfg.HTTP // the stream of offers has no end
	unbounded.Timeout = 0
	cfg.HTTP = &unbounded
	t := &Target{cfg: cfg, rest: config, twins: map[string]memory{}}
	t.conns = connrotation.NewDialer(t.dial)
	typed := rest.CopyConfig(config)
	typed.Dial = t.conns.DialContext
	t.streams = connrotation.NewDialer(t.dial)
	config.Dial = t.streams.DialContext
	typed.ContentType = runtime.ContentTypeProtobuf
	typed.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	client, err := kubernetes.NewForConfig(typed)
	if err != nil {
		return nil, fmt.Errorf("offload: client of peer %s: %w", cfg.Name, err)
	}
	t.client = client
	return t, nil
}

// dial bounds each attempt: one that began during a cut would otherwise wait long
// after it for TCP's next try.
func (t *Target) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	return t.cfg.Dial(ctx, network, addr)
}

// Name is the name of the virtual node.
func (t *Target) Name() string { return t.cfg.Name }

// ID is the peer's cluster ID.
func (t *Target) ID() string { return string(t.cfg.Link.ID) }

// Client reaches the peer's API with the rights of a consumer.
func (t *Target) Client() kubernetes.Interface { return t.client }

// Config is that of Client, for what needs a connection of its own. Its
// connections are closed when the peer goes silent: a stream over one would else
// hang until TCP gives up, many minutes later.
func (t *Target) Config() *rest.Config { return rest.CopyConfig(t.rest) }

// Close drops the connections of Client and Config.
func (t *Target) Close() {
	t.conns.CloseAll()
	t.streams.CloseAll()
}

// Keeps reports whether the peer, as far as it was heard, keeps pods that are their own
// record.
func (t *Target) Keeps() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.latest.Keeps
}
