package ingress

import (
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// certificates are parsed ones, by their Secret.
type certificates map[types.UID]*reading

type reading struct {
	version string
	cert    *tls.Certificate
	err     error
	used    bool // since the last sweep
}

// of reads the certificate of a Secret, once for each of its versions.
func (c certificates) of(s *corev1.Secret) (*tls.Certificate, error) {
	r := c[s.UID]
	if r == nil || r.version != s.ResourceVersion {
		r = &reading{version: s.ResourceVersion}
		r.cert, r.err = parse(s)
		c[s.UID] = r
	}
	r.used = true
	return r.cert, r.err
}

// sweep drops those that were not used since the last sweep.
func (c certificates) sweep() {
	for uid, r := range c {
		if !r.used {
			delete(c, uid)
		}
		r.used = false
	}
}

func parse(s *corev1.Secret) (*tls.Certificate, error) {
	cert, key := s.Data[corev1.TLSCertKey], s.Data[corev1.TLSPrivateKeyKey]
	if len(cert) == 0 || len(key) == 0 {
		return nil, fmt.Errorf("%s or %s is missing", corev1.TLSCertKey, corev1.TLSPrivateKeyKey)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, errors.New(strings.TrimPrefix(err.Error(), "tls: ")) // it describes the form, never the key
	}
	return &pair, nil
}

// fits returns the error that a browser will show for a certificate and a name.
func fits(c *tls.Certificate, name string, now time.Time) error {
	switch {
	case now.After(c.Leaf.NotAfter):
		return fmt.Errorf("it has ended at %s", c.Leaf.NotAfter.UTC().Format(time.RFC3339))
	case now.Before(c.Leaf.NotBefore):
		return fmt.Errorf("it begins at %s only", c.Leaf.NotBefore.UTC().Format(time.RFC3339))
	}
	if label, rest, ok := strings.Cut(name, "."); ok && label == "*" {
		name = "any." + rest
	}
	if err := c.Leaf.VerifyHostname(name); err != nil {
		return errors.New("it is for other names")
	}
	return nil
}
