package peercheck

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"rivulet/appliance/api"
	"rivulet/appliance/engine"
	"rivulet/appliance/version"
	"rivulet/fabric"
	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
	"rivulet/fabric/tunnel"
)

// Here is this cluster: it examines its peers, and answers peers that examine it. All fields must be set.
type Here struct {
	Self   rpc.Identity
	Fabric *atomic.Pointer[fabric.Fabric]     // nil before it has started
	Tunnel *atomic.Pointer[tunnel.Controller] // nil before it has started
	Engine *engine.Handle
	DNS    netip.AddrPort // address of this cluster's DNS
	Domain string         // of the cluster
}

// tunnelTimeout limits the request for the data plane's state.
const tunnelTimeout = 2 * time.Second

// Routes registers the routes of `rivulet doctor peer`.
func (h Here) Routes(mux *http.ServeMux) {
	mux.Handle("GET /v1/doctor/peer", api.JSON(func(r *http.Request) (any, error) {
		return h.examine(r.Context(), r.URL.Query().Get("name"))
	}))
}

// findPeer returns the one cluster with that name, ID or prefix of an ID.
func findPeer(views []peer.View, name string) (peer.View, error) {
	var found []peer.View
	for _, v := range views {
		if strings.EqualFold(v.Name, name) || string(v.ID) == name || len(name) >= 4 && strings.HasPrefix(string(v.ID), name) {
			found = append(found, v)
		}
	}
	switch len(found) {
	case 0:
		return peer.View{}, fmt.Errorf("no cluster is known as %.60q; see: rivulet peers", name)
	case 1:
		return found[0], nil
	}
	var ids []string
	for _, v := range found {
		ids = append(ids, v.ID.Short())
	}
	return peer.View{}, fmt.Errorf("%d clusters are called %.60q; name one by its ID: %s", len(found), name, strings.Join(ids, ", "))
}

func (h Here) examine(ctx context.Context, name string) (Report, error) {
	fab, tun := h.Fabric.Load(), h.Tunnel.Load()
	if fab == nil {
		return Report{}, errors.New("the fabric has not started yet; see: rivulet status")
	}
	p, err := findPeer(fab.Peers(), name)
	if err != nil {
		return Report{}, err
	}
	c := Case{
		Peer: p, Addrs: p.Addrs, Version: version.Version, KubeVersion: h.Engine.Version(),
		Access: access{self: h.Self, fabric: fab, id: p.ID},
	}
	if p.Control.IsValid() && !slices.Contains(c.Addrs, p.Control) {
		c.Addrs = append(slices.Clone(c.Addrs), p.Control)
	}
	if tun != nil {
		bounded, cancel := context.WithTimeout(ctx, tunnelTimeout)
		if st, err := tun.Status(bounded); err == nil {
			c.Tunnel = &st
		}
		cancel()
	}
	return Examine(ctx, c), nil
}

// access is the Access to a peer from this cluster.
type access struct {
	self   rpc.Identity
	fabric *fabric.Fabric
	id     peer.ID
}

func (access) Dial(ctx context.Context, addr netip.AddrPort) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, "tcp", addr.String())
}

// Identify returns the ID of the key at the other end.
func (a access) Identify(ctx context.Context, conn net.Conn) (peer.ID, error) {
	tc := tls.Client(conn, rpc.ClientTLS(a.self, ""))
	if err := tc.HandshakeContext(ctx); err != nil {
		return "", err
	}
	return peer.IDFromCertificate(tc.ConnectionState().PeerCertificates[0])
}

// Pattern is the route of Answer for peers, inside the tunnel.
const Pattern = "POST " + checkPath

const checkPath = "/v1/check"

// maxCheck bounds the payload in each direction, bytes.
const maxCheck = 256 << 10

func (a access) Query(ctx context.Context, size int) (Answer, error) {
	client, base, err := a.fabric.Client(a.id)
	if err != nil {
		return Answer{}, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+checkPath, strings.NewReader(strings.Repeat("r", size)))
	if err != nil {
		return Answer{}, err
	}
	begun := time.Now()
	resp, err := client.Do(req)
	if err != nil {
		return Answer{}, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, 2*maxCheck))
	if err != nil {
		return Answer{}, err
	}
	if resp.StatusCode != http.StatusOK {
		return Answer{}, fmt.Errorf("it answered %d", resp.StatusCode)
	}
	var answer Answer
	if err := json.Unmarshal(raw, &answer); err != nil {
		return answer, fmt.Errorf("its answer is unreadable: %w", err)
	}
	peer.Clean(&answer, peer.Text)
	answer.Took = time.Since(begun)
	return answer, nil
}

func (a access) API(ctx context.Context) (string, error) {
	client, base, err := a.fabric.Client(a.id)
	if err != nil {
		return "", err
	}
	var v struct {
		GitVersion string `json:"gitVersion"`
		Message    string `json:"message"`
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/k8s/version", nil)
	if err != nil {
		return "", err
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, rpc.MaxBody))
	if err != nil {
		return "", err
	}
	json.Unmarshal(raw, &v) //nolint:errcheck // missing fields are not shown
	peer.Clean(&v, peer.Text)
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("it answered %d %s", resp.StatusCode, v.Message)
	}
	return v.GitVersion, nil
}

// Answer answers a peer that examines the path to this cluster.
func (h Here) Answer(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxCheck))
	if err != nil {
		rpc.Fail(w, http.StatusBadRequest, &rpc.Error{Code: "bad-request", Message: "the request broke off or is too long"})
		return
	}
	a := Answer{Version: version.Version, KubeVersion: h.Engine.Version(), Payload: body}
	if from, err := netip.ParseAddrPort(r.RemoteAddr); err == nil {
		a.SeenAs = from.Addr().Unmap()
	}
	if len(body) == 0 { // checked once, not with every payload
		a.DNS = h.dnsTrouble(r.Context())
		if a.KubeVersion == "" {
			a.API = "the API server is not up"
		}
	}
	rpc.Write(w, http.StatusOK, a)
}

// dnsTrouble queries this cluster's DNS for a name that every cluster has.
func (h Here) dnsTrouble(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	m := new(dns.Msg)
	m.SetQuestion("kubernetes.default.svc."+h.Domain+".", dns.TypeA)
	in, _, err := new(dns.Client).ExchangeContext(ctx, m, h.DNS.String())
	switch {
	case err != nil:
		return "it does not answer"
	case in.Rcode != dns.RcodeSuccess:
		return "it answers " + dns.RcodeToString[in.Rcode]
	}
	return ""
}
