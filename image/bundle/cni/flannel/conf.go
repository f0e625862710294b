package flannel

import (
	"encoding/json"
	"fmt"
	"maps"
	"time"

	"github.com/containernetworking/cni/pkg/types"
)

// conf is the network configuration as k3s or a user writes it.
type conf struct {
	types.NetConf
	SubnetFile    string         `json:"subnetFile"`
	StateDir      string         `json:"dataDir"`
	MTU           int            `json:"mtu"`          // of the pods, bytes
	LeaseTimeout  *int           `json:"leaseTimeout"` // seconds to wait for the lease; 15 if absent
	Delegate      map[string]any `json:"delegate"`     // passed on to the delegated plugin unchanged
	RuntimeConfig map[string]any `json:"runtimeConfig,omitempty"`
	// PrevResult shadows the parsed one, because it is only passed on.
	PrevResult json.RawMessage `json:"prevResult,omitempty"`
}

func parseConf(data []byte) (conf, error) {
	c := conf{SubnetFile: "/run/flannel/subnet.env", StateDir: "/var/lib/cni/flannel"}
	if err := json.Unmarshal(data, &c); err != nil {
		return conf{}, fmt.Errorf("flannel: network configuration: %w", err)
	}
	if c.Name == "" {
		return conf{}, fmt.Errorf("flannel: the network configuration has no name")
	}
	return c, nil
}

func (c conf) patience() time.Duration {
	if c.LeaseTimeout != nil {
		return time.Duration(*c.LeaseTimeout) * time.Second
	}
	return 15 * time.Second
}

// bridge is the name of the pods' bridge.
func (c conf) bridge() string {
	if name, ok := c.Delegate["bridge"].(string); ok && name != "" {
		return name
	}
	return defaultBridge
}

// delegated returns the configuration and the name of the plugin that creates the network. links is the MTU of the
// node's links, bytes.
func (c conf) delegated(l lease, links int) (data []byte, plugin string, err error) {
	d := maps.Clone(c.Delegate)
	if d == nil {
		d = map[string]any{}
	}
	for _, ours := range []string{"name", "ipam", "cniVersion"} {
		if _, set := d[ours]; set {
			return nil, "", fmt.Errorf("flannel: delegate must not set %q: take it out of the network configuration", ours)
		}
	}
	setDefault(d, "type", "bridge")
	plugin, ok := d["type"].(string)
	if !ok || plugin == "" {
		return nil, "", fmt.Errorf("flannel: delegate.type is %v, want the name of a plugin", d["type"])
	}
	setDefault(d, "ipMasq", !l.ipMasq)
	setDefault(d, "mtu", c.podMTU(l, links))
	if plugin == "bridge" {
		setDefault(d, "isGateway", true)
	}
	d["name"], d["cniVersion"], d["ipam"] = c.Name, c.CNIVersion, ipam(l)
	if len(c.RuntimeConfig) > 0 {
		d["runtimeConfig"] = c.RuntimeConfig
	}
	data, err = json.Marshal(d)
	return data, plugin, err
}

func setDefault(d map[string]any, key string, value any) {
	if _, set := d[key]; !set {
		d[key] = value
	}
}

// podMTU uses the lease's MTU only if it is smaller than that of the links: with the node address on lo, flannel writes
// 65536, the MTU of lo.
func (c conf) podMTU(l lease, links int) int {
	switch {
	case c.MTU > 0:
		return c.MTU
	case l.mtu >= smallestPodMTU && l.mtu < links:
		return l.mtu
	}
	return links
}

func ipam(l lease) map[string]any {
	var ranges [][]map[string]string
	for _, s := range l.subnets {
		ranges = append(ranges, []map[string]string{{"subnet": s.String()}})
	}
	routes := []map[string]string{}
	for _, n := range l.networks {
		routes = append(routes, map[string]string{"dst": n.String()})
	}
	return map[string]any{"type": "host-local", "ranges": ranges, "routes": routes}
}

// withPrevResult adds the result of ADD, which CHECK and DEL of a delegate require.
func withPrevResult(delegated []byte, prev json.RawMessage) (data []byte, plugin string, err error) {
	d := map[string]any{}
	if err := json.Unmarshal(delegated, &d); err != nil {
		return nil, "", fmt.Errorf("flannel: state: %w", err)
	}
	plugin, _ = d["type"].(string)
	if len(prev) > 0 {
		d["prevResult"] = prev
	}
	data, err = json.Marshal(d)
	return data, plugin, err
}
