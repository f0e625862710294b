// Package certs sees to it that the engine's certificates and leases are valid at
// the time it is now, however the clock came to be there: a board that made its
// authorities in what is now the future, one that lay on a shelf for years, one
// whose time was set back.
//
// It reads and writes below k3s/server/tls, while no engine runs, and says which
// rows of the datastore are of another time. Authorities have no dates at all: they
// are made (with k3s's own kind of key, before its first start) or made anew (with
// the key they have) to be valid from 1970 to 9999. A certificate of k3s begins when
// its authority does, so no later change of the clock makes one "not yet valid"; it
// ends after a year, and k3s makes a new one at a start within the last 120 days.
// What is invalid all the same is removed, which makes k3s make it again.
//
// After a restart it finds everything in the files. What cannot be read it leaves
// to k3s, whose words `rivulet status` then shows at the stage engine.
package certs

import (
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// Rows of the datastore that hold what Prepare has made invalid.
const (
	// bootstrapKeys are k3s's copies of its authorities. k3s refuses to start when its
	// files are newer; without the copies it makes them from the files.
	bootstrapKeys = "/bootstrap/"
	// servingKey is k3s's copy of the certificate of port 6443, which it would prefer
	// to a new one.
	servingKey = "/registry/secrets/kube-system/k3s-serving"
	leaseKeys  = "/registry/leases/"
)

// Datastore is the cluster's database while no engine has it open.
type Datastore interface {
	// Delete deletes the keys that begin with prefix and for which match, unless it
	// is nil, says so; it returns how many. No database is no error.
	Delete(prefix string, match func(key string, value []byte) bool) (int, error)
}

// Report is what Prepare has done.
type Report struct {
	Made    []string // authorities, before the first start
	Renewed []string // authorities
	Removed []string // certificates that k3s makes again
	Leases  int      // of the future
}

// Empty reports whether there was nothing to do.
func (r Report) Empty() bool {
	return len(r.Made)+len(r.Renewed)+len(r.Removed)+r.Leases == 0
}

// Prepare makes everything valid at now. dataDir is k3s's own; first says that its
// datastore was never made. It may be cut short at any point and called again.
func Prepare(dataDir string, first bool, db Datastore, now time.Time) (r Report, err error) {
	tls := filepath.Join(dataDir, "server", "tls")
	if first {
		if r.Made, err = makeAuthorities(tls); err != nil {
			return r, err
		}
	}
	old, err := datedAuthorities(tls)
	if err != nil {
		return r, err
	}
	if len(old) > 0 {
		if _, err := db.Delete(bootstrapKeys, nil); err != nil {
			return r, err
		}
		for _, a := range old {
			if err := a.renew(); err != nil {
				return r, err
			}
			r.Renewed = append(r.Renewed, a.name)
		}
	}
	if r.Removed, err = removeUnborn(tls, now); err != nil {
		return r, err
	}
	if servingStale(tls, now) {
		if _, err := db.Delete(servingKey, nil); err != nil {
			return r, err
		}
		// k3s makes the certificate anew when it finds this file.
		if err := os.WriteFile(filepath.Join(tls, "dynamic-cert-regenerate"), nil, 0o600); err != nil {
			return r, fmt.Errorf("dates: %w; look at the disk (space, read-only mount)", err)
		}
		r.Removed = append(r.Removed, "dynamic-cert.json")
	}
	r.Leases, err = db.Delete(leaseKeys, func(_ string, value []byte) bool { return leaseOfTheFuture(value, now) })
	return r, err
}

// removeUnborn removes certificates that are not valid yet; k3s looks only at their end.
func removeUnborn(tls string, now time.Time) (removed []string, err error) {
	for name, c := range leaves(tls) {
		if now.Before(c.NotBefore) {
			if err := os.Remove(filepath.Join(tls, name)); err != nil {
				return removed, fmt.Errorf("dates: %w; look at the disk (space, read-only mount)", err)
			}
			removed = append(removed, name)
		}
	}
	return removed, nil
}

// leaves are the certificates below a folder that are no authority's, by their
// paths. Those that cannot be read are left out.
func leaves(dir string) map[string]*x509.Certificate {
	out := map[string]*x509.Certificate{}
	//nolint:errcheck // a folder that cannot be read has no certificates that we know of
	filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".crt" {
			return nil //nolint:nilerr // what cannot be read is no certificate that we know of
		}
		// The API server makes its own loopback certificate at every start.
		if filepath.Base(filepath.Dir(path)) == "temporary-certs" {
			return nil
		}
		if c, err := readCertificate(path); err == nil && !c.IsCA {
			name, _ := filepath.Rel(dir, path)
			out[name] = c
		}
		return nil
	})
	return out
}

// serving is the certificate of port 6443 as k3s keeps it: a Secret in a file.
func serving(tls string) (*x509.Certificate, error) {
	raw, err := os.ReadFile(filepath.Join(tls, "dynamic-cert.json"))
	if err != nil {
		return nil, err
	}
	var secret struct {
		Data map[string][]byte `json:"data"`
	}
	if err := json.Unmarshal(raw, &secret); err != nil {
		return nil, err
	}
	return parseFirst(secret.Data["tls.crt"])
}

// servingStale reports whether it is not valid yet, or would be renewed some time
// after the start.
func servingStale(tls string, now time.Time) bool {
	c, err := serving(tls)
	return err == nil && (now.Before(c.NotBefore) || now.After(c.NotAfter.Add(-renewed)))
}

func readCertificate(path string) (*x509.Certificate, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return parseFirst(raw)
}

// parseFirst reads the first certificate of a chain.
func parseFirst(raw []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(raw)
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, errors.New("dates: no certificate")
	}
	return x509.ParseCertificate(block.Bytes)
}
