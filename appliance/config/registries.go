package config

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"
)

// OwnRegistries is a file in k3s's form that a user may have written; it is read
// only where the configuration says nothing of registries.
const OwnRegistries = "/etc/rivulet/registries.yaml"

// Registries are mirrors of image registries and how to log in to them, in the
// words of k3s's registries.yaml, so that such a file can be put below the key as it is.
type Registries struct {
	Mirrors map[string]Mirror   `yaml:"mirrors,omitempty" json:"mirrors,omitempty"`
	Configs map[string]Registry `yaml:"configs,omitempty" json:"configs,omitempty"`
}

// Mirror is where images of one registry are looked for first.
type Mirror struct {
	Endpoint []string          `yaml:"endpoint,omitempty,flow" json:"endpoint,omitempty"`
	Rewrite  map[string]string `yaml:"rewrite,omitempty" json:"rewrite,omitempty"`
}

// Registry is how one endpoint is spoken to.
type Registry struct {
	Auth *Auth `yaml:"auth,omitempty" json:"auth,omitempty"`
	TLS  *TLS  `yaml:"tls,omitempty" json:"tls,omitempty"`
	// Share lets images be fetched for peers, too, with what is above. k3s does not know it.
	Share bool `yaml:"share,omitempty" json:"share,omitempty"`
}

// Auth is how to log in.
type Auth struct {
	Username      string `yaml:"username,omitempty" json:"username,omitempty"`
	Password      Secret `yaml:"password,omitempty" json:"password,omitempty"`
	Auth          Secret `yaml:"auth,omitempty" json:"auth,omitempty"`
	IdentityToken Secret `yaml:"identity_token,omitempty" json:"identity_token,omitempty"`
}

// TLS is what to trust, and what to show.
type TLS struct {
	CAFile             string `yaml:"ca_file,omitempty" json:"ca_file,omitempty"`
	CertFile           string `yaml:"cert_file,omitempty" json:"cert_file,omitempty"`
	KeyFile            string `yaml:"key_file,omitempty" json:"key_file,omitempty"`
	InsecureSkipVerify bool   `yaml:"insecure_skip_verify,omitempty" json:"insecure_skip_verify,omitempty"`
}

// Empty reports whether nothing is set.
func (r Registries) Empty() bool { return len(r.Mirrors) == 0 && len(r.Configs) == 0 }

// K3s is the file that k3s reads, secrets and all; empty if nothing is set.
func (r Registries) K3s() string {
	if r.Empty() {
		return ""
	}
	type auth struct {
		Username      string `yaml:"username,omitempty"`
		Password      string `yaml:"password,omitempty"`
		Auth          string `yaml:"auth,omitempty"`
		IdentityToken string `yaml:"identity_token,omitempty"`
	}
	type registry struct {
		Auth *auth `yaml:"auth,omitempty"`
		TLS  *TLS  `yaml:"tls,omitempty"`
	}
	configs := map[string]registry{}
	for name, c := range r.Configs {
		out := registry{TLS: c.TLS}
		if c.Auth != nil {
			out.Auth = &auth{c.Auth.Username, c.Auth.Password.Reveal(), c.Auth.Auth.Reveal(), c.Auth.IdentityToken.Reveal()}
		}
		configs[name] = out
	}
	text, err := yaml.Marshal(map[string]any{"mirrors": r.Mirrors, "configs": configs})
	if err != nil {
		panic(err) // maps of strings always marshal
	}
	return "# Written by rivulet out of its configuration; changes here are lost.\n" + string(text)
}

// InForce is K3s, or, where nothing is set, what OwnRegistries has: k3s reads that itself.
// One that is unreadable has the error for its content, which differs from all others.
func (r Registries) InForce() (text, own string) {
	if text = r.K3s(); text != "" {
		return text, ""
	}
	raw, err := os.ReadFile(OwnRegistries)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err.Error()
	}
	return "", string(raw)
}

func (d *decoder) registries(n *yaml.Node, to *Registries) {
	d.group(n, "registries", "registries: {mirrors: {docker.io: {endpoint: [\"https://mirror.example\"]}}}",
		field{"mirrors", func(n *yaml.Node) {
			to.Mirrors = map[string]Mirror{}
			d.named(n, "registries.mirrors", "docker.io: {endpoint: [\"https://mirror.example\"]}", func(name, path string, n *yaml.Node) {
				to.Mirrors[name] = d.mirror(n, path)
			})
		}},
		field{"configs", func(n *yaml.Node) {
			to.Configs = map[string]Registry{}
			d.named(n, "registries.configs", "mirror.example: {auth: {username: x, password: y}}", func(name, path string, n *yaml.Node) {
				to.Configs[name] = d.registry(n, path)
			})
		}},
	)
}

var registryForm = regexp.MustCompile(`^(\*|[A-Za-z0-9][A-Za-z0-9.-]*(:[0-9]{1,5})?|\[[0-9A-Fa-f:]+\](:[0-9]{1,5})?)$`)

// named reads a mapping from registries' names.
func (d *decoder) named(n *yaml.Node, path, example string, read func(name, path string, n *yaml.Node)) {
	d.pairs(n, path, example, func(key, value *yaml.Node) {
		if !registryForm.MatchString(key.Value) {
			d.problem(key, path, "write a host name without https:// and path, for example docker.io or mirror.example:5000", "%.60q is not the name of a registry", key.Value)
			return
		}
		d.found(n, path)
		read(key.Value, join(path, key.Value), value)
	})
}

func (d *decoder) mirror(n *yaml.Node, path string) (m Mirror) {
	d.group(n, path, "{endpoint: [\"https://mirror.example\"]}",
		field{"endpoint", func(n *yaml.Node) {
			d.list(n, path+".endpoint", "[\"https://mirror.example\"]", func(_ int, n *yaml.Node) {
				d.text(n, path+".endpoint", func(s string) {
					if err := checkEndpoint(s); err != nil {
						d.reject(n, path+".endpoint", err)
						return
					}
					m.Endpoint = append(m.Endpoint, s)
				})
			})
		}},
		field{"rewrite", func(n *yaml.Node) {
			m.Rewrite = map[string]string{}
			d.pairs(n, path+".rewrite", "\"^library/(.*)\": \"mirror/$1\"", func(key, value *yaml.Node) {
				if _, err := regexp.Compile(key.Value); err != nil {
					d.problem(key, path+".rewrite", "see https://pkg.go.dev/regexp/syntax", "%.60q is not a regular expression", key.Value)
					return
				}
				d.text(value, path+".rewrite", func(s string) { m.Rewrite[key.Value] = s })
			})
		}},
	)
	return m
}

// checkEndpoint never says what it was given: it may hold a password.
func checkEndpoint(s string) error {
	u, err := url.Parse(s)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return fmt.Errorf("this is not a URL of a registry; write for example https://mirror.example:5000")
	case u.User != nil:
		return fmt.Errorf("a user or password in the URL; put them below registries.configs.%s.auth", u.Host)
	case u.RawQuery != "" || u.Fragment != "":
		return fmt.Errorf("a ? or # in the URL; write scheme, host, port and path only")
	}
	return nil
}

func (d *decoder) registry(n *yaml.Node, path string) (r Registry) {
	d.group(n, path, "{auth: {username: x, password: y}}",
		field{"auth", func(n *yaml.Node) {
			r.Auth = &Auth{}
			secret := func(key string, to *Secret) field {
				return field{key, func(n *yaml.Node) { d.text(n, path+".auth."+key, func(s string) { *to = Secret(s) }) }}
			}
			d.group(n, path+".auth", "{username: x, password: y}",
				field{"username", func(n *yaml.Node) { d.text(n, path+".auth.username", func(s string) { r.Auth.Username = s }) }},
				secret("password", &r.Auth.Password), secret("auth", &r.Auth.Auth), secret("identity_token", &r.Auth.IdentityToken))
		}},
		field{"tls", func(n *yaml.Node) {
			r.TLS = &TLS{}
			file := func(key string, to *string) field {
				return field{key, func(n *yaml.Node) {
					d.checked(n, path+".tls."+key, to, checkPath)
					if *to == "" || !d.Files {
						return
					}
					if _, _, err := read(*to); err != nil {
						d.problem(n, path+".tls."+key, "put the PEM file there", "%s.tls.%s: %s: %s", path, key, *to, fileError(err))
					}
				}}
			}
			d.group(n, path+".tls", "{ca_file: /etc/rivulet/ca.pem}",
				file("ca_file", &r.TLS.CAFile), file("cert_file", &r.TLS.CertFile), file("key_file", &r.TLS.KeyFile),
				field{"insecure_skip_verify", func(n *yaml.Node) {
					d.truth(n, path+".tls.insecure_skip_verify", func(v bool) { r.TLS.InsecureSkipVerify = v })
				}})
			if (r.TLS.CertFile == "") != (r.TLS.KeyFile == "") {
				d.problem(n, path+".tls", "give cert_file and key_file, or none of them", "a certificate needs its key, and a key its certificate")
			}
		}},
		field{"share", func(n *yaml.Node) { d.truth(n, path+".share", func(v bool) { r.Share = v }) }},
	)
	if strings.Contains(path, "*") && r.Auth != nil {
		d.warn(n, path, "name the registry that they are for", "credentials below * are sent to every registry")
	}
	return r
}
