package config

import (
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// clusterKeys are the settings of a cluster; the others are a device's. A group is of one device as a whole.
var clusterKeys = []string{
	"name", "trust.mode", "trust.secret", "trust.broker", "peers", "tunnel.peerCIDR", "share.cpu", "share.memory", "share.maxPods",
	"datastore", "peerImages", "virtualNodes", "services.import", "services.namespaces", "ingress", "fleet",
}

func group(key string) string { return key[:strings.LastIndex(key, ".")+1] }

// Cluster is a text with the settings of the cluster, for another device that may become its server. It has secrets.
// name is the cluster's for its peers.
func (l Loaded) Cluster(name string) string {
	c := l.Config
	c.Name = name
	out := map[string]any{}
	for _, key := range clusterKeys {
		v := reflect.ValueOf(Table[slices.Index(Keys, key)].to(&c)).Elem()
		if v.IsZero() {
			continue
		}
		value := v.Interface()
		if s, ok := value.(Secret); ok {
			value = s.Reveal()
		}
		in, last := out, key[len(group(key)):]
		if g := strings.TrimSuffix(group(key), "."); g != "" {
			if out[g] == nil {
				out[g] = map[string]any{}
			}
			in = out[g].(map[string]any)
		}
		in[last] = value
	}
	text, err := yaml.Marshal(out)
	if err != nil {
		panic(err) // they are texts, numbers and lists
	}
	return string(text)
}

// fill sets the keys of the cluster that this device's own text does not set.
func (l *Loaded) fill(text string) {
	p := Parse([]byte(text), Options{File: "the cluster's settings"})
	own := map[string]bool{} // groups
	for key := range l.Origins {
		own[group(key)] = own[group(key)] || group(key) != ""
	}
	for _, key := range clusterKeys {
		_, set := l.Origins[key]
		if _, has := p.Origins[key]; !has || set || own[group(key)] {
			continue
		}
		to := Table[slices.Index(Keys, key)].to
		reflect.ValueOf(to(&l.Config)).Elem().Set(reflect.ValueOf(to(&p.Config)).Elem())
		l.Origins[key] = Origin{Kind: "cluster"}
	}
}
