package users

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base32"
	"encoding/pem"
	"fmt"
	"math/big"
	"strings"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"rivulet/appliance/api"
)

// Certificate is self-signed by a user's key, DER: only the key is trusted.
func Certificate(key *ecdsa.PrivateKey, user string, end time.Time) ([]byte, error) {
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: user, Organization: []string{"rivulet"}},
		NotBefore: time.Unix(0, 0).UTC(), NotAfter: end,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	return x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
}

// File is the kubeconfig of a user with that key; its server is the first one.
func File(made api.NewKubeconfig, key *ecdsa.PrivateKey) ([]byte, error) {
	certificate, err := Certificate(key, made.User, made.Expires)
	if err != nil {
		return nil, err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	name, user := made.Cluster, made.User
	if made.VCluster != "" { // files of several clusters are often merged
		name, user = made.VCluster+"@"+made.Cluster, made.User+"@"+made.VCluster+"@"+made.Cluster
	}
	out := clientcmdapi.NewConfig()
	out.Clusters[name] = &clientcmdapi.Cluster{Server: made.Servers[0], TLSServerName: made.ServerName, CertificateAuthorityData: made.Authority}
	out.AuthInfos[user] = &clientcmdapi.AuthInfo{
		ClientCertificateData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate}),
		ClientKeyData:         pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}),
	}
	out.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: user, Namespace: made.Namespace}
	out.CurrentContext = name
	return clientcmd.Write(*out)
}

// A link has a token: 128 bits, in letters and digits of any case. It permits the download, once, and nothing else: the
// device stores its hash, and makes the user's key when the link is used.
const tokenBytes = 16

var tokens = base32.StdEncoding.WithPadding(base32.NoPadding)

// NewToken returns a random token, and the hash that the device stores.
func NewToken() (token string, hash []byte) {
	raw := make([]byte, tokenBytes)
	_, _ = rand.Read(raw) // it cannot fail
	sum := sha256.Sum256(raw)
	return strings.ToLower(tokens.EncodeToString(raw)), sum[:]
}

// tokenHash returns the hash of a token; ok is false if the text is not a token.
func tokenHash(token string) (hash []byte, ok bool) {
	raw, err := tokens.DecodeString(strings.ToUpper(token))
	if err != nil || len(raw) != tokenBytes {
		return nil, false
	}
	sum := sha256.Sum256(raw)
	return sum[:], true
}

// NewKey makes a user's key.
func NewKey() (*ecdsa.PrivateKey, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) }

// derived derives a P-256 key from a secret for a purpose.
func derived(secret []byte, purpose string) (*ecdsa.PrivateKey, error) {
	for n := 0; ; n++ { // one of 2^32 numbers is not on the curve
		d, err := hkdf.Key(sha256.New, secret, nil, fmt.Sprintf("%s %d", purpose, n), 32)
		if err != nil {
			return nil, err
		}
		if key, err := ecdsa.ParseRawPrivateKey(elliptic.P256(), d); err == nil {
			return key, nil
		}
	}
}
