package config

import (
	"fmt"
	"slices"
	"strings"

	"rivulet/appliance/config/signin"
	"rivulet/appliance/config/sqlserver"
	"rivulet/fabric/cure"
)

// Key is a setting: the one place for a new one beside its field in Config and the example. Decoding, origins,
// differences and the reference are derived from it. Its texts are plain prose with `code`, of one line.
type Key struct {
	// Name is its place in the file, with dots.
	Name string
	// What it sets, and its values.
	What string
	// Default is its value if it is not set.
	Default string
	// Change is the effect of a change while Rivulet runs.
	Change string
	// See is the page of docs/design with details; may be empty.
	See string
	// to is the destination of the value.
	to func(*Config) any
	form
}

const (
	atOnce       = "at once"
	engineStarts = "the engine starts again (about 10 s); pods go on"
	restarts     = "when rivulet starts again: `sudo systemctl restart rivulet`; pods go on"
)

var percent = form{check: checkPercent, example: "50%"}

// Table is every key, in the order of the file. Below registries the names are k3s's.
var Table = []Key{
	{"name", "what neighbours call this cluster: at most 40 lower case letters, digits and `-`",
		"the node's name: the host name at the first start", "at once; the node keeps its name, and so does the virtual node that stands for it elsewhere", "",
		func(c *Config) any { return &c.Name }, form{check: CheckName}},
	{"join", "a token of `rivulet token create` on another device: this device becomes a node of that cluster, if it has no pods, volume claims and virtual clusters of its own. A token is valid once, and for as long as `--for` says",
		"none: a cluster of its own", "at once; on a device that is a node it has no effect", "nodes",
		func(c *Config) any { return &c.Join }, form{check: checkToken}},
	{"lan.interfaces", "list of names or patterns (`eth0`, `\"wlan*\"`) of the interfaces on which neighbours are looked for and trusted",
		"all Ethernet and Wi-Fi", "at once; tunnels to known peers stay", "fabric",
		func(c *Config) any { return &c.LAN.Interfaces }, form{check: checkInterface, example: `[eth0, "wlan*"]`}},
	{"trust.mode", "who becomes a peer without an operator. `lan`: clusters on the same link, at first sight. `group`: those that prove the same secret. `ask`: none, each needs `rivulet approve`",
		"`lan`", "at once; who is trusted stays trusted", "peering",
		func(c *Config) any { return &c.Trust.Mode }, form{check: checkMode}},
	{"trust.secret", "the secret of the group, at least 16 characters", "", atOnce, "peering",
		func(c *Config) any { return &c.Trust.Secret }, form{check: checkSecret}},
	{"trust.secretFile", "a file with the secret, which is the better place", "", "with `rivulet config reload`", "peering",
		func(c *Config) any { return &c.Trust.SecretFile }, form{check: checkPath}},
	{"trust.broker", "one or two brokers (`rivulet broker`, which prints `ID@HOST:PORT`) at which clusters of the group meet that share no LAN", "none", "at once; who is a peer stays one, and paths by a broker that is removed end", "broker",
		func(c *Config) any { return &c.Trust.Broker }, form{check: checkBroker, example: "[\"" + exampleBroker + "\"]"}},
	{"peers", "list of places beyond the LAN where clusters are looked for: `192.0.2.7`, `campus.example:7442`, `srv:_rivulet._tcp.lab.example`. A cluster that is found there is not trusted by that",
		"none", "at once; who is a peer stays one", "fabric",
		func(c *Config) any { return &c.Peers }, form{check: checkPeer, example: "[192.0.2.7, campus.example:7442]"}},
	{"tunnel.relay", "peers that do not reach each other may do so through this device, which sees ciphertext only", "`true`", atOnce, "paths",
		func(c *Config) any { return &c.Tunnel.Relay }, form{}},
	{"tunnel.streamPort", "one more TCP port, such as `443`, on which peers may come from networks that let no UDP out; 7442 is one anyway", "none", atOnce, "paths",
		func(c *Config) any { return &c.Tunnel.StreamPort }, form{least: 1, most: 65535}},
	{"tunnel.peerCIDR", "the block that peers' pods have their addresses from here, a /16 for each; within 10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16, 100.64.0.0/10, 198.18.0.0/15 or 240.0.0.0/4",
		"`240.0.0.0/5`", "at once; every peer gets another prefix, and connections to its pods end", "tunnel",
		func(c *Config) any { return &c.Tunnel.PeerCIDR }, form{check: checkBlock}},
	{"share.cpu", "how much CPU is lent to all peers together, as a percentage of what pods can have; `0%` lends nothing and ends what peers have here, volumes included, as `rivulet peer NAME --provide=off` does for one peer",
		"all that is free", "at once, seen in the neighbours' virtual nodes; pods that run go on", "tenancy",
		func(c *Config) any { return &c.Share.CPU }, percent},
	{"share.memory", "the same for memory", "all that is free", "as `share.cpu`", "tenancy",
		func(c *Config) any { return &c.Share.Memory }, percent},
	{"share.maxPods", "how many pods of peers run here at most; `0` lends nothing", "no bound", "as `share.cpu`", "tenancy",
		func(c *Config) any { return &c.Share.MaxPods }, form{most: 100_000}},
	{"vclusters.cpu", "how much CPU pods of virtual clusters may request together, as a percentage of what pods can have; at `0%` their pods end, and their volumes stay",
		"all that is free", "at once, seen in their nodes; pods beyond it are given 10 minutes", "vclusters",
		func(c *Config) any { return &c.VClusters.CPU }, percent},
	{"vclusters.memory", "the same for memory", "all that is free", "as `vclusters.cpu`", "vclusters",
		func(c *Config) any { return &c.VClusters.Memory }, percent},
	{"vclusters.maxPods", "how many pods of virtual clusters run here at most", "no bound", "as `vclusters.cpu`", "vclusters",
		func(c *Config) any { return &c.VClusters.MaxPods }, form{most: 100_000}},
	{"vclusters.ports", "the ports of the LAN that Services of virtual clusters get, `31000-31199`, within 30000 to 32767; each virtual cluster has 10 at most. They are open to the whole LAN",
		"none", "at once; what is not in the range any more is closed", "vclusters",
		func(c *Config) any { return &c.VClusters.Ports }, form{check: checkPorts}},
	{"reserve.cpu", "CPU that is kept from all pods, our own too, for example `500m`", "nothing", engineStarts, "",
		func(c *Config) any { return &c.Reserve.CPU }, form{fits: checkCPU, example: "500m"}},
	{"reserve.memory", "memory that is kept from all pods, for example `512Mi`", "nothing", engineStarts, "",
		func(c *Config) any { return &c.Reserve.Memory }, form{fits: checkMemory, example: "1Gi"}},
	{"proxy.url", "the proxy by which registries, burst targets and other servers beyond the LAN are reached: `http://proxy.example:3128`, `https://…` or `socks5://…`, where it asks for them with `USER:PASSWORD@` before the host. This cluster's nodes, pods and Services, its peers and their pods are never reached by it",
		"that of the environment (`HTTPS_PROXY`), or none", restarts, "",
		func(c *Config) any { return &c.Proxy.URL }, form{check: checkProxy}},
	{"proxy.except", "list of what is reached without the proxy, too: `intranet.example`, `.campus.example` for all below it, `192.168.0.0/16`", "none", restarts, "",
		func(c *Config) any { return &c.Proxy.Except }, form{check: checkExcept, example: "[intranet.example, 192.168.0.0/16]"}},
	{"registries.mirrors", "mirrors of image registries, as in k3s's `registries.yaml`", "none", engineStarts, "",
		func(c *Config) any { return &c.Registries.Mirrors }, form{}},
	{"registries.configs", "credentials and TLS of registries, as in k3s's `registries.yaml`. Images of a registry with credentials (or with a mirror that has some) are not fetched, nor run, for peers, unless `share: true` stands beside `auth` (of the mirror, too)",
		"none", engineStarts, "tenancy",
		func(c *Config) any { return &c.Registries.Configs }, form{}},
	{"datastore", "the SQL database that keeps the cluster's objects in place of a file of this device: `postgres://USER:PASSWORD@HOST:5432/DATABASE` or `mysql://USER:PASSWORD@tcp(HOST:3306)/DATABASE` (MariaDB too), as in k3s, with `?sslmode=verify-full` or `?tls=true`; off this device the address says whether the connection is encrypted. It is chosen before a cluster's first start; a cluster moves to another address only together with its database. A worker does not use it",
		"a file of this device", engineStarts, "datastore",
		func(c *Config) any { return &c.Datastore }, form{check: sqlserver.Check}},
	{"peerImages", "a pod away whose image no registry gives gets it from its home, through the tunnel; `false`: from registries only, for this cluster's pods away and for tenants",
		"`true`", atOnce, "images",
		func(c *Config) any { return &c.PeerImages }, form{}},
	{"burst", "list of clusters without Rivulet that pods may be sent to: `name`, `kubeconfig` and, where wanted, `context`, `namespace`, `limits`, `network`, `image`, `order`, `price`, `podSecurity`, `arch`",
		"none", atOnce, "burst",
		func(c *Config) any { return &c.Burst }, form{}},
	{"virtualNodes", "the peers that get a virtual node, and so pods of this cluster. `all`; `10 nearest`, by round trip, of which one that is away for 5 minutes gives its place to another; or labels that peers have by `rivulet peer NAME --label`, such as `room=lab`. The others stay peers: they may send pods here, and Services are shared with them",
		"`all`", "at once; pods that run at a peer that is not chosen any more stay there until they end", "offload",
		func(c *Config) any { return &c.VirtualNodes }, form{check: checkNodes, example: "10 nearest"}},
	{"services.import", "the peers with which Services are shared, in both directions, by ServiceExports. `approved`: those that an operator approved, that had an invite, or that proved the group's secret; `group`: the last only; `all`: neighbours on the LAN, too; `off`: none",
		"`approved`", "at once; what is shared with others ends", "services",
		func(c *Config) any { return &c.Services.Import }, oneOf(ServicesApproved, ServicesGroup, ServicesAll, ServicesOff)},
	{"services.namespaces", "the namespaces whose Services are shared", "all but `default` and `kube-*`, which never are", "at once; what is shared of others ends", "services",
		func(c *Config) any { return &c.Services.Namespaces }, form{check: checkNamespace, example: "[shop, lab]"}},
	{"ingress", "an ingress controller of Rivulet's own: Ingresses of the class `rivulet`, the default where no other is, are served on ports 80 and 443 of the LAN", "`false`", "at once; `false` removes the class `rivulet`", "ingress",
		func(c *Config) any { return &c.Ingress }, form{}},
	{"fleet", "peers that proved the same group secret (`trust.mode: group`) see a summary of this device by `rivulet status --fleet`: name, version, readiness, codes and titles of problems, numbers of pods and peers, capacity", "`false`", atOnce, "fleet",
		func(c *Config) any { return &c.Fleet }, form{}},
	{"statusPage", "a read-only page for the LAN, `http://NAME.local`: how far the device is and what is wrong", "`true` on a device of the image, else `false`", atOnce, "status-page",
		func(c *Config) any { return &c.StatusPage }, form{}},
	{"console", "the web console for the LAN, `https://NAME.local:7443`, after a sign-in with a code of `rivulet console login`", "`true` on a device of the image, else `false`", atOnce, "console",
		func(c *Config) any { return &c.Console }, form{}},
	{"consoleCode", "the hash of a code that signs in to the web console as admin, as often as wanted, until it is removed here; `rivulet flash` makes it", "none", "at once; sign-ins by another code end", "console",
		func(c *Config) any { return &c.ConsoleCode }, form{check: signin.CheckHash}},
	{"metrics", "who may scrape the metrics on TCP port 7444, with an access of `rivulet metrics grant`. `lan`: hosts on the same link. `pods`: pods of this cluster. `off`: nobody, and the port is closed", "`off`", atOnce, "monitoring",
		func(c *Config) any { return &c.Metrics }, oneOf(MetricsLAN, MetricsPods, MetricsOff)},
}

// Keys are the names of all keys.
var Keys = func() (out []string) {
	for _, k := range Table {
		out = append(out, k.Name)
	}
	return out
}()

// Type describes valid values.
func (k Key) Type() string {
	switch k.to(&Config{}).(type) {
	case *[]string:
		return "list of texts, for example " + k.example
	case *bool, **bool:
		return "true or false"
	case *int64, **int64:
		return fmt.Sprintf("whole number from %d to %d", k.least, k.most)
	case *string, *Secret:
		if k.example == "" {
			return "text"
		}
		return "amount, for example " + k.example
	case *Percent:
		return "0% to 100%"
	}
	return "group, see: rivulet config example"
}

// Explain returns the key of that name, or all of the group.
func Explain(name string) ([]Key, error) {
	out := slices.DeleteFunc(slices.Clone(Table), func(k Key) bool {
		return k.Name != name && !strings.HasPrefix(k.Name, name+".")
	})
	if len(out) == 0 {
		return nil, cure.Errorf("there is no key %.60q; %s", name, unknownCure("", name, Keys))
	}
	return out, nil
}

// field is the key as one of a group of c.
func (k Key) field(c *Config) field {
	name := k.Name[strings.LastIndex(k.Name, ".")+1:]
	return field{name, k.to(c), k.form}
}

// examples show the correct form of the groups.
var examples = map[string]string{
	"":           "for example name: lab-1",
	"lan":        "lan: {interfaces: [eth0]}",
	"trust":      "trust: {mode: lan}",
	"tunnel":     "tunnel: {relay: false}",
	"share":      "share: {cpu: 50%, memory: 50%}",
	"services":   "services: {import: approved, namespaces: [shop]}",
	"vclusters":  "vclusters: {cpu: 50%, memory: 50%}",
	"reserve":    "reserve: {cpu: 500m, memory: 1Gi}",
	"proxy":      "proxy: {url: http://proxy.example:3128}",
	"registries": `registries: {mirrors: {docker.io: {endpoint: ["https://mirror.example"]}}}`,
}
