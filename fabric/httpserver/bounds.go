package httpserver

import (
	"time"

	"rivulet/fabric/connlimit"
)

// Bounds are those of one listener. Zero is no bound, unless it says otherwise.
type Bounds struct {
	// What is the listener, for the reference.
	What string
	// Conns bounds connections by party; Most those of a listener that only one party reaches: more wait.
	Conns connlimit.Limits
	Most  int
	// Streams bounds requests at once of one HTTP/2 connection; 0 is HTTP/1.1 alone.
	Streams int
	// Header bounds the head of one request, bytes.
	Header int
	// Begin is for a connection until a request's head has come, Idle until the next request.
	Begin, Idle time.Duration
	// Stall is for each piece of a request or of an answer that the client has to send or to take.
	Stall time.Duration
	// Whole is for a request with its answer, instead of Stall.
	Whole time.Duration
}

// Patience is the Stall of people and of peers, whose places are counted: somebody who reads a long log page by page
// keeps it for so long.
const Patience = 30 * time.Minute

// The listeners of the product.
var (
	Strangers = Bounds{What: "the control port from the LAN: everybody, users of a kubeconfig", Header: 32 << 10, Begin: 5 * time.Second, Idle: 20 * time.Second, Stall: 10 * time.Second,
		Conns: connlimit.Limits{Strangers: 256, PerSource: 32, PerOwner: 32, Deadline: 20 * time.Second, Peers: 256, PerPeer: 16, Lifetime: 20 * time.Second, Users: 512, PerUser: 32}}
	// In the tunnel the address identifies the peer before TLS does; streams last there, and each peer has its own share.
	Peers = Bounds{What: "the control port in the tunnel: peers", Streams: 32, Header: 32 << 10, Begin: 5 * time.Second, Idle: 2 * time.Minute, Stall: Patience,
		Conns: connlimit.Limits{Strangers: 512, PerSource: 64, PerOwner: 128, Deadline: 10 * time.Second, Peers: 4096, PerPeer: 512}}
	Users = Bounds{What: "the API server for users of a kubeconfig, behind the control port", Streams: 32, Header: 64 << 10, Begin: 10 * time.Second, Idle: 5 * time.Minute, Stall: Patience}
	Links = Bounds{What: "links to a kubeconfig, behind the control port", Header: 8 << 10, Begin: 10 * time.Second, Whole: 10 * time.Second}
	// An exchange that is relayed is a stranger's connection.
	Broker = Bounds{What: "a broker: everybody, members of rooms", Header: 32 << 10, Begin: 5 * time.Second, Idle: 30 * time.Second, Stall: 10 * time.Second,
		Conns: connlimit.Limits{Strangers: 512, PerSource: 64, PerOwner: 64, Deadline: 30 * time.Second, Lifetime: 30 * time.Second, Users: 1024, PerUser: 128}}
	BrokerMetrics = Bounds{What: "the metrics of a broker, where `--metrics` opens them", Most: 16, Header: 8 << 10, Begin: 5 * time.Second, Idle: time.Minute, Whole: 10 * time.Second}
	Console       = Bounds{What: "the web console: browsers of the LAN", Streams: 32, Header: 8 << 10, Begin: 5 * time.Second, Idle: time.Minute, Whole: 30 * time.Second,
		Conns: connlimit.Limits{Strangers: 64, PerSource: 16, PerOwner: 16, Deadline: 30 * time.Second, Users: 256, PerUser: 16}}
	StatusPage = Bounds{What: "the status page: browsers of the LAN", Most: 16, Header: 8 << 10, Begin: 5 * time.Second, Idle: 15 * time.Second, Whole: 15 * time.Second}
	Ingress    = Bounds{What: "Ingresses: everybody", Streams: 64, Header: 32 << 10, Begin: 10 * time.Second, Idle: time.Minute, Stall: time.Minute,
		Conns: connlimit.Limits{Strangers: 256, PerSource: 128, PerOwner: 128}}
	Metrics = Bounds{What: "the metrics over the network: scrapers", Header: 8 << 10, Begin: 5 * time.Second, Idle: 2 * time.Minute, Whole: 20 * time.Second,
		Conns: connlimit.Limits{Strangers: 16, PerSource: 4, PerOwner: 4, Deadline: 10 * time.Second, Users: 64, PerUser: 4}}
	ResourceMetrics = Bounds{What: "resource metrics on the node's address: the API server, pods", Header: 32 << 10, Begin: 5 * time.Second, Idle: 2 * time.Minute, Stall: time.Minute,
		Conns: connlimit.Limits{Strangers: 128, PerSource: 64, PerOwner: 64}}
	Kubelet = Bounds{What: "the kubelet API of a virtual node on the node's address: the API server, pods", Header: 64 << 10, Begin: 10 * time.Second, Idle: 2 * time.Minute, Stall: Patience,
		Conns: connlimit.Limits{Strangers: 2048, PerSource: 1024, PerOwner: 1024}}
	GatewayReady = Bounds{What: "readiness and streams of a gateway pod: pods of the campus, its kubelet, its API server", Header: 16 << 10, Begin: 5 * time.Second, Idle: 10 * time.Second, Stall: 10 * time.Second,
		Conns: connlimit.Limits{Strangers: 128, PerSource: 16, PerOwner: 16, Deadline: 15 * time.Second, Users: 16, PerUser: 16}}
	GatewayControl = Bounds{What: "the control of a gateway pod, on its loopback: home", Most: 64, Header: 32 << 10, Begin: 10 * time.Second, Idle: time.Minute, Stall: time.Minute}
	Host           = Bounds{What: "the socket of a virtual cluster: its control plane", Most: 1024, Header: 32 << 10, Begin: 10 * time.Second, Idle: 2 * time.Minute, Stall: Patience}
	// Kubernetes clients abandon a handshake after 10 s.
	Waiting = Bounds{What: "a virtual cluster that starts: users, pods", Header: 16 << 10, Begin: 4 * time.Second, Whole: 4 * time.Second}
	Images  = Bounds{What: "images of tenants, on the loopback: containerd", Most: 256, Header: 32 << 10, Begin: 10 * time.Second, Idle: 2 * time.Minute}
	Readers = Bounds{What: "`readers.sock`: the group `rivulet`", Most: 16, Header: 8 << 10, Begin: 5 * time.Second, Idle: 5 * time.Second, Whole: 30 * time.Second}
	Root    = Bounds{What: "`rivulet.sock`, `tunnel.sock`: root", Header: 64 << 10, Begin: 5 * time.Second}
)

// Table is all of them.
var Table = []*Bounds{&Strangers, &Peers, &Users, &Links, &Broker, &BrokerMetrics, &Console, &StatusPage, &Ingress, &Metrics, &ResourceMetrics, &Kubelet, &GatewayReady, &GatewayControl, &Host, &Waiting,
	&Images, &Readers, &Root}
