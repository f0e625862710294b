package rpc

import (
	"crypto/tls"
	"fmt"
	"net/http"

	"rivulet/fabric/peer"
)

// ServerTLS requires a certificate of every client, with any key: each route decides permissions with PeerID.
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

// ClientTLS connects only to the cluster with the ID want. An empty want is for the first contact: it accepts any
// cluster, and the caller checks which one it is.
func ClientTLS(id Identity, want peer.ID) *tls.Config {
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{id.Certificate},
		// There is no authority: VerifyConnection compares the key.
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

// WrongPeerError: another cluster answered than the requested one.
type WrongPeerError struct{ Want, Got peer.ID }

func (e *WrongPeerError) Error() string {
	return fmt.Sprintf("rpc: cluster %s answered in place of %s", e.Got.Short(), e.Want.Short())
}

// PeerID returns the sender of the request, as its TLS certificate proves.
func PeerID(r *http.Request) (peer.ID, bool) {
	if r.TLS == nil {
		return "", false
	}
	id, err := peerOf(*r.TLS)
	return id, err == nil
}

// The handshake has proved that the other side has the key.
func peerOf(s tls.ConnectionState) (peer.ID, error) {
	if len(s.PeerCertificates) == 0 {
		return "", fmt.Errorf("rpc: no certificate")
	}
	return peer.IDFromCertificate(s.PeerCertificates[0])
}
