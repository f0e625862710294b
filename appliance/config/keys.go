package config

// Key is a setting. Its texts are plain prose with `code`, of one line.
type Key struct {
	// Name is its place in the file, with dots.
	Name string
	// What it sets, and which values there are.
	What string
	// Default is what holds where it is not set.
	Default string
	// Change is what happens when it is changed while Rivulet runs.
	Change string
	// See is the page of docs/design with the rest; may be empty.
	See string
}

const (
	atOnce       = "at once"
	engineStarts = "the engine starts again (about 10 s); pods go on"
)

// Table is every key, in the order of the file. Below registries the names are k3s's.
var Table = []Key{
	{"name", "what neighbours call this cluster: at most 40 lower case letters, digits and `-`",
		"the node's name: the host name at the first start", "at once; the node keeps its name, and so does the virtual node that stands for it elsewhere", ""},
	{"lan.interfaces", "list of names or patterns (`eth0`, `\"wlan*\"`) of the interfaces on which neighbours are looked for and trusted",
		"all Ethernet and Wi-Fi", "at once; tunnels to known peers stay", "fabric"},
	{"trust.mode", "who becomes a peer without an operator. `lan`: clusters on the same link, at first sight. `group`: those that prove the same secret. `ask`: none, each needs `rivulet approve`",
		"`lan`", "at once; who is trusted stays trusted", "peering"},
	{"trust.secret", "the secret of the group, at least 16 characters", "", atOnce, "peering"},
	{"trust.secretFile", "a file with the secret, which is the better place", "", "with `rivulet config reload`", "peering"},
	{"peers", "list of places beyond the LAN where clusters are looked for: `192.0.2.7`, `campus.example:7442`, `srv:_rivulet._tcp.lab.example`. A cluster that is found there is not trusted by that",
		"none", "at once; who is a peer stays one", "fabric"},
	{"tunnel.relay", "peers that do not reach each other may do so through this device, which sees ciphertext only", "`true`", atOnce, "paths"},
	{"tunnel.streamPort", "one more TCP port, such as `443`, on which peers may come from networks that let no UDP out; 7442 is one anyway", "none", atOnce, "paths"},
	{"tunnel.peerCIDR", "the block that peers' pods have their addresses from here, a /16 for each; within 10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16, 100.64.0.0/10, 198.18.0.0/15 or 240.0.0.0/4",
		"`240.0.0.0/5`", "at once; every peer gets another prefix, and connections to its pods end", "tunnel"},
	{"share.cpu", "how much CPU is lent to all peers together, as a percentage of what pods can have; `0%` lends nothing and ends what peers have here, volumes included, as `rivulet peer NAME --provide=off` does for one peer",
		"all that is free", "at once, seen in the neighbours' virtual nodes; pods that run go on", "tenancy"},
	{"share.memory", "the same for memory", "all that is free", "as `share.cpu`", "tenancy"},
	{"share.maxPods", "how many pods of peers run here at most; `0` lends nothing", "no bound", "as `share.cpu`", "tenancy"},
	{"vclusters.cpu", "how much CPU pods of virtual clusters may request together, as a percentage of what pods can have; at `0%` their pods end, and their volumes stay",
		"all that is free", "at once, seen in their nodes; pods beyond it are given 10 minutes", "vclusters"},
	{"vclusters.memory", "the same for memory", "all that is free", "as `vclusters.cpu`", "vclusters"},
	{"vclusters.maxPods", "how many pods of virtual clusters run here at most", "no bound", "as `vclusters.cpu`", "vclusters"},
	{"vclusters.ports", "the ports of the LAN that Services of virtual clusters get, `31000-31199`, within 30000 to 32767; each virtual cluster has 10 at most. They are open to the whole LAN",
		"none", "at once; what is not in the range any more is closed", "vclusters"},
	{"reserve.cpu", "CPU that is kept from all pods, our own too, for example `500m`", "nothing", engineStarts, ""},
	{"reserve.memory", "memory that is kept from all pods, for example `512Mi`", "nothing", engineStarts, ""},
	{"registries.mirrors", "mirrors of image registries, as in k3s's `registries.yaml`", "none", engineStarts, ""},
	{"registries.configs", "credentials and TLS of registries, as in k3s's `registries.yaml`. Images of a registry with credentials (or with a mirror that has some) are not fetched, nor run, for peers, unless `share: true` stands beside `auth` (of the mirror, too)",
		"none", engineStarts, "tenancy"},
	{"peerImages", "a pod away whose image no registry gives gets it from its home, through the tunnel; `false`: from registries only, for this cluster's pods away and for tenants",
		"`true`", atOnce, "images"},
	{"burst", "list of clusters without Rivulet that pods may be sent to: `name`, `kubeconfig` and, where wanted, `context`, `namespace`, `limits`, `network`, `image`, `order`, `podSecurity`, `arch`",
		"none", atOnce, "burst"},
	{"ingress", "an ingress controller of Rivulet's own: Ingresses of the class `rivulet`, the default where no other is, are served on ports 80 and 443 of the LAN", "`false`", "at once; `false` removes the class `rivulet`", "ingress"},
	{"statusPage", "a read-only page for the LAN, `http://NAME.local`: how far the device is and what is wrong", "`true` on a device of the image, else `false`", atOnce, "status-page"},
}

// lists are the keys whose values are lists of words, which a variable may give without brackets.
var lists = map[string]bool{"lan.interfaces": true, "peers": true}

// Keys are the names of all keys.
var Keys = names(Table)

func names(table []Key) (out []string) {
	for _, k := range table {
		out = append(out, k.Name)
	}
	return out
}
