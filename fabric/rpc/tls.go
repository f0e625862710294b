package rpc

import (
	"crypto/tls"
	"fmt"
	"net/http"

	"rivulet/fabric/peer"
)

// ServerTLS demands a certificate of every client, whoever it is: who may do
// what is decided by route, with PeerID.
func ServerTLS(id Identity) *tls.Config {
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{id.Certificate},
		ClientAuth:   tls.RequireAnyClientCert,
		VerifyConnection: func(s tls.ConnectionState) error {
			_, err := peerOf(s)
			return err
		},
	}
}

// ClientTLS speaks only to the cluster with the ID want. An empty want is for the
// first contact: any cluster will do, and the caller looks at who it was.
func ClientTLS(id Identity, want peer.ID) *tls.Config {
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{id.Certificate},
		// No authority vouches for a cluster: VerifyConnection compares the key.
		InsecureSkipVerify: true,
		VerifyConnection: func(s tls.ConnectionState) error {
			got, err := peerOf(s)
			if err != nil {
				return err
			}
			if want != "" && got != want {
				return &WrongPeerError{Want: want, Got: got}
			}
			return nil
		},
	}
}

// WrongPeerError says that another cluster answered than the one asked for.
type WrongPeerError struct{ Want, Got peer.ID }

func (e *WrongPeerError) Error() string {
	return fmt.Sprintf("rpc: cluster %s answered in place of %s", e.Got.Short(), e.Want.Short())
}

// PeerID returns who sent the request, as its TLS certificate proves.
func PeerID(r *http.Request) (peer.ID, bool) {
	if r.TLS == nil {
		return "", false
	}
	id, err := peerOf(*r.TLS)
	return id, err == nil
}

// The handshake itself has proved that the other side holds the key.
func peerOf(s tls.ConnectionState) (peer.ID, error) {
	if len(s.PeerCertificates) == 0 {
		return "", fmt.Errorf("rpc: no certificate")
	}
	return peer.IDFromCertificate(s.PeerCertificates[0])
}
