package stream

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"path/filepath"
	"sync"
	"time"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// Authority are the files of the authorities for the clients of virtual nodes' kubelet APIs, and for their serving
// certificates.
type Authority struct {
	// ClientCA has signed the client certificate of home's API server for kubelets.
	ClientCA string
	// ServerCA and ServerKey sign serving certificates; home's API server trusts them for its kubelets.
	ServerCA, ServerKey string
}

// EngineAuthority are the files of k3s in its server/tls folder.
func EngineAuthority(dir string) Authority {
	in := func(name string) string { return filepath.Join(dir, name) }
	return Authority{ClientCA: in("client-ca.crt"), ServerCA: in("server-ca.crt"), ServerKey: in("server-ca.key")}
}

// apiServer is the name in the client certificate of k3s's API server for kubelets.
const apiServer = "system:apiserver"

// validity of a serving certificate; it is replaced when a third is left.
const validity = 365 * 24 * time.Hour

// certificates makes the serving certificate with the engine's own authority, as k3s does for its kubelets. The files
// are read each time, so that rotated authorities apply.
type certificates struct {
	Authority
	ip netip.Addr

	mu      sync.Mutex
	current *tls.Certificate
}

func (c *certificates) config() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			clients, err := cert.NewPool(c.ClientCA)
			if err != nil {
				return nil, fmt.Errorf("offload: authority of the API server's certificate: %w", err)
			}
			return &tls.Config{
				MinVersion:     tls.VersionTLS12,
				NextProtos:     []string{"http/1.1"},        // every stream is an upgrade or a long answer
				ClientAuth:     tls.VerifyClientCertIfGiven, // see access
				ClientCAs:      clients,
				GetCertificate: c.get,
			}, nil
		},
		GetCertificate: c.get,
	}
}

func (c *certificates) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current != nil && time.Until(c.current.Leaf.NotAfter) > validity/3 {
		return c.current, nil
	}
	made, err := mint(c.Authority, c.ip, time.Now())
	if err != nil {
		return nil, err
	}
	c.current = made
	return made, nil
}

// mint makes a serving certificate for the address.
func mint(a Authority, ip netip.Addr, now time.Time) (*tls.Certificate, error) {
	authority, err := cert.CertsFromFile(a.ServerCA)
	if err != nil {
		return nil, fmt.Errorf("offload: the engine's server authority: %w", err)
	}
	loaded, err := keyutil.PrivateKeyFromFile(a.ServerKey)
	if err != nil {
		return nil, fmt.Errorf("offload: the engine's server authority: %w", err)
	}
	signer, ok := loaded.(crypto.Signer)
	if !ok {
		return nil, errors.New("offload: the key of the engine's server authority cannot sign")
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	// On a board without a clock the authority may begin in the future.
	from := now.Add(-time.Hour)
	if from.After(authority[0].NotBefore) {
		from = authority[0].NotBefore
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: "rivulet-virtual-node"},
		NotBefore:    from, NotAfter: now.Add(validity),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IPAddresses: []net.IP{ip.AsSlice()},
	}, authority[0], key.Public(), signer)
	if err != nil {
		return nil, fmt.Errorf("offload: sign the virtual node's certificate: %w", err)
	}
	made := &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
	for _, a := range authority {
		made.Certificate = append(made.Certificate, a.Raw)
	}
	made.Leaf, err = x509.ParseCertificate(der)
	return made, err
}
