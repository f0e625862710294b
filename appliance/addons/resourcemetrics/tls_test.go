package resourcemetrics

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// ca signs certificates of clients.
type ca struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newCA(t *testing.T, name string) ca {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return ca{cert, key}
}

func (c ca) client(t *testing.T, name string) tls.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, c.cert, key.Public(), c.key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// Only the API server gets an answer, whatever headers a stranger sends.
func TestOnlyTheAPIServerIsLetIn(t *testing.T) {
	frontCA, otherCA := newCA(t, "front"), newCA(t, "other")
	file := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: frontCA.cert.Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	authority, err := newAuthority(serverName)
	if err != nil {
		t.Fatal(err)
	}
	source, _ := cluster()
	server := httptest.NewUnstartedServer(newHandler(source))
	server.TLS = authority.config(file)
	server.Config.ErrorLog = nil
	server.StartTLS()
	defer server.Close()

	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(authority.bundle) {
		t.Fatal("the bundle is no certificate")
	}
	for name, c := range map[string]struct {
		certs []tls.Certificate
		want  bool
	}{
		"the API server":                 {[]tls.Certificate{frontCA.client(t, frontProxy)}, true},
		"no certificate":                 {nil, false},
		"another name":                   {[]tls.Certificate{frontCA.client(t, "system:admin")}, false},
		"the name, of another authority": {[]tls.Certificate{otherCA.client(t, frontProxy)}, false},
	} {
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: serverName, Certificates: c.certs}}}
		r, err := http.NewRequest("GET", server.URL+base+"/nodes", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-Remote-User", "system:admin")
		r.Header.Set("X-Remote-Group", "system:masters")
		resp, err := client.Do(r)
		if err == nil {
			resp.Body.Close()
		}
		if got := err == nil && resp.StatusCode == 200; got != c.want {
			t.Errorf("%s: answered %v, %v", name, got, err)
		}
	}
}
