package vcluster

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"

	"rivulet/appliance/engine/controlplane"
	"rivulet/appliance/engine/controlplane/roles"
	"rivulet/appliance/state/durable"
)

const (
	// leafLife is the validity of a certificate; at a start it is renewed if half of that has passed. Then a process
	// that runs is replaced.
	leafLife = 365 * 24 * time.Hour
	// adminLife is the validity of a certificate in a Secret, rootLife of one for this device's root.
	adminLife, rootLife = 30 * 24 * time.Hour, 24 * time.Hour
	// adminGroup has all rights inside, whatever RBAC an administrator changes there.
	adminGroup = "system:masters"
)

// Authorities, as k3s's, have no dates (see package engine/certs): a device may start with a wrong clock.
var (
	always = time.Unix(0, 0).UTC()
	never  = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)
)

// authority signs for one purpose. Only the supervisor has the keys of server-ca, client-ca and front-proxy-ca; the
// tenant has those of kubelet-ca, for the serving certificates of its virtual nodes, and of users-ca, for the users that
// its CertificateSigningRequests make.
type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
	pem  []byte
}

// pki creates and renews the certificates of a control plane. Only root reads secret; the tenant's group also reads
// tls.
type pki struct {
	secret, tls string
	gid         int
	now         time.Time
}

// write creates missing certificates and renews those with half their validity over. Host is the address for clients,
// service that of Service kubernetes.
func (p pki) write(host, service net.IP) error {
	for _, dir := range []string{p.secret, p.tls} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return diskErr(err)
		}
	}
	if err := errors.Join(os.Chmod(p.tls, 0o750), os.Chown(p.tls, 0, p.gid)); err != nil {
		return diskErr(err)
	}
	server, err := p.authority("server-ca", p.secret)
	if err != nil {
		return err
	}
	clients, err := p.authority("client-ca", p.secret)
	if err != nil {
		return err
	}
	kubelets, err := p.authority("kubelet-ca", p.tls)
	if err != nil {
		return err
	}
	users, err := p.authority("users-ca", p.tls)
	if err != nil {
		return err
	}
	proxies, err := p.authority("front-proxy-ca", p.secret)
	if err != nil {
		return err
	}
	names := []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "localhost"}
	inner, _, _ := net.SplitHostPort(controlplane.InnerAddress)
	return errors.Join(
		p.file("server-ca.crt", server.pem), p.file("client-ca.crt", slices.Concat(clients.pem, users.pem)), p.file("kubelet-ca.crt", kubelets.pem), p.file("front-proxy-ca.crt", proxies.pem),
		p.leaf(p.tls, "apiserver", leafLife, server, &x509.Certificate{
			Subject: pkix.Name{CommonName: "kube-apiserver"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
			DNSNames: names, IPAddresses: []net.IP{host, service, net.ParseIP(inner)},
		}),
		p.leaf(p.tls, "kubelet-client", leafLife, kubelets, client("system:apiserver", adminGroup)),
		p.leaf(p.secret, "admin", adminLife, clients, administrator()),
		p.leaf(p.tls, "control-plane", leafLife, clients, client("rivulet:control-plane", adminGroup)),
		p.leaf(p.tls, "front-proxy", leafLife, proxies, client(controlplane.FrontProxy)),
		p.accountKey(),
		p.controlPlane(server.pem),
	)
}

// admin renews the certificate of the object's Secret.
func (p pki) admin() error {
	clients, err := p.authority("client-ca", p.secret)
	if err != nil {
		return err
	}
	return p.leaf(p.secret, "admin", adminLife, clients, administrator())
}

func administrator() *x509.Certificate { return client("rivulet:object", roles.Group("admin")) }

// renewAt returns when half the validity of the first of a process's certificates has passed; zero: none can be read.
func (p pki) renewAt() (at time.Time) {
	files, _ := filepath.Glob(filepath.Join(p.tls, "*.crt")) // the pattern is valid
	for _, path := range files {
		c, err := cert.CertsFromFile(path)
		if err != nil || c[0].IsCA {
			continue
		}
		if half := c[0].NotAfter.Add(-leafLife / 2); at.IsZero() || half.Before(at) {
			at = half
		}
	}
	return at
}

func client(name string, groups ...string) *x509.Certificate {
	return &x509.Certificate{Subject: pkix.Name{CommonName: name, Organization: groups}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
}

// authority reads an authority, or creates it.
func (p pki) authority(name, dir string) (authority, error) {
	crt, key := filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key")
	if a, err := readPair(crt, key); err == nil {
		return a, nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return a, fmt.Errorf("vcluster: authority %s: %w; restore the folder from a backup, or delete the virtual cluster", name, err)
	}
	if _, err := os.Stat(crt); err == nil { // written last
		return authority{}, fmt.Errorf("vcluster: %s has no key; restore the folder from a backup, or delete the virtual cluster", crt)
	}
	signer, err := p.newKey(dir, name)
	if err != nil {
		return authority{}, err
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "rivulet-vcluster-" + name}, NotBefore: always, NotAfter: never,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, BasicConstraintsValid: true, IsCA: true,
	}
	raw, err := sign(template, template, signer.Public(), signer)
	if err != nil {
		return authority{}, err
	}
	if err := p.put(dir, name+".crt", raw); err != nil {
		return authority{}, err
	}
	return readPair(crt, key)
}

func readPair(crt, key string) (a authority, err error) {
	if a.pem, err = os.ReadFile(crt); err != nil {
		return a, err
	}
	k, err := keyutil.PrivateKeyFromFile(key)
	if err != nil {
		return a, err
	}
	block, _ := pem.Decode(a.pem)
	signer, ok := k.(crypto.Signer)
	if block == nil || !ok {
		return a, errors.New("it is damaged")
	}
	a.key = signer
	a.cert, err = x509.ParseCertificate(block.Bytes)
	return a, err
}

// leaf signs a certificate unless a valid one with enough time left exists.
func (p pki) leaf(dir, name string, life time.Duration, by authority, template *x509.Certificate) error {
	if old, err := readPair(filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key")); err == nil &&
		old.cert.CheckSignatureFrom(by.cert) == nil && p.now.Before(old.cert.NotAfter.Add(-life/2)) && p.now.After(old.cert.NotAfter.Add(-life-time.Hour)) &&
		old.cert.Subject.String() == template.Subject.String() && slices.EqualFunc(old.cert.IPAddresses, template.IPAddresses, net.IP.Equal) {
		return nil
	}
	key, err := p.newKey(dir, name)
	if err != nil {
		return err
	}
	template.NotBefore, template.NotAfter, template.KeyUsage = always, p.now.Add(life), x509.KeyUsageDigitalSignature
	raw, err := sign(template, by.cert, key.Public(), by.key)
	if err != nil {
		return err
	}
	return p.put(dir, name+".crt", raw)
}

// issue creates a client certificate and its key, PEM, without storing them.
func (p pki) issue(user, group string, until time.Time) (crt, key []byte, err error) {
	clients, err := p.authority("client-ca", p.secret)
	if err != nil {
		return nil, nil, err
	}
	signer, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	template := client(user, group)
	template.NotBefore, template.NotAfter, template.KeyUsage = always, until, x509.KeyUsageDigitalSignature
	if crt, err = sign(template, clients.cert, signer.Public(), clients.key); err != nil {
		return nil, nil, err
	}
	key, err = keyPEM(signer)
	return crt, key, err
}

func keyPEM(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), err
}

func sign(template, parent *x509.Certificate, public crypto.PublicKey, by crypto.Signer) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	template.SerialNumber = serial
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, by)
	if err != nil {
		return nil, fmt.Errorf("vcluster: sign %s: %w", template.Subject.CommonName, err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}

func (p pki) newKey(dir, name string) (crypto.Signer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	raw, err := keyPEM(key)
	if err != nil {
		return nil, err
	}
	return key, p.put(dir, name+".key", raw)
}

// accountKey creates the key that signs service account tokens. It is never replaced, because it verifies tokens in
// use.
func (p pki) accountKey() error {
	if _, err := os.Stat(filepath.Join(p.tls, "sa.pub")); err == nil {
		return nil
	}
	key, err := p.newKey(p.tls, "sa")
	if err != nil {
		return err
	}
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return err
	}
	return p.file("sa.pub", pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
}

// controlPlane writes the kubeconfig of the process's own parts.
func (p pki) controlPlane(ca []byte) error {
	raw, err := kubeconfigOf(p.tls, "control-plane", "inner", "https://"+controlplane.InnerAddress, ca)
	if err != nil {
		return err
	}
	return p.file("control-plane.kubeconfig", raw)
}

// kubeconfigOf returns a kubeconfig for the user whose certificate and key are in dir.
func kubeconfigOf(dir, user, name, server string, ca []byte) ([]byte, error) {
	crt, err := os.ReadFile(filepath.Join(dir, user+".crt"))
	if err != nil {
		return nil, diskErr(err)
	}
	key, err := os.ReadFile(filepath.Join(dir, user+".key"))
	if err != nil {
		return nil, diskErr(err)
	}
	return kubeconfig(name, server, ca, crt, key)
}

func kubeconfig(name, server string, ca, crt, key []byte) ([]byte, error) {
	c := clientcmdapi.NewConfig()
	c.Clusters[name] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: ca}
	c.AuthInfos[name] = &clientcmdapi.AuthInfo{ClientCertificateData: crt, ClientKeyData: key}
	c.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	c.CurrentContext = name
	return clientcmd.Write(*c)
}

func (p pki) file(name string, content []byte) error { return p.put(p.tls, name, content) }

// put writes a file: readable by the tenant's group in tls, otherwise by root only. Only root writes to both folders,
// so a tenant cannot place links in them.
func (p pki) put(dir, name string, content []byte) error {
	mode, gid := os.FileMode(0o600), 0
	if dir == p.tls {
		mode, gid = 0o640, p.gid
	}
	return writeFile(filepath.Join(dir, name), content, mode, gid)
}

// writeFile replaces a file so that a power cut leaves the old or the new one.
func writeFile(path string, content []byte, mode os.FileMode, gid int) error {
	err := durable.Replace(path, mode, func(f *os.File) error {
		_, err := f.Write(content)
		return durable.Cure(errors.Join(err, f.Chown(0, gid)))
	})
	if err != nil {
		return fmt.Errorf("vcluster: %w", err)
	}
	return nil
}

func diskErr(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("vcluster: %w; look at the disk (space, read-only mount)", err)
}
