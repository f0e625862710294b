package certs

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/util/keyutil"

	"rivulet/appliance/state/durable"
)

// The validity of an authority, which is unlimited: certificates of fabric/rpc have the same.
var (
	always = time.Unix(0, 0).UTC()
	never  = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC) // RFC 5280, 4.1.2.5: no expiry
)

// names are the files of k3s's authorities in server/tls, without .crt and .key.
var names = []string{"server-ca", "client-ca", "request-header-ca", "etcd/server-ca", "etcd/peer-ca"}

// authority is a certificate and a key in two files.
type authority struct {
	name, path string // without .crt and .key
	cert       *x509.Certificate
	key        crypto.Signer
}

// makeAuthorities creates missing authorities before the first start of k3s, which would give them dates.
func makeAuthorities(tls string) (made []string, err error) {
	for _, name := range names {
		path := filepath.Join(tls, name)
		if exists(path+".crt") || exists(path+".key") {
			continue // k3s or an operator created it; see renew
		}
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return made, fmt.Errorf("dates: %w", err)
		}
		der, err := x509.MarshalECPrivateKey(key)
		if err != nil {
			return made, fmt.Errorf("dates: %w", err)
		}
		point, err := key.PublicKey.Bytes()
		if err != nil {
			return made, fmt.Errorf("dates: %w", err)
		}
		sum := sha256.Sum256(point)
		a := authority{name: name, path: path, key: key, cert: &x509.Certificate{
			// The same as k3s's, but with a key ID that differs between clusters.
			Subject:               pkix.Name{CommonName: fmt.Sprintf("rivulet-%s@%x", filepath.Base(name), sum[:4])},
			SubjectKeyId:          sum[:20],
			KeyUsage:              x509.KeyUsageKeyEncipherment | x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
			BasicConstraintsValid: true,
			IsCA:                  true,
		}}
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return made, fmt.Errorf("dates: %w; look at the disk (space, read-only mount)", err)
		}
		// The certificate first: for a key without one k3s creates a certificate with dates.
		if err := a.renew(); err != nil {
			return made, err
		}
		if err := replace(path+".key", pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})); err != nil {
			return made, err
		}
		made = append(made, name)
	}
	return made, nil
}

// datedAuthorities are the authorities that k3s created, valid for ten years from its first start. Those signed by
// another authority are left to their owner.
func datedAuthorities(tls string) (out []authority, err error) {
	for _, name := range names {
		a := authority{name: name, path: filepath.Join(tls, name)}
		raw, err := os.ReadFile(a.path + ".crt")
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("dates: %w; look at the disk", err)
		}
		if a.cert, err = parseFirst(raw); err != nil {
			continue // k3s reports what is wrong with it
		}
		dated := a.cert.NotBefore.After(always) || a.cert.NotAfter.Before(never)
		if !dated || !bytes.Equal(a.cert.RawIssuer, a.cert.RawSubject) || bytes.Count(raw, []byte("BEGIN CERTIFICATE")) != 1 {
			continue
		}
		key, err := keyutil.PrivateKeyFromFile(a.path + ".key")
		if err != nil {
			continue
		}
		var ok bool
		if a.key, ok = key.(crypto.Signer); ok && samePublic(a.key.Public(), a.cert.PublicKey) {
			out = append(out, a)
		}
	}
	return out, nil
}

func samePublic(a, b crypto.PublicKey) bool {
	k, ok := a.(interface{ Equal(crypto.PublicKey) bool })
	return ok && k.Equal(b)
}

// renew writes the certificate without dates. Key, name and key identifier stay, so that certificates signed by the
// authority, and clients that trust it, need no change.
func (a authority) renew() error {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return fmt.Errorf("dates: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: a.cert.Subject, RawSubject: a.cert.RawSubject, SubjectKeyId: a.cert.SubjectKeyId,
		NotBefore: always, NotAfter: never,
		KeyUsage: a.cert.KeyUsage, BasicConstraintsValid: true, IsCA: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, a.key.Public(), a.key)
	if err != nil {
		return fmt.Errorf("dates: authority %s: %w", a.name, err)
	}
	return replace(a.path+".crt", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

func replace(path string, content []byte) error {
	if err := durable.Write(path, content, 0o600); err != nil {
		return fmt.Errorf("dates: %w", err)
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
