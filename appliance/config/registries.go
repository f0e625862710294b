package config

import (
	"errors"
	"io/fs"
	"net/url"
	"os"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"

	"rivulet/fabric/cure"
)

// OwnRegistries is an optional user's file in k3s's form; it is read only if the configuration has no registries.
const OwnRegistries = "/etc/rivulet/registries.yaml"

// Registries are mirrors of image registries and logins, with the keys of k3s's registries.yaml, so that such a file
// can be used unchanged below the key.
type Registries struct {
	Mirrors map[string]Mirror   `yaml:"mirrors,omitempty" json:"mirrors,omitempty"`
	Configs map[string]Registry `yaml:"configs,omitempty" json:"configs,omitempty"`
}

// Mirror is where images of one registry are pulled from first.
type Mirror struct {
	Endpoint []string          `yaml:"endpoint,omitempty,flow" json:"endpoint,omitempty"`
	Rewrite  map[string]string `yaml:"rewrite,omitempty" json:"rewrite,omitempty"`
}

// Registry has the access to one endpoint.
type Registry struct {
	Auth *Auth `yaml:"auth,omitempty" json:"auth,omitempty"`
	TLS  *TLS  `yaml:"tls,omitempty" json:"tls,omitempty"`
	// Share: images may be pulled for peers, too, with the credentials above. k3s does not have this key.
	Share bool `yaml:"share,omitempty" json:"share,omitempty"`
}

// Auth is how to log in.
type Auth struct {
	Username      string `yaml:"username,omitempty" json:"username,omitempty"`
	Password      Secret `yaml:"password,omitempty" json:"password,omitempty"`
	Auth          Secret `yaml:"auth,omitempty" json:"auth,omitempty"`
	IdentityToken Secret `yaml:"identity_token,omitempty" json:"identity_token,omitempty"`
}

// TLS has the trusted authority and the client certificate.
type TLS struct {
	CAFile             string `yaml:"ca_file,omitempty" json:"ca_file,omitempty"`
	CertFile           string `yaml:"cert_file,omitempty" json:"cert_file,omitempty"`
	KeyFile            string `yaml:"key_file,omitempty" json:"key_file,omitempty"`
	InsecureSkipVerify bool   `yaml:"insecure_skip_verify,omitempty" json:"insecure_skip_verify,omitempty"`
}

// Empty reports whether nothing is set.
func (r Registries) Empty() bool { return len(r.Mirrors) == 0 && len(r.Configs) == 0 }

// K3s is the file for k3s, secrets included; empty if nothing is set.
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

// InForce is K3s, or, if nothing is set, the content of OwnRegistries, which k3s reads itself. For an unreadable one it
// is the error, which differs from any content.
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

var registryForm = regexp.MustCompile(`^(\*|[A-Za-z0-9][A-Za-z0-9.-]*(:[0-9]{1,5})?|\[[0-9A-Fa-f:]+\](:[0-9]{1,5})?)$`)

// registries reads a mapping from registries' names.
func registries[T any](d *decoder, n *yaml.Node, path, example string, to *map[string]T, read func(*yaml.Node, string) T) {
	d.pairs(n, path, example, func(key, value *yaml.Node) {
		if !registryForm.MatchString(key.Value) {
			d.problem(key, path, "write a host name without https:// and path, for example docker.io or mirror.example:5000", "%.60q is not the name of a registry", key.Value)
			return
		}
		d.found(n, path)
		if *to == nil {
			*to = map[string]T{}
		}
		(*to)[key.Value] = read(value, join(path, key.Value))
	})
}

func (d *decoder) mirror(n *yaml.Node, path string) (m Mirror) {
	endpoint, rewrite := path+".endpoint", path+".rewrite"
	d.group(n, path, `{endpoint: ["https://mirror.example"]}`,
		field{key: "endpoint", to: func(n *yaml.Node) {
			d.list(n, endpoint, `["https://mirror.example"]`, func(_ int, n *yaml.Node) {
				d.word(n, endpoint, form{check: checkEndpoint}, func(s string) { m.Endpoint = append(m.Endpoint, s) })
			})
		}},
		field{key: "rewrite", to: func(n *yaml.Node) {
			d.pairs(n, rewrite, `"^library/(.*)": "mirror/$1"`, func(key, value *yaml.Node) {
				if _, err := regexp.Compile(key.Value); err != nil {
					d.problem(key, rewrite, "see https://pkg.go.dev/regexp/syntax", "%.60q is not a regular expression", key.Value)
					return
				}
				d.text(value, rewrite, func(s string) {
					if m.Rewrite == nil {
						m.Rewrite = map[string]string{}
					}
					m.Rewrite[key.Value] = s
				})
			})
		}},
	)
	return m
}

// checkEndpoint never includes its input in errors: it may contain a password.
func checkEndpoint(s string) error {
	u, err := url.Parse(s)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return cure.Errorf("this is not a URL of a registry; write for example https://mirror.example:5000")
	case u.User != nil:
		return cure.Errorf("a user or password in the URL; put them below registries.configs.%s.auth", u.Host)
	case u.RawQuery != "" || u.Fragment != "":
		return cure.Errorf("a ? or # in the URL; write scheme, host, port and path only")
	}
	return nil
}

func (d *decoder) registry(n *yaml.Node, path string) (r Registry) {
	d.group(n, path, "{auth: {username: x, password: y}}",
		field{key: "auth", to: func(n *yaml.Node) {
			a := &Auth{}
			r.Auth = a
			d.group(n, path+".auth", "{username: x, password: y}", field{"username", &a.Username, form{}},
				field{"password", &a.Password, form{}}, field{"auth", &a.Auth, form{}}, field{"identity_token", &a.IdentityToken, form{}})
		}},
		field{key: "tls", to: func(n *yaml.Node) {
			r.TLS = &TLS{}
			d.tls(n, path+".tls", r.TLS)
		}},
		field{"share", &r.Share, form{}},
	)
	if strings.Contains(path, "*") && r.Auth != nil {
		d.warn(n, path, "name the registry that they are for", "credentials below * are sent to every registry")
	}
	return r
}

func (d *decoder) tls(n *yaml.Node, path string, to *TLS) {
	files := []field{{"ca_file", &to.CAFile, form{check: checkPath}}, {"cert_file", &to.CertFile, form{check: checkPath}}, {"key_file", &to.KeyFile, form{check: checkPath}}}
	d.group(n, path, "{ca_file: /etc/rivulet/ca.pem}", append(files, field{"insecure_skip_verify", &to.InsecureSkipVerify, form{}})...)
	for _, f := range files {
		name := *f.to.(*string)
		if name == "" || !d.Files {
			continue
		}
		if _, _, err := read(name); err != nil {
			d.problem(value(n, f.key), join(path, f.key), "put the PEM file there", "%s.%s: %s: %s", path, f.key, name, fileError(err))
		}
	}
	if (to.CertFile == "") != (to.KeyFile == "") {
		d.problem(n, path, "give cert_file and key_file, or none of them", "a certificate needs its key, and a key its certificate")
	}
}
