package api

import "time"

// KubeconfigRequest requests access to the Kubernetes API from the LAN: the body of POST /v1/kubeconfigs. The private
// key stays with the client.
type KubeconfigRequest struct {
	User string `json:"user"`
	// Certificate is self-signed by the key, DER. Only its key is trusted.
	Certificate []byte `json:"certificate,omitempty"`
	// For is the duration of the access, nanoseconds.
	For       time.Duration `json:"for"`
	Role      string        `json:"role"`
	Namespace string        `json:"namespace,omitempty"`
	// VCluster is the virtual cluster; empty: this cluster.
	VCluster string `json:"vcluster,omitempty"`
	// Link: the file is given once to the holder of a token. Token is the SHA-256 of it; there is no Certificate, because
	// the key is made when the link is used.
	Link  bool   `json:"link,omitempty"`
	Token []byte `json:"token,omitempty"`
	// Replace ends the user's earlier access.
	Replace bool `json:"replace,omitempty"`
}

// Kubeconfig is one user's access from the LAN.
type Kubeconfig struct {
	User      string    `json:"user"`
	Role      string    `json:"role"`
	Namespace string    `json:"namespace,omitempty"` // empty: the whole cluster
	VCluster  string    `json:"vcluster,omitempty"`  // empty: this cluster
	Made      time.Time `json:"made"`
	Expires   time.Time `json:"expires"`
	Revoked   time.Time `json:"revoked,omitzero"`
	// Link is until when a link gives the file; zero: there is none, or it was used.
	Link time.Time `json:"link,omitzero"`
	// State is unused as long as nobody has used its link, then active, expired or revoked.
	State string `json:"state"`
	// Connections are open now; Used is when the last one was opened, zero if none was since the start of the
	// supervisor.
	Connections int       `json:"connections"`
	Used        time.Time `json:"used,omitzero"`
}

// NewKubeconfig is the answer to a KubeconfigRequest: the input of the file.
type NewKubeconfig struct {
	Kubeconfig
	Cluster string `json:"cluster"` // its name
	// Servers are the addresses of the API, the best first.
	Servers []string `json:"servers"`
	// ServerName is the SNI name, Authority the trusted certificate, PEM.
	ServerName string `json:"serverName"`
	Authority  []byte `json:"authority"`
	// Pin is the SHA-256 of the public key that answers links, base64.
	Pin string `json:"pin,omitempty"`
	// Warning is a warning for the owner, with its cure; empty if there is none.
	Warning string `json:"warning,omitempty"`
}

// Kubeconfigs is the answer of GET /v1/kubeconfigs.
type Kubeconfigs struct {
	Kubeconfigs []Kubeconfig `json:"kubeconfigs"`
}
