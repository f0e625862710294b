package api

import "time"

// MetricsPort is the port of the metrics for the LAN or for pods.
const MetricsPort = 7444

// MetricsRequest requests access to the metrics over the network: the body of POST /v1/metrics/access.
type MetricsRequest struct {
	// Name is for list and revoke.
	Name string `json:"name"`
	// Certificate is the client's, DER, self-signed; only its key is trusted. Without one the access is by token.
	Certificate []byte `json:"certificate,omitempty"`
}

// MetricsAccess is the access of one scraper.
type MetricsAccess struct {
	Name string    `json:"name"`
	By   string    `json:"by"` // token or certificate
	Made time.Time `json:"made"`
	// Used is the last scrape, From its address; zero if there was none since the start of the supervisor.
	Used time.Time `json:"used,omitzero"`
	From string    `json:"from,omitempty"`
}

// NewMetricsAccess is the answer to a MetricsRequest.
type NewMetricsAccess struct {
	MetricsAccess
	// Token is not stored, and returned this once.
	Token string `json:"token,omitempty"`
	// Device is the cluster's name, Setting the key metrics in force.
	Device  string `json:"device"`
	Setting string `json:"setting"`
	// Targets are addresses of the endpoint, the best first; ServerName and Authority (PEM) are those of its certificate.
	Targets    []string `json:"targets"`
	ServerName string   `json:"serverName"`
	Authority  []byte   `json:"authority"`
}

// MetricsAccesses is the answer of GET /v1/metrics/access.
type MetricsAccesses struct {
	Setting  string          `json:"setting"`
	Accesses []MetricsAccess `json:"accesses"`
}
