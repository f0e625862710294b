package api

import "time"

// KubeconfigRequest asks for access to the Kubernetes API from the LAN: the body of
// POST /v1/kubeconfigs. The key stays with who asks.
type KubeconfigRequest struct {
	User string `json:"user"`
	// Certificate is self-signed by the key, DER. It is trusted for its key and nothing else.
	Certificate []byte `json:"certificate"`
	// For is how long it works, nanoseconds.
	For       time.Duration `json:"for"`
	Role      string        `json:"role"`
	Namespace string        `json:"namespace,omitempty"`
	// VCluster is the virtual cluster that it is for; empty: this cluster.
	VCluster string `json:"vcluster,omitempty"`
	// Link has the file given to whoever brings the token that the key was derived from, once.
	Link bool `json:"link,omitempty"`
	// Replace ends what the user had.
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
	// State is active, expired or revoked.
	State string `json:"state"`
	// Connections are open at this moment; Used is when one came last, zero if none has
	// since this device's supervisor began.
	Connections int       `json:"connections"`
	Used        time.Time `json:"used,omitzero"`
}

// NewKubeconfig is the answer to a KubeconfigRequest: what the file is made of.
type NewKubeconfig struct {
	Kubeconfig
	Cluster string `json:"cluster"` // its name
	// Servers are where the API is found, the best guess first.
	Servers []string `json:"servers"`
	// ServerName is what TLS asks for, Authority what it trusts, PEM.
	ServerName string `json:"serverName"`
	Authority  []byte `json:"authority"`
	// Pin is the SHA-256 of the public key by which links are answered, base64.
	Pin string `json:"pin,omitempty"`
	// Warning is what the owner should know, with its cure; empty if there is nothing.
	Warning string `json:"warning,omitempty"`
}

// Kubeconfigs is the answer of GET /v1/kubeconfigs.
type Kubeconfigs struct {
	Kubeconfigs []Kubeconfig `json:"kubeconfigs"`
}
