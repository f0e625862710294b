package webconsole

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"time"
)

const certificateNote = "console-certificate"

// keyPair is the stored form of the certificate, DER.
type keyPair struct {
	Key         []byte `json:"key"`
	Certificate []byte `json:"certificate"`
}

// certificate is self-signed, and stays the same until the device gets another name, so that a browser that was told to
// accept it does not ask again. No browser can verify it; its owner compares the fingerprint.
func certificate(s Store, names []string) (tls.Certificate, error) {
	var has keyPair
	if blob, err := s.Note(certificateNote); err != nil {
		return tls.Certificate{}, err
	} else if blob != nil {
		if err := json.Unmarshal(blob, &has); err != nil {
			return tls.Certificate{}, fmt.Errorf("the console's certificate is unreadable: %w", err)
		}
	}
	if key, err := x509.ParsePKCS8PrivateKey(has.Key); err == nil {
		leaf, err := x509.ParseCertificate(has.Certificate)
		if err == nil && slices.Equal(leaf.DNSNames, names) {
			return tls.Certificate{Certificate: [][]byte{has.Certificate}, PrivateKey: key, Leaf: leaf}, nil
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: names[0], Organization: []string{"Rivulet"}}, DNSNames: names,
		NotBefore: time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC), NotAfter: time.Date(2049, 12, 31, 23, 59, 59, 0, time.UTC), // the clock may be wrong
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, BasicConstraintsValid: true,
	}
	if has.Certificate, err = x509.CreateCertificate(rand.Reader, template, template, key.Public(), key); err != nil {
		return tls.Certificate{}, err
	}
	if has.Key, err = x509.MarshalPKCS8PrivateKey(key); err != nil {
		return tls.Certificate{}, err
	}
	blob, err := json.Marshal(has)
	if err == nil {
		err = s.PutNote(certificateNote, blob)
	}
	if err != nil {
		return tls.Certificate{}, err
	}
	leaf, err := x509.ParseCertificate(has.Certificate)
	return tls.Certificate{Certificate: [][]byte{has.Certificate}, PrivateKey: key, Leaf: leaf}, err
}

// fingerprint is the SHA-256 of a certificate as browsers show it.
func fingerprint(c tls.Certificate) string {
	sum := sha256.Sum256(c.Certificate[0])
	var out []string
	for _, b := range sum {
		out = append(out, strings.ToUpper(hex.EncodeToString([]byte{b})))
	}
	return strings.Join(out, ":")
}
