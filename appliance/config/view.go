package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// View is a configuration for screens, without its secrets.
type View struct {
	File string    `json:"file"`
	From From      `json:"from"`
	At   time.Time `json:"loaded"`
	// Values are those in force, defaults filled in.
	Values   Config            `json:"values"`
	Origins  map[string]Origin `json:"origins"`
	Problems Problems          `json:"problems,omitempty"`
	Warnings Problems          `json:"warnings,omitempty"`
	// Pending are changes that are being made at this moment.
	Pending []string `json:"pending,omitempty"`
}

// View returns what to show. nodeName is what a cluster without a name is called.
func (l Loaded) View(nodeName string) View {
	v := View{File: l.File, From: l.From, At: l.At, Values: l.Config.WithDefaults(nodeName), Origins: map[string]Origin{}, Problems: l.Problems, Warnings: l.Warnings}
	v.Values = v.Values.redacted()
	for _, key := range Keys {
		v.Origins[key] = Origin{Kind: "default"}
	}
	maps.Copy(v.Origins, l.Origins)
	maps.DeleteFunc(v.Origins, func(key string, _ Origin) bool {
		return strings.Contains(key, "[") || !slices.ContainsFunc(Keys, func(k string) bool { return k == key })
	})
	return v
}

// redacted returns c with every secret replaced: a View is decoded again by the
// command line, where a Secret would be one.
func (c Config) redacted() Config {
	c.Trust.Secret = Secret(c.Trust.Secret.String())
	configs := map[string]Registry{}
	for name, r := range c.Registries.Configs {
		if r.Auth != nil {
			a := *r.Auth
			a.Password, a.Auth, a.IdentityToken = Secret(a.Password.String()), Secret(a.Auth.String()), Secret(a.IdentityToken.String())
			r.Auth = &a
		}
		configs[name] = r
	}
	if len(configs) > 0 {
		c.Registries.Configs = configs
	}
	return c
}

// YAML is the view as a file of the same form, with origins as comments if asked for.
func (v View) YAML(origins bool) string {
	var doc yaml.Node
	if err := doc.Encode(v.Values); err != nil {
		panic(err) // plain values always encode
	}
	if origins {
		comment(&doc, "", v.Origins)
	}
	var out bytes.Buffer
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	if err := enc.Encode(&doc); err != nil {
		panic(err)
	}
	return out.String()
}

func comment(n *yaml.Node, path string, origins map[string]Origin) {
	if n.Kind != yaml.MappingNode {
		return
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		at := join(path, key.Value)
		o, ok := origins[at]
		switch {
		case !ok:
			comment(value, at, origins)
		case value.Kind == yaml.ScalarNode || value.Style&yaml.FlowStyle != 0:
			value.LineComment = "# " + o.String()
		default:
			key.HeadComment = "# " + o.String()
		}
	}
}

// fingerprint tells configurations apart, secrets included. It stays in memory.
func (l Loaded) fingerprint() []byte {
	raw, err := json.Marshal(l.Config)
	if err != nil {
		panic(err) // plain values always marshal
	}
	return fmt.Appendf(raw, "%s %s", l.Config.Trust.Secret.Reveal(), l.Config.Registries.K3s())
}

// Changed returns the keys that differ.
func Changed(a, b Config) (keys []string) {
	differ := func(key string, x, y any) {
		if fmt.Sprint(x) != fmt.Sprint(y) {
			keys = append(keys, key)
		}
	}
	pods := func(s Share) string {
		if s.MaxPods == nil {
			return ""
		}
		return fmt.Sprint(*s.MaxPods)
	}
	differ("name", a.Name, b.Name)
	differ("lan", fmt.Sprintf("%q", a.LAN.Interfaces), fmt.Sprintf("%q", b.LAN.Interfaces))
	differ("trust", a.Trust.Mode+" "+a.Trust.Secret.Reveal(), b.Trust.Mode+" "+b.Trust.Secret.Reveal())
	differ("tunnel", [...]any{a.Tunnel.Relays(), a.Tunnel.StreamPort, a.Tunnel.Block()}, [...]any{b.Tunnel.Relays(), b.Tunnel.StreamPort, b.Tunnel.Block()})
	share := func(s Share) [3]string { return [3]string{string(s.CPU), string(s.Memory), pods(s)} }
	differ("share", share(a.Share), share(b.Share))
	differ("vclusters", [...]any{share(a.VClusters.Share), a.VClusters.Ports}, [...]any{share(b.VClusters.Share), b.VClusters.Ports})
	differ("reserve", a.Reserve, b.Reserve)
	differ("registries", a.Registries.K3s(), b.Registries.K3s())
	differ("peers", a.Peers, b.Peers)
	differ("burst", a.Burst, b.Burst)
	shown := func(v *bool) string {
		if v == nil {
			return ""
		}
		return fmt.Sprint(*v)
	}
	differ("peerImages", a.ImagesPass(), b.ImagesPass())
	differ("ingress", a.Ingress, b.Ingress)
	differ("statusPage", shown(a.StatusPage), shown(b.StatusPage))
	return keys
}
