package ingress

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// secretOf makes a Secret with a certificate that is its own authority, for a day.
func secretOf(t testing.TB, name string, from time.Time, hosts ...string) *corev1.Secret {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), DNSNames: hosts, NotBefore: from.Add(-time.Hour), NotAfter: from.Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name), ResourceVersion: fmt.Sprint(time.Now().UnixNano())}, Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{corev1.TLSCertKey: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), corev1.TLSPrivateKeyKey: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})}}
}

func TestCertificates(t *testing.T) {
	s := newShop()
	for name, secret := range map[string]*corev1.Secret{
		"good": secretOf(t, "good", noon, "a.example", "*.wide.example"), "ended": secretOf(t, "ended", noon.Add(-48*time.Hour), "a.example"),
		"early": secretOf(t, "early", noon.Add(48*time.Hour), "a.example"), "other": secretOf(t, "other", noon, "b.example"),
		"empty": {}, "torn": {Data: map[string][]byte{corev1.TLSCertKey: []byte("x"), corev1.TLSPrivateKeyKey: []byte("y")}},
	} {
		s.secrets[secretName{"shop", name}] = secret
	}
	mixed := secretOf(t, "mixed", noon, "a.example")
	mixed.Data[corev1.TLSPrivateKeyKey] = secretOf(t, "x", noon, "a.example").Data[corev1.TLSPrivateKeyKey]
	s.secrets[secretName{"shop", "mixed"}] = mixed
	for _, c := range []struct{ tls, served, words string }{
		{`{hosts: [a.example], secretName: good}`, "a.example", ""},
		{`{hosts: ["*.wide.example"], secretName: good}`, "x.wide.example", ""},
		{`{secretName: good}`, "a.example", ""}, // all hosts of the Ingress
		{`{hosts: [a.example], secretName: ended}`, "a.example", "has ended"},
		{`{hosts: [a.example], secretName: early}`, "a.example", "begins at"},
		{`{hosts: [a.example], secretName: other}`, "a.example", "for other names"},
		{`{hosts: [a.example], secretName: empty}`, "", "is missing"},
		{`{hosts: [a.example], secretName: torn}`, "", "failed to find any PEM data"},
		{`{hosts: [a.example], secretName: mixed}`, "", "does not match"},
		{`{hosts: [a.example], secretName: none}`, "", "there is no Secret"},
		{`{hosts: [a.example]}`, "", "no certificate"},
	} {
		i := ingressOf("one", 1, "tls: ["+c.tls+"]\n"+rules("a.example", "Prefix", "/", webPort))
		table := build(admitted([]*source{i}), s.facts())
		if c.served != "" && table.certificate(c.served) == nil || c.served == "" && len(table.certs) > 0 {
			t.Errorf("%s: certificates for %v", c.tls, table.certs)
		}
		said := fmt.Sprint(i.found)
		if c.words == "" && len(i.found) > 0 || !strings.Contains(said, c.words) {
			t.Errorf("%s: %s, want %q", c.tls, said, c.words)
		}
	}
}

// A Secret is read once for each version, and forgotten when nobody names it.
func TestSecretsAreReadOnce(t *testing.T) {
	c, s := certificates{}, secretOf(t, "key", noon, "a.example")
	first, err := c.of(s)
	if err != nil {
		t.Fatal(err)
	}
	if again, _ := c.of(s); again != first {
		t.Error("read again")
	}
	next := secretOf(t, "key", noon, "a.example")
	next.ResourceVersion = "other"
	if other, _ := c.of(next); other == first {
		t.Error("an old certificate stays")
	}
	c.sweep()
	if c.sweep(); len(c) > 0 {
		t.Error("a key stays in memory that nobody names")
	}
}
