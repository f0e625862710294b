// Package certs keeps the engine's certificates and leases valid after any change of the clock.
//
// It reads and writes below k3s/server/tls while no engine runs, and deletes datastore rows of another time.
// Authorities are created or renewed (with k3s's kind of key, or their own) with validity from 1970 to 9999. A
// certificate of k3s begins with its authority, so no change of the clock makes it "not yet valid"; it ends after a
// year, and k3s renews it at a start within the last 120 days. Other invalid certificates are removed, and k3s creates
// them again.
//
// Restart: all state is in the files. Files that cannot be read are left to k3s, whose error `rivulet status` shows at
// the stage engine.
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

// Datastore rows that contain what Prepare has made invalid.
const (
	// bootstrapKeys are k3s's copies of its authorities. k3s refuses to start if its files are newer; without the
	// copies it creates them from the files.
	bootstrapKeys = "/bootstrap/"
	// servingKey is k3s's copy of the certificate of port 6443, which it would prefer to a new one.
	servingKey = "/registry/secrets/kube-system/k3s-serving"
	leaseKeys  = "/registry/leases/"
)

// Datastore is the cluster's database while no engine has it open.
type Datastore interface {
	// Delete deletes the keys with a prefix for which match, unless it is nil, returns true; it returns how many. A
	// missing database is no error.
	Delete(prefix string, match func(key string, value []byte) bool) (int, error)
}

// Report has the results of Prepare.
type Report struct {
	Made    []string // authorities, before the first start
	Renewed []string // the same
	Removed []string // certificates that k3s creates again
	Leases  int      // dated in the future
}

// Empty reports whether there was nothing to do.
func (r Report) Empty() bool {
	return len(r.Made)+len(r.Renewed)+len(r.Removed)+r.Leases == 0
}

// Prepare makes everything valid at now. dataDir is k3s's; first reports that its datastore does not exist yet. It may
// be interrupted at any point and called again.
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
		// k3s creates the certificate again when it finds this file.
		if err := os.WriteFile(filepath.Join(tls, "dynamic-cert-regenerate"), nil, 0o600); err != nil {
			return r, fmt.Errorf("dates: %w; look at the disk (space, read-only mount)", err)
		}
		r.Removed = append(r.Removed, "dynamic-cert.json")
	}
	r.Leases, err = db.Delete(leaseKeys, func(_ string, value []byte) bool { return leaseOfTheFuture(value, now) })
	return r, err
}

// removeUnborn removes certificates that are not valid yet; k3s checks only their end.
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

// leaves returns the certificates below a folder that are not of an authority, by path, without those that cannot be
// read.
func leaves(dir string) map[string]*x509.Certificate {
	out := map[string]*x509.Certificate{}
	//nolint:errcheck // a folder that cannot be read has no certificates that we know of
	filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".crt" {
			return nil //nolint:nilerr // what cannot be read is no certificate that we know of
		}
		// The API server creates its loopback certificate at every start.
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

// serving reads the certificate of port 6443 as k3s stores it: a Secret in a file.
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

// servingStale reports whether it is not valid yet, or would be renewed some time after the start.
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
