// Package homeapi lets pods away talk to the API server of home, and nobody else of the cluster they run on
// (docs/design/offload.md). The Service, its EndpointSlice and the ConfigMaps are written by offload/consumer/reflect,
// tokens and the pod's settings by offload/consumer/pod; here are the names they share, and the Router, which has a
// Gate for each home. TLS is the API server's from end to end; a client is known by its token alone. The Router reads
// which addresses are those of away pods and writes nothing. Connections end with this process, and clients open
// others.
package homeapi

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"
)

const (
	// Service is the name of the Service (and its EndpointSlice) in each twin.
	Service = "rivulet-home-api"
	// Authority is the ConfigMap in each twin that stands for home's RootCA.
	Authority = "rivulet-home-ca.crt"
	// Variables is the ConfigMap in each twin that holds Env.
	Variables = "rivulet-home-variables"
	// RootCA is the ConfigMap in every namespace that holds the cluster's authority.
	RootCA = "kube-root-ca.crt"
	// Host is the name by which away pods find home's API server; its certificate has it.
	Host = "kubernetes.default.svc"
	// Port is that of the Service.
	Port = 443
)

// Names are all by which the API server is asked for inside a cluster.
var Names = []string{Host, Host + ".cluster.local", "kubernetes.default", "kubernetes"}

// Env are the variables by which a pod away finds home's API server.
func Env() map[string]string {
	port := strconv.Itoa(Port)
	url := "tcp://" + Host + ":" + port
	return map[string]string{
		"KUBERNETES_SERVICE_HOST": Host, "KUBERNETES_SERVICE_PORT": port, "KUBERNETES_SERVICE_PORT_HTTPS": port, "KUBERNETES_PORT": url,
		"KUBERNETES_PORT_443_TCP": url, "KUBERNETES_PORT_443_TCP_ADDR": Host, "KUBERNETES_PORT_443_TCP_PORT": port, "KUBERNETES_PORT_443_TCP_PROTO": "tcp",
	}
}

// patience is how long a connection waits to be known for a pod of ours: a new pod
// may ask before its provider has told its address.
const patience = 5 * time.Second

// Gate is the way of one home's pods to its API server.
type Gate struct {
	// API is the address of the API server.
	API string
	// Names are those by which its pods ask for it.
	Names []string
	// Ours reports whether the address, as home sees it, is that of a pod of home
	// that runs away now.
	Ours func(netip.Addr) bool
	Log  *slog.Logger

	ctx  context.Context // that of Router.Serve
	open sync.WaitGroup  // connections; added to with the Router's mu held, while it is served
}

// serve passes one connection on until either side or the gate ends it.
func (g *Gate) serve(c net.Conn) {
	defer c.Close()
	api, err := (&net.Dialer{Timeout: patience}).DialContext(g.ctx, "tcp", g.API)
	if err != nil {
		g.Log.Debug("an away pod did not reach the API server", "from", c.RemoteAddr(), "err", err)
		return
	}
	Join(g.ctx, c, api)
}

// Join passes bytes on between two connections until either side or ctx ends it, and closes both.
func Join(ctx context.Context, a, b net.Conn) {
	defer a.Close()
	defer b.Close()
	stop := context.AfterFunc(ctx, func() { a.Close(); b.Close() })
	defer stop()
	var both sync.WaitGroup
	both.Go(func() { pass(a, b) })
	both.Go(func() { pass(b, a) })
	both.Wait()
}

// pass copies one direction and ends it at its end.
func pass(to, from net.Conn) {
	_, err := io.Copy(to, from)
	if w, ok := to.(interface{ CloseWrite() error }); ok && err == nil {
		_ = w.CloseWrite() // closed altogether when both directions have ended
		return
	}
	to.Close()
	from.Close()
}
