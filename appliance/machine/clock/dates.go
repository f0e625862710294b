package clock

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"time"

	"golang.org/x/net/http/httpproxy"

	"rivulet/fabric/changes"
)

// Registries are asked for the time where no time service and no peer tells it: each has another operator, and most
// devices pull from some of them anyway.
var Registries = []string{"registry-1.docker.io", "ghcr.io", "quay.io", "registry.k8s.io"}

// Dates are the hosts whose answers over HTTPS have the time.
type Dates struct {
	// Hosts are of one operator each; none: nobody is asked.
	Hosts []string
	// Roots are the authorities of their certificates; nil: the system's.
	Roots *x509.CertPool
}

const (
	// queryAfter is how long a time service or a peer may take before registries are asked, queryAgain the wait after answers
	// that do not suffice, queryNext after others.
	queryAfter, queryAgain, queryNext = 2 * time.Minute, 10 * time.Minute, 24 * time.Hour
	// dateFresh is how long a date is valid: clocks of boards err by seconds a day.
	dateFresh = queryNext + time.Hour
	// queryTime bounds a request, and so the error of a date.
	queryTime = 20 * time.Second
)

// query asks the registries while nothing better is known, until ctx ends.
func (c *Clock) query(ctx context.Context) {
	for wait := queryAfter; len(c.cfg.Dates.Hosts) > 0; {
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		if wait = queryAgain; c.lost() && c.queryAll(ctx) {
			wait = queryNext
		}
	}
}

// lost reports whether neither a time service nor peers tell the time, and the clock can be set.
func (c *Clock) lost() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, names, _ := c.peers.now(c.sys.Boot(), c.floor)
	return !c.disc.Synchronized && len(names) == 0 && c.notSet == nil
}

// queryAll asks all hosts at once, and reports whether they agree on a time.
func (c *Clock) queryAll(ctx context.Context) bool {
	var wg sync.WaitGroup
	for _, host := range c.cfg.Dates.Hosts {
		wg.Go(func() {
			s, err := c.cfg.Dates.read(ctx, c.sys, host)
			c.mu.Lock()
			defer c.mu.Unlock()
			if delete(c.dates, host); err != nil {
				c.log.Debug("a registry does not tell the time", "host", host, "err", err)
				return
			}
			c.dates[host] = s
		})
	}
	wg.Wait()
	changes.Poke(c.received)
	c.mu.Lock()
	defer c.mu.Unlock()
	_, names, _ := c.dates.date(c.sys.Boot(), c.floor)
	return len(names) > 0
}

// read returns the time by an answer of a host. What is known of the time is not used: the certificate has to be valid at
// the time that the answer says. So the owner of an old key whose certificate has ended can tell no later time than its
// end, and with an end before the floor none at all.
func (d Dates) read(ctx context.Context, sys System, host string) (sample, error) {
	ctx, cancel := context.WithTimeout(ctx, queryTime)
	defer cancel()
	proxy := httpproxy.FromEnvironment().ProxyFunc()
	transport := &http.Transport{
		Proxy: func(r *http.Request) (*url.URL, error) { return proxy(r.URL) }, DisableKeepAlives: true, MaxResponseHeaderBytes: 64 << 10,
		TLSClientConfig: &tls.Config{
			MinVersion:         tls.VersionTLS12,
			InsecureSkipVerify: true, // VerifyConnection checks all but the dates, also of a proxy
			VerifyConnection: func(s tls.ConnectionState) error {
				return d.verify(s, s.ServerName, s.PeerCertificates[0].NotBefore)
			},
		},
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodHead, "https://"+host+"/v2/", nil)
	if err != nil {
		return sample{}, err
	}
	begun := sys.Boot()
	resp, err := transport.RoundTrip(r) // no redirect to another host
	if err != nil {
		return sample{}, err
	}
	resp.Body.Close()
	took := sys.Boot() - begun
	date, err := http.ParseTime(resp.Header.Get("Date"))
	switch {
	case err != nil:
		return sample{}, err
	case resp.Header.Get("Age") != "":
		return sample{}, errors.New("the answer is from a cache")
	case resp.TLS == nil:
		return sample{}, errors.New("the answer did not come by TLS")
	}
	if err := d.verify(*resp.TLS, r.URL.Hostname(), date); err != nil {
		return sample{}, fmt.Errorf("its date is %s: %w", date, err)
	}
	return sample{name: host, synchronized: true, bootTime: date.Add(took/2 - begun - took), at: begun + took, roundTrip: took}, nil
}

// verify checks chain and name of a certificate, all of it valid at a time.
func (d Dates) verify(s tls.ConnectionState, name string, at time.Time) error {
	if name == "" {
		return errors.New("the certificate of an address cannot be checked; give the proxy by its name (proxy.url)")
	}
	rest := x509.NewCertPool()
	for _, c := range s.PeerCertificates[1:] {
		rest.AddCert(c)
	}
	_, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{DNSName: name, Roots: d.Roots, Intermediates: rest, CurrentTime: at})
	return err
}

// date returns the time by registries, and their names: of two and more, the majority, two at least.
func (p peers) date(boot time.Duration, f floor) (now time.Time, names []string, why string) {
	var known []sample
	for _, s := range p {
		if boot-s.at <= dateFresh && f.admits(s.bootTime.Add(boot)) {
			known = append(known, s)
		}
	}
	if len(known) < 2 {
		return time.Time{}, nil, ""
	}
	return agreed(known, boot, "registries")
}
