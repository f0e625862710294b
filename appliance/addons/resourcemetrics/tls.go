package resourcemetrics

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"time"

	"k8s.io/client-go/util/cert"
)

// frontProxy is the name in the proxy certificate of k3s's API server.
const frontProxy = "system:auth-proxy"

// authority is a certificate that lives as long as the process. Only this device's API server trusts it, by its
// registration, so it has no validity dates, and a wrong clock at boot has no effect.
type authority struct {
	certificate tls.Certificate
	bundle      []byte // PEM
}

func newAuthority(name string) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("metrics: key: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore:             time.Unix(0, 0),
		NotAfter:              time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC), // "no expiry" in RFC 5280
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true, IsCA: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("metrics: certificate: %w", err)
	}
	return &authority{
		certificate: tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key},
		bundle:      pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
	}, nil
}

// config accepts only the API server. It has authenticated and authorized the user: there is no further authorization.
func (a *authority) config(clientCA string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		// Read at each handshake, so that a rotated authority is used.
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			clients, err := cert.NewPool(clientCA)
			if err != nil {
				return nil, fmt.Errorf("metrics: authority of the API server's certificate: %w", err)
			}
			return &tls.Config{
				MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"},
				Certificates: []tls.Certificate{a.certificate},
				ClientAuth:   tls.RequireAndVerifyClientCert, ClientCAs: clients,
				VerifyConnection: func(s tls.ConnectionState) error {
					if name := s.PeerCertificates[0].Subject.CommonName; name != frontProxy {
						return fmt.Errorf("metrics: %q is not the API server", name)
					}
					return nil
				},
			}, nil
		},
		Certificates: []tls.Certificate{a.certificate},
	}
}
