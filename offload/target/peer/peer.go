// Package peer makes a target of a peer: another Rivulet cluster at the end of a tunnel. It uses the routes of
// docs/design/architecture.md. It reads the peer's offers, twins and API, and writes only through them. Restart: it
// only caches the twins' names for a short time, so a restart costs one request for each namespace. Failure: a peer
// that is silent for offer.Silence gets an offer that is not ready, with the reason; every other failure is the error
// of its call.
package peer

import (
	"context"
	"errors"
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
	"rivulet/offload/foreign"
	"rivulet/offload/offer"
	"rivulet/offload/policy"
	"rivulet/offload/target"
)

// Config are the dependencies of a Target. All fields but Dial, Now, Busy, BusyChanged, LinksChanged and Relay are required.
type Config struct {
	// Name is the virtual node's.
	Name string
	Link peer.Link
	// Links lists all peers: this peer needs the others' prefixes as well.
	Links func() []peer.Link
	// Now is one of Links, sooner than all of them; nil looks it up in Links.
	Now func(peer.ID) (peer.Link, bool)
	// Busy reports whether home has pods there, BusyChanged changes of that: without any, the offer is repeated rarely. Nil:
	// it has.
	Busy        func() bool
	BusyChanged func() (<-chan struct{}, func())
	// LinksChanged reports changes of Links, like Changed of a Fabric; may be nil.
	LinksChanged func() (<-chan struct{}, func())
	// PodCIDR is home's.
	PodCIDR netip.Prefix
	// Relay has the addresses by which pods at providers reach each other through home; nil is none.
	Relay Relay
	// Dial opens connections inside the tunnel; nil dials without one.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// HTTP is a client for the peer's control routes below BaseURL.
	HTTP    *http.Client
	BaseURL string
	// Cert and Key are this cluster's, ServerCert is the peer's, all PEM; ServerName is the expected name in it.
	// Without them the connections of Dial are private already, and the peer's API is below BaseURL.
	Cert, Key, ServerCert []byte
	ServerName            string
	// Changed is called after the result of Tenants may have changed; may be nil.
	Changed func()
	Log     *slog.Logger
}

// Relay is the part of elsewhere.Elsewhere that is used.
type Relay interface {
	Through(from, at peer.ID, pod netip.Addr) (netip.Addr, bool)
	ThroughChanged() (<-chan struct{}, func())
}

// Target is one peer. It implements target.Target.
type Target struct {
	cfg    Config
	rest   *rest.Config
	client kubernetes.Interface
	conns  *connrotation.Dialer // of client
	// streams are the connections of users of Config.
	streams *connrotation.Dialer
	link    target.Link
	kept    *foreign.Kept

	making sync.RWMutex // held for writing while no twin may be made

	mu       sync.Mutex
	twins    map[string]memory
	asking   map[string]chan struct{} // by home namespace, held during the request for its twin
	latest   offer.Offer              // the last line of the peer's stream
	received bool                     // there was one
	silent   bool                     // for longer than offer.Silence
	reach    changes.Signal
}

// memory is a twin's name, and when it was last confirmed.
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
		Dial: bounded(cfg.Dial), Proxy: foreign.NoProxy,
		QPS: 200, Burst: 400,
		UserAgent: "rivulet",
	}
	if len(cfg.ServerCert) == 0 {
		config.Host, config.TLSClientConfig = cfg.BaseURL+"/k8s", rest.TLSClientConfig{}
	}
	from := foreign.Origin{Name: cfg.Name, Cure: "rivulet peers"}
	if err := foreign.Guard(config, from); err != nil {
		return nil, fmt.Errorf("offload: client of peer %s: %w", cfg.Name, err)
	}
	config.Wrap(func(rt http.RoundTripper) http.RoundTripper { return fit{rt} })
	cfg.HTTP = foreign.Client(cfg.HTTP, from)
	cfg.HTTP.Timeout = 0 // the stream of offers has no end
	t := &Target{cfg: cfg, rest: config, kept: &foreign.Kept{From: from}, twins: map[string]memory{}, asking: map[string]chan struct{}{}}
	config.Wrap(t.link.Wrap)
	t.conns, t.streams = connrotation.NewDialer(config.Dial), connrotation.NewDialer(config.Dial)
	typed := rest.CopyConfig(config)
	typed.Dial, config.Dial = t.conns.DialContext, t.streams.DialContext
	typed.ContentType = runtime.ContentTypeProtobuf
	typed.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	client, err := kubernetes.NewForConfig(typed)
	if err != nil {
		return nil, fmt.Errorf("offload: client of peer %s: %w", cfg.Name, err)
	}
	t.client = client
	return t, nil
}

// Silent makes a target of a peer without a tunnel: it does not answer, and its offer has the reason.
func Silent(l peer.Link, name, why string, pods netip.Prefix, log *slog.Logger) (*Target, error) {
	l.Addr = netip.AddrPortFrom(netip.IPv4Unspecified(), 0)
	dial := func(context.Context, string, string) (net.Conn, error) { return nil, errors.New(why) }
	return New(Config{Name: name, Link: l, Links: func() []peer.Link { return []peer.Link{l} }, PodCIDR: pods, Dial: dial,
		HTTP: &http.Client{Transport: &http.Transport{DialContext: dial}}, BaseURL: "http://" + l.Addr.String(), Log: log})
}

// bounded bounds each attempt: one that began during a cut would otherwise wait for TCP's next retry long after it.
func bounded(dial func(context.Context, string, string) (net.Conn, error)) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, connectTimeout)
		defer cancel()
		return dial(ctx, network, addr)
	}
}

// Name is the name of the virtual node.
func (t *Target) Name() string { return t.cfg.Name }

// ID is the peer's cluster ID.
func (t *Target) ID() string { return string(t.cfg.Link.ID) }

// Client is a client of the peer's API with the rights of a consumer.
func (t *Target) Client() kubernetes.Interface { return t.client }

// Config is that of Client, for connections of the caller's own. They are closed when the peer becomes silent: a stream
// would otherwise hang until TCP gives up, many minutes later.
func (t *Target) Config() *rest.Config { return rest.CopyConfig(t.rest) }

// Link is that of Client, Config and Offers.
func (t *Target) Link() *target.Link { return &t.link }

// Kept bounds what home keeps of the peer's objects.
func (t *Target) Kept() *foreign.Kept { return t.kept }

// Close drops the connections of Client and Config.
func (t *Target) Close() {
	t.conns.CloseAll()
	t.streams.CloseAll()
}

// Lost reports whether the peer has stopped answering: its pings have no answer, or it was silent for too long. Changed
// reports a change of that.
func (t *Target) Lost() bool {
	t.mu.Lock()
	silent := t.silent
	t.mu.Unlock()
	return silent || t.unlinked()
}

// unlinked reports whether the peer's pings have no answer.
func (t *Target) unlinked() bool {
	if t.cfg.Now != nil {
		l, ok := t.cfg.Now(t.cfg.Link.ID)
		return ok && l.State == peer.Lost
	}
	for _, l := range t.cfg.Links() {
		if l.ID == t.cfg.Link.ID {
			return l.State == peer.Lost
		}
	}
	return false
}

// Keeps reports whether the peer, by its last offer, replaces pods that are their own record.
func (t *Target) Keeps() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.latest.Keeps
}

// HomeAddresses is a value of policy.HomeAddressesAnnotation for new pods there, or "" for the peer's own addresses, by
// its last offer.
func (t *Target) HomeAddresses() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.latest.HomeAddresses && t.latest.HomePods:
		return policy.HomeAddressesOfPods
	case t.latest.HomeAddresses:
		return policy.HomeAddressesOfServices
	}
	return ""
}
