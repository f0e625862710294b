package config

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// View is a configuration for outputs, without its secrets.
type View struct {
	File string    `json:"file"`
	From From      `json:"from"`
	At   time.Time `json:"loaded"`
	// Values are those in force, defaults filled in.
	Values   Config            `json:"values"`
	Origins  map[string]Origin `json:"origins"`
	Problems Problems          `json:"problems,omitempty"`
	Warnings Problems          `json:"warnings,omitempty"`
	// Pending are changes in progress.
	Pending []string `json:"pending,omitempty"`
}

// View returns what to show. nodeName is the name of a cluster without one.
func (l Loaded) View(nodeName string) View {
	v := View{File: l.File, From: l.From, At: l.At, Values: l.Config.WithDefaults(nodeName), Origins: map[string]Origin{}, Problems: l.Problems, Warnings: l.Warnings}
	v.Values = v.Values.redacted()
	for _, key := range Keys {
		v.Origins[key] = Origin{Kind: "default"}
	}
	maps.Copy(v.Origins, l.Origins)
	maps.DeleteFunc(v.Origins, func(key string, _ Origin) bool {
		return !slices.Contains(Keys, key)
	})
	return v
}

// redacted returns c with every secret replaced by its JSON form: the command line decodes a View again, where a Secret
// would be encoded a second time.
func (c Config) redacted() (out Config) {
	raw, err := json.Marshal(c)
	if err == nil {
		err = json.Unmarshal(raw, &out)
	}
	if err != nil {
		panic(err) // plain values always marshal, and are read back
	}
	return out
}

// YAML is the view as a file of the same form, with origins as comments if requested.
func (v View) YAML(origins bool) string {
	var doc yaml.Node
	if err := doc.Encode(v.Values); err != nil {
		panic(err) // plain values always encode
	}
	if origins {
		comment(&doc, "", v.Origins)
	}
	return string(encode(&doc))
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

// Changed returns the changed groups, and keys outside of groups.
func Changed(a, b Config) (keys []string) {
	a, b = a.effective(), b.effective()
	for _, k := range Table {
		top, _, _ := strings.Cut(k.Name, ".")
		if !slices.Contains(keys, top) && !reflect.DeepEqual(k.to(&a), k.to(&b)) {
			keys = append(keys, top)
		}
	}
	return keys
}

// effective sets defaults where an explicit default value has the same effect.
func (c Config) effective() Config {
	relay, images := c.Tunnel.Relays(), c.ImagesPass()
	c.Tunnel.Relay, c.Tunnel.PeerCIDR, c.PeerImages = &relay, c.Tunnel.Block().String(), &images
	return c
}
