package tenantimages

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// endpoint is a location of a registry's images.
type endpoint struct {
	base         string // URL up to the repository
	own          bool   // configured by the owner
	tls          *tls.Config
	rewrite      map[string]string
	user, secret string
}

type login struct {
	Username, Password, Auth string
	IdentityToken            string `yaml:"identity_token"`
}

type registries struct {
	Mirrors map[string]struct {
		Endpoint []string
		Rewrite  map[string]string
	}
	Configs map[string]struct {
		Auth *login
		TLS  *struct {
			CA       string `yaml:"ca_file"`
			Cert     string `yaml:"cert_file"`
			Key      string `yaml:"key_file"`
			Insecure bool   `yaml:"insecure_skip_verify"`
		}
	}
}

// endpoints are those of a registry's host in order, as k3s configures them in containerd: its mirrors, then the
// registry itself. text is in k3s's form.
func endpoints(text, host string) (out []endpoint, err error) {
	var r registries
	if err := yaml.Unmarshal([]byte(text), &r); err != nil {
		return nil, fmt.Errorf("the settings of registries are not read: %w", err)
	}
	mirror, found := r.Mirrors[host]
	if !found {
		mirror = r.Mirrors["*"]
	}
	for _, at := range mirror.Endpoint {
		if !strings.Contains(at, "://") {
			at = "https://" + at
		}
		u, err := url.Parse(at)
		if err != nil || u.Host == "" || u.User != nil {
			continue
		}
		if strings.Trim(u.Path, "/") == "" {
			u.Path = "/v2"
		}
		e, err := r.endpoint(strings.TrimSuffix(u.String(), "/"), true, u.Host)
		if err != nil {
			return nil, err
		}
		e.rewrite = mirror.Rewrite
		out = append(out, e)
	}
	at := host
	if host == "docker.io" || host == "index.docker.io" {
		at = "registry-1.docker.io"
	}
	e, err := r.endpoint("https://"+at+"/v2", false, host, at)
	return append(out, e), err
}

// endpoint applies the owner's settings for one of the names.
func (r registries) endpoint(base string, own bool, names ...string) (endpoint, error) {
	e := endpoint{base: base, own: own}
	for _, n := range names {
		c, found := r.Configs[n]
		if !found {
			continue
		}
		e.own = true
		if c.Auth != nil {
			e.user, e.secret = c.Auth.Username, c.Auth.Password
			if c.Auth.IdentityToken != "" {
				e.user, e.secret = tokenUser, c.Auth.IdentityToken
			} else if raw, err := base64.StdEncoding.DecodeString(c.Auth.Auth); err == nil && len(raw) > 0 {
				e.user, e.secret, _ = strings.Cut(string(raw), ":")
			}
		}
		if c.TLS == nil {
			continue
		}
		e.tls = &tls.Config{InsecureSkipVerify: c.TLS.Insecure}
		if c.TLS.CA != "" {
			pem, err := os.ReadFile(c.TLS.CA)
			if err != nil {
				return e, err
			}
			if e.tls.RootCAs, err = x509.SystemCertPool(); err != nil {
				e.tls.RootCAs = x509.NewCertPool()
			}
			e.tls.RootCAs.AppendCertsFromPEM(pem)
		}
		if c.TLS.Cert != "" {
			pair, err := tls.LoadX509KeyPair(c.TLS.Cert, c.TLS.Key)
			if err != nil {
				return e, err
			}
			e.tls.Certificates = []tls.Certificate{pair}
		}
	}
	return e, nil
}

// transport is that of an endpoint of the owner, which may have any address.
func (e endpoint) transport() *http.Transport {
	t := transport((&net.Dialer{}).DialContext)
	t.TLSClientConfig = e.tls.Clone()
	return t
}

// rewritten is the repository's name at this endpoint.
func (e endpoint) rewritten(repository string) string {
	for _, pattern := range slices.Sorted(maps.Keys(e.rewrite)) {
		if re, err := regexp.Compile(pattern); err == nil && re.MatchString(repository) {
			return re.ReplaceAllString(repository, e.rewrite[pattern])
		}
	}
	return repository
}
