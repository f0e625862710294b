package certs

import (
	"crypto/x509"
	"fmt"
	"path/filepath"
	"slices"
	"time"
)

const (
	// renewed is how long before the end of a certificate k3s renews it, at a start.
	renewed = 120 * 24 * time.Hour
	// early is how long before the end the engine is restarted for that.
	early = 30 * 24 * time.Hour
)

// Due returns why the running engine has to be restarted for its certificates, or "". A worker has only those of its
// agent.
func Due(dataDir string, now time.Time) (why string) {
	tls := filepath.Join(dataDir, "server", "tls")
	all := leaves(tls)
	agentLeaves(dataDir, all)
	if c, err := serving(tls); err == nil {
		all["dynamic-cert.json"] = c
	}
	var out []string
	for name, c := range all {
		switch {
		case now.Before(c.NotBefore):
			out = append(out, fmt.Sprintf("%s is valid from %s only", name, c.NotBefore.Format(time.DateOnly)))
		case now.After(c.NotAfter.Add(-early)):
			out = append(out, fmt.Sprintf("%s ends on %s", name, c.NotAfter.Format(time.DateOnly)))
		}
	}
	if len(out) == 0 {
		return ""
	}
	slices.Sort(out)
	if len(out) == 1 {
		return "certificate " + out[0]
	}
	return fmt.Sprintf("certificate %s, and %d more", out[0], len(out)-1)
}

// agentLeaves adds the certificates that k3s's agent fetches at its start. Folders below have files of containers' images.
func agentLeaves(dataDir string, to map[string]*x509.Certificate) {
	files, _ := filepath.Glob(filepath.Join(dataDir, "agent", "*.crt")) // the pattern is valid
	for _, path := range files {
		if c, err := readCertificate(path); err == nil && !c.IsCA {
			to[filepath.Join("agent", filepath.Base(path))] = c
		}
	}
}
