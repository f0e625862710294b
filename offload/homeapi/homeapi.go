// Package homeapi gives pods away access to home's API server, and nobody else on their cluster
// (docs/design/offload.md). offload/consumer/reflect writes the Service, its EndpointSlice and the ConfigMaps,
// offload/consumer/pod the tokens and the pod's settings; this package has their common names, and the Router with a
// Gate for each home. TLS is end to end with the API server, which authenticates clients by their tokens. The Router
// reads the addresses of away pods and writes nothing. Restart: connections end, and clients reconnect.
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
	// Authority is the ConfigMap in each twin with home's RootCA.
	Authority = "rivulet-home-ca.crt"
	// Variables is the ConfigMap in each twin with Env.
	Variables = "rivulet-home-variables"
	// RootCA is the ConfigMap in every namespace with the cluster's authority.
	RootCA = "kube-root-ca.crt"
	// Host is the name of home's API server for away pods; its certificate has it.
	Host = "kubernetes.default.svc"
	Port = 443
)

// Names are all names of the API server inside a cluster.
var Names = []string{Host, Host + ".cluster.local", "kubernetes.default", "kubernetes"}

// Env are the variables with home's API server for away pods.
func Env() map[string]string {
	port := strconv.Itoa(Port)
	url := "tcp://" + Host + ":" + port
	return map[string]string{
		"KUBERNETES_SERVICE_HOST": Host, "KUBERNETES_SERVICE_PORT": port, "KUBERNETES_SERVICE_PORT_HTTPS": port, "KUBERNETES_PORT": url,
		"KUBERNETES_PORT_443_TCP": url, "KUBERNETES_PORT_443_TCP_ADDR": Host, "KUBERNETES_PORT_443_TCP_PORT": port, "KUBERNETES_PORT_443_TCP_PROTO": "tcp",
	}
}

// patience is how long a connection may wait for its pod's address: a new pod may connect before its provider has
// reported the address.
const patience = 5 * time.Second

// Gate connects one home's pods to its API server.
type Gate struct {
	// API is the address of the API server.
	API string
	// Names are the server names that its pods use.
	Names []string
	// Ours reports whether a pod of home that runs away now has the address, in home's view.
	Ours func(netip.Addr) bool
	Log  *slog.Logger

	ctx  context.Context // of Router.Serve
	open sync.WaitGroup  // connections; added to with the Router's mu held, while it is served
}

// serve forwards one connection until either side or the gate ends it.
func (g *Gate) serve(c net.Conn) {
	defer c.Close()
	api, err := (&net.Dialer{Timeout: patience}).DialContext(g.ctx, "tcp", g.API)
	if err != nil {
		g.Log.Debug("an away pod did not reach the API server", "from", c.RemoteAddr(), "err", err)
		return
	}
	Join(g.ctx, c, api)
}

// Join copies bytes between two connections until either side or ctx ends it, and closes both.
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

// pass copies one direction and closes it at its end.
func pass(to, from net.Conn) {
	_, err := io.Copy(to, from)
	if w, ok := to.(interface{ CloseWrite() error }); ok && err == nil {
		_ = w.CloseWrite() // fully closed when both directions have ended
		return
	}
	to.Close()
	from.Close()
}
