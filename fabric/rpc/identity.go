// Package rpc is the transport between clusters: HTTP and JSON over mutual TLS 1.3, where a certificate is trusted for
// the ID of its key only. Dates, names and authorities do not count, so a board whose clock is at 1970 can still reach
// its peers.
//
// It reads and writes no state. A message that is too long, too slow or invalid is answered with an Error.
package rpc

import (
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"time"

	"rivulet/fabric/peer"
)

// Identity is a cluster's proof of identity.
type Identity struct {
	ID          peer.ID
	Name        string // for display
	Certificate tls.Certificate
	CertPEM     []byte
	KeyPEM      []byte
}

var (
	notBefore = time.Unix(0, 0).UTC()
	notAfter  = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC) // RFC 5280, 4.1.2.5: no expiry
)

// NewIdentity makes the identity of the cluster that owns the key. The certificate depends on the key alone and is
// always the same, byte for byte. It serves as client and as server certificate and, under the ID as server name, as
// its own root.
func NewIdentity(key ed25519.PrivateKey, name string) (Identity, error) {
	if len(key) != ed25519.PrivateKeySize {
		return Identity{}, fmt.Errorf("rpc: the identity key has %d bytes, want %d: restore state.db from a backup or move it away", len(key), ed25519.PrivateKeySize)
	}
	id := peer.IDFromKey(key.Public().(ed25519.PublicKey))
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: string(id)},
		DNSNames:              []string{string(id)},
		NotBefore:             notBefore,
		NotAfter:              notAfter,
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
	}
	// Ed25519 signatures take no randomness.
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return Identity{}, fmt.Errorf("rpc: make certificate: %w", err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return Identity{}, fmt.Errorf("rpc: read back certificate: %w", err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return Identity{}, fmt.Errorf("rpc: encode key: %w", err)
	}
	return Identity{
		ID:          id,
		Name:        name,
		Certificate: tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf},
		CertPEM:     CertificatePEM(der),
		KeyPEM:      pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}),
	}, nil
}

// ServerCertificate is a certificate for clients that pin it: self-signed by the key, the same each time for an Ed25519
// key. Like that of peers it does not expire.
func ServerCertificate(key crypto.Signer, name string) (tls.Certificate, error) {
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Unix(0, 0).UTC(), NotAfter: time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}

// CertificatePEM encodes a certificate kept as DER.
func CertificatePEM(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
