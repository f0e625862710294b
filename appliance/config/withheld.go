package config

import (
	"maps"
	"net/url"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Withheld are the hosts of registries, or of their mirrors, for which this cluster's credentials (a login or a client
// certificate) are used; "*" is all. text is in k3s's form, as K3s writes it; for an unreadable one all are withheld.
func Withheld(text string) []string {
	var r struct {
		Mirrors map[string]struct {
			Endpoint []string `yaml:"endpoint"`
		} `yaml:"mirrors"`
		Configs map[string]struct {
			Auth map[string]any `yaml:"auth"`
			TLS  struct {
				Cert string `yaml:"cert_file"`
				Key  string `yaml:"key_file"`
			} `yaml:"tls"`
		} `yaml:"configs"`
	}
	if err := yaml.Unmarshal([]byte(text), &r); err != nil {
		return []string{"*"}
	}
	out := map[string]bool{}
	for name, c := range r.Configs {
		if len(c.Auth) > 0 || c.TLS.Cert+c.TLS.Key != "" {
			out[registryHost(name)] = true
		}
	}
	for name, m := range r.Mirrors {
		for _, e := range m.Endpoint {
			u, err := url.Parse(e)
			if err != nil || u.User != nil || out["*"] || out[registryHost(u.Host)] || u.Host == "" && out[registryHost(e)] {
				out[registryHost(name)] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(out))
}

// Withheld is that of what is in force, without shared registries.
func (r Registries) Withheld() []string {
	if r.Empty() {
		_, own := r.InForce()
		return Withheld(own)
	}
	kept := Registries{Mirrors: r.Mirrors, Configs: map[string]Registry{}}
	for name, c := range r.Configs {
		if !c.Share {
			kept.Configs[name] = c
		}
	}
	return Withheld(kept.K3s())
}

// registryHost is the host of a registry, without a port; Docker Hub has several names.
func registryHost(name string) string {
	name = strings.ToLower(strings.TrimSuffix(name, "/"))
	if i := strings.LastIndex(name, ":"); i > 0 && !strings.HasSuffix(name, "]") {
		name = name[:i]
	}
	switch name {
	case "index.docker.io", "registry-1.docker.io", "registry.docker.io":
		return "docker.io"
	}
	return name
}
