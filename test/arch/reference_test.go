package arch

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"rivulet/appliance/health"
	"rivulet/fabric/httpserver"
	"rivulet/test/harness/docpage"
)

// docs/reference/health.md has every code.
func TestReferenceOfHealth(t *testing.T) {
	var b strings.Builder
	b.WriteString("# Health codes\n\n`rivulet status`, `rivulet doctor`, the status page and `rivulet metrics` show the same problems by the same codes. A code never changes its meaning.\n" +
		"`error`: something that was asked for does not work. `warning`: something works less well than it could. `info`: worth knowing. The table has the worst that a code is\n" +
		"reported with; the text and the cure come with the problem. How it works: [health](../design/health.md); what the probes look at: [doctor](../design/doctor.md).\n\n| code | severity | what |\n|---|---|---|\n")
	for _, k := range health.Kinds() {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", k.Code, k.Severity, docpage.Cell(k.Title))
	}
	docpage.Check(t, "health.md", "appliance/health", b.String())
}

// forUsers are the labels and annotations that a user writes: on what, and what they do.
var forUsers = map[string][2]string{
	"rivulet.dev/offload":       {"label of a Namespace or a Pod", "Namespace: when its pods go away: `burst`, `remote`, `any`, `off`; with `services` they never do, and its Services exist away for pods of other namespaces; `rivulet offload` writes it. Pod: `off` keeps it at home; it is read when the pod is made, so write it into the template"},
	"rivulet.dev/offload-to":    {"label of a Namespace", "only to the target of this name, on all of its platforms"},
	"rivulet.dev/prefer":        {"label of a Namespace", "which place its pods fill first: `cheapest`, `nearest` or `spread`; `rivulet offload --prefer` writes it"},
	"rivulet.dev/virtual-node":  {"label of a Node, in a pod's nodeAffinity", "`DoesNotExist` keeps the pod on machines of this cluster"},
	"rivulet.dev/open-to":       {"label of a Namespace or a Service", "opens its pods to other clusters: `all`, `group` or the ID of a peer; `rivulet open` writes it"},
	"rivulet.dev/reflect":       {"annotation of an object or a Namespace", "`off` keeps an object at home; `on` sends a Secret or a ConfigMap to every target of its namespace, also without a pod that refers to it; on a Namespace it says so of kinds ([reflection](../design/reflection.md))"},
	"rivulet.dev/share":         {"label of an image in containerd", "`true` lets pods of other clusters use it ([images](../design/tenancy.md#images))"},
	"rivulet.dev/away-class":    {"annotation of a PersistentVolumeClaim", "the provider's StorageClass, which it has to lend; without it the provider's default"},
	"rivulet.dev/ingress-class": {"annotation of an Ingress", "its class on the target; without it the target's default"},
	"rivulet.dev/lent":          {"label of an IngressClass, RuntimeClass or StorageClass", "lends it to other clusters; for an IngressClass the value is the namespace of the controller, which may then reach their pods"},
	"rivulet.dev/hold-upgrade":  {"label of a Pod", "whatever its value: an upgrade waits as long as the pod is not finished"},
	"rivulet.dev/weights":       {"annotation of a ServiceImport", "shares of its traffic, by cluster: `home=90,b=10` ([services](../design/services.md#weights))"},
	"rivulet.dev/force":         {"annotation of a Peer", "`true` ends the peering though the peer cannot be told"},
}

// docs/reference/labels.md has every name of rivulet.dev/ that the code declares.
func TestReferenceOfLabels(t *testing.T) {
	type entry struct{ constant, said string }
	all := map[string]entry{}
	for _, folder := range packagesOf(t, "appliance", "fabric", "offload") {
		c := constantsOf(t, folder)
		for name, e := range c.values {
			v, _, ok := c.value(e)
			if !ok {
				continue
			}
			label := strings.Trim(v.ExactString(), `"`)
			rest, ours := strings.CutPrefix(label, "rivulet.dev/")
			if !ours || rest == "" || strings.Contains(rest, ":") {
				continue // an image has a tag
			}
			// What is declared in several packages is told by the one that says most.
			if old, ok := all[label]; !ok || len(c.said[name]) > len(old.said) || len(c.said[name]) == len(old.said) && name < old.constant {
				all[label] = entry{name, c.said[name]}
			}
		}
	}
	var b strings.Builder
	b.WriteString("# Labels, annotations, taints\n\n## For users\n\n| name | on | what |\n|---|---|---|\n")
	for _, label := range slices.Sorted(maps.Keys(forUsers)) {
		if _, ok := all[label]; !ok {
			t.Errorf("no package declares %s any more: remove it from forUsers", label)
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", label, forUsers[label][0], forUsers[label][1])
	}
	b.WriteString("\n## Rivulet's own\n\nWritten by Rivulet, and of use for selectors and for looking at what it does. Change none of them.\n\n| name | constant in the code | what the code says of it |\n|---|---|---|\n")
	for _, label := range slices.Sorted(maps.Keys(all)) {
		if _, ok := forUsers[label]; !ok {
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", label, all[label].constant, docpage.Cell(all[label].said))
		}
	}
	if len(all) < 40 {
		t.Errorf("only %d names found", len(all))
	}
	docpage.Check(t, "labels.md", "the constants in appliance, fabric and offload", b.String())
}

// fact is a constant of the code, for people.
type fact struct {
	folder, constant string
	bytes            bool
	before, after    string
}

func factsTable(t *testing.T, b *strings.Builder, facts []fact) {
	t.Helper()
	read := map[string]constants{}
	for _, f := range facts {
		c, ok := read[f.folder]
		if !ok {
			c = constantsOf(t, f.folder)
			read[f.folder] = c
		}
		fmt.Fprintf(b, "| %s%s | %s |\n", f.before, c.text(t, f.constant, f.bytes), f.after)
	}
}

// docs/reference/ports.md has the code's own numbers.
func TestReferenceOfPorts(t *testing.T) {
	var b strings.Builder
	b.WriteString("# Ports\n\n## Of a device\n\n| port | what, and for whom it is open |\n|---|---|\n")
	factsTable(t, &b, []fact{
		{"appliance/config/fixed", "ControlPort", false, "TCP ", "control: pairing from the LAN, kubectl with a kubeconfig of this cluster, everything else with mutual TLS inside the tunnel; streams of the tunnel where UDP does not pass. **Open to the LAN**"},
		{"appliance/config/fixed", "ControlPort", false, "UDP ", "the tunnel, WireGuard. **Open to the LAN**"},
		{"fabric/discovery/mdns", "port", false, "UDP ", "mDNS, the discovery of peers. **Open to the LAN**"},
		{"appliance/engine", "PortAPI", false, "TCP ", "the Kubernetes API. Closed to the LAN by the host firewall; open to this device's pods and to pods of this cluster that run away, through the tunnel"},
		{"appliance/engine", "PortKubelet", false, "TCP ", "the kubelet. Closed to the LAN by the host firewall"},
		{"appliance/config/fixed", "DNSPort", false, "TCP and UDP ", "the cluster's DNS, on the node's own address; Service kube-dns leads there"},
		{"appliance/vcluster", "firstPort", false, "TCP from ", "virtual clusters, one port each, mutual TLS or a token of theirs, on the node's own address only"},
		{"appliance", "metricsPort", false, "TCP ", "resource metrics, mutual TLS, on the node's own address only"},
		{"appliance/addons/ingress", "WebPort", false, "TCP ", "Ingresses, with `ingress: true`; closed without. **Open to the LAN**"},
		{"appliance/addons/ingress", "SecurePort", false, "TCP ", "Ingresses by TLS, with `ingress: true`; closed without. **Open to the LAN**"},
		{"appliance/ui/statuspage", "WebPort", false, "TCP ", "the status page, where it is on: read-only. **Open to the LAN**"},
		{"appliance/api", "MetricsPort", false, "TCP ", "the metrics, with `metrics: lan` **open to the LAN**, with `pods` on the node's own address only: HTTPS, a token or a client certificate; closed without"},
		{"appliance/ui/statuspage", "Port", false, "TCP ", "the status page where another program or Service has its usual port"},
		{"appliance/ui/webconsole", "Port", false, "TCP ", "the web console, where it is on: after a sign-in. **Open to the LAN**"},
		{"fabric/broker", "DefaultPort", false, "TCP and UDP ", "of `rivulet broker` alone, on its own host; `--listen` is another. Open to everybody"},
	})
	b.WriteString("\n`rivulet doctor --only ports,firewall` names whatever else has one of them, and a firewall that closes one. That a scan of all ports of a device on which nothing of the following is used finds no others: test/suites/peers.\n\n" +
		"**What the owner opens to the LAN besides**, as on any cluster: Services of type LoadBalancer ([loadbalancer](../design/loadbalancer.md)) and NodePort (30000 to 32767), host ports of pods, `vclusters.ports` for Services of virtual clusters, " +
		"`tunnel.streamPort` ([configuration](configuration.md)). Pods of other clusters and of virtual clusters open none of these but what `vclusters.ports` allows.\nOn a device of the image the status page and the console are on from the start; on a PC both are off until the configuration says so.\n\n" +
		"## Of the gateway pod on a foreign cluster\n\nReached through the foreign cluster's API server or a Service there: [burst-network](../design/burst-network.md).\n\n| port | what |\n|---|---|\n")
	factsTable(t, &b, []fact{
		{"fabric/gateway/gatewayproto", "StreamPort", false, "TCP ", "streams of the tunnel"},
		{"fabric/gateway/gatewayproto", "TunnelPort", false, "UDP ", "the tunnel"},
		{"fabric/gateway/gatewayproto", "ControlPort", false, "TCP ", "its control, HTTP inside the tunnel"},
		{"fabric/gateway/gatewayproto", "DNSPort", false, "UDP and TCP ", "DNS of home for pods there; the Service has 53"},
		{"fabric/gateway/gatewayproto", "ReadyPort", false, "TCP ", "readiness, for the kubelet there; streams that come by its API server's proxy of pods"},
	})
	docpage.Check(t, "ports.md", "constants of the code, by test/arch/reference_test.go", b.String())
}

// docs/reference/limits.md has the code's own bounds.
func TestReferenceOfLimits(t *testing.T) {
	var b strings.Builder
	b.WriteString("# Limits\n\nWhat others can make a device do is bounded. None of these is a setting, except where the configuration has one ([configuration](configuration.md)).\n" +
		"What is over a limit is refused with an error that names it; a consumer over its rate gets 429 and tries again.\n")
	section := func(title string, facts []fact) {
		fmt.Fprintf(&b, "\n## %s\n\n| limit | of what |\n|---|---|\n", title)
		factsTable(t, &b, facts)
	}
	section("One consumer at a provider", []fact{
		{"offload/provider/tenancy", "maxTwins", false, "", "offloaded namespaces"},
		{"offload/provider/tenancy", "requestRate", false, "", "requests to the API each second, over time"},
		{"offload/provider/tenancy", "requestBurst", false, "", "requests in a row"},
		{"offload/provider/tenancy", "atOnce", false, "", "requests under way at once"},
		{"offload/provider/tenancy", "patchesAtOnce", false, "", "patches under way at once"},
		{"offload/provider/tenancy", "byteRate", true, "", "of objects written each second, over time"},
		{"offload/provider/tenancy", "maxBody", true, "", "the body of one request"},
		{"offload/provider/tenancy", "maxTemplate", true, "", "an object with a template that controllers copy"},
		{"offload/provider/tenancy", "maxOffers", false, "", "streams of offers"},
		{"offload/provider/tenancy", "maxCarried", false, "", "transfers of volumes at once"},
		{"offload/policy", "MostContainers", false, "", "containers of a pod, of all kinds together"},
		{"offload/policy", "MostImage", false, "", "characters of the name of an image"},
		{"offload/provider/tenancy", "mostPorts", false, "", "ports of a Service, or of an EndpointSlice"},
		{"offload/provider/tenancy", "mostEndpoints", false, "", "addresses of an EndpointSlice, times its ports"},
		{"offload/provider/tenancy", "mostRoutes", false, "", "ports of Services, and addresses of EndpointSlices times their ports, in all"},
		{"offload/offer", "MaxOf", false, "", "other providers of it that it may name"},
	})
	b.WriteString("\nHow much CPU, memory, pods and storage a consumer has is its offer: `rivulet tenants` shows it, `share` bounds it ([tenancy](../design/tenancy.md)).\n")
	section("Strangers and peers on the network", []fact{
		{"fabric", "maxStrangers", false, "", "clusters that are no peers and are remembered"},
		{"fabric/pairing", "maxInFlight", false, "", "requests of strangers at once"},
		{"fabric/control", "peerRequests", false, "", "requests of one peer under way, watches and sessions included"},
		{"fabric/control", "peerHeaders", true, "", "of their headers"},
		{"fabric/rpc", "MaxBody", true, "", "JSON of one message between clusters"},
		{"fabric/discovery/mdns", "maxEntries", false, "", "devices heard by mDNS"},
		{"fabric/tunnel/paths", "maxPaths", false, "", "paths to one peer that are tried"},
		{"fabric/tunnel/paths", "maxRelays", false, "", "peers that are asked at once to relay"},
		{"fabric", "maxNeighbours", false, "", "clusters that one member of a group may introduce"},
		{"fabric/broker", "maxMembers", false, "", "clusters at a broker"},
		{"fabric/broker", "perSource", false, "", "of them from one address"},
		{"fabric/broker", "maxRoom", false, "", "of them in one group"},
		{"fabric/broker", "maxRelayed", false, "", "exchanges that a broker relays at once"},
		{"fabric/tunnel/paths", "hubRate", true, "", "of packets each second that a broker relays for one cluster"},
		{"fabric/tunnel/paths", "hubSum", true, "", "of packets each second that a broker relays for all"},
		{"fabric/trust", "InviteLife", false, "", "the life of an invite"},
		{"appliance/diagnose/fleet", "requestRate", false, "", "summaries of this device each second that one peer gets"},
		{"appliance/diagnose/fleet", "mostPeers", false, "", "devices on the page of `rivulet status --fleet`"},
	})
	section("Pods away", []fact{
		{"fabric/peer", "maxProse", false, "", "bytes of a termination message"},
		{"offload/consumer/pod/translate", "maxEventMessage", false, "", "bytes of an event's message that is carried home"},
		{"offload/nodeagent/filetree", "maxNames", true, "", "of names in a volume that is moved"},
	})
	section("A burst target", []fact{
		{"offload/target/external", "maxName", false, "", "characters of its name"},
	})
	section("Virtual clusters", []fact{
		{"appliance/vcluster", "MaxClusters", false, "", "virtual clusters of one device"},
		{"appliance/vcluster", "maxName", false, "", "characters of a name"},
		{"appliance/vcluster", "DefaultMemory", true, "", "memory of a control plane, where `--memory` does not say another"},
		{"appliance/vcluster", "logBound", true, "", "the log of a control plane, looked at when it starts"},
	})
	section("People with a kubeconfig", []fact{
		{"appliance/network/users", "MaxUsers", false, "", "users of this cluster"},
		{"appliance/network/users", "MaxVirtual", false, "", "users of its virtual clusters"},
		{"appliance/network/users", "maxOfOne", false, "", "of them of one virtual cluster"},
		{"appliance/network/users", "maxConns", false, "", "connections of all users of one virtual cluster"},
		{"appliance/network/users", "maxRequests", false, "", "requests of one user under way, watches and sessions included"},
		{"appliance/network/users", "maxOfCluster", false, "", "of them of all users of one virtual cluster"},
		{"appliance/network/users", "MaxLife", false, "", "the life of one access"},
		{"appliance/network/users", "linkLife", false, "", "the life of a link to a kubeconfig, which works once"},
	})
	section("Ingresses", []fact{
		{"appliance/addons/ingress", "maxIngresses", false, "", "Ingresses that are served, the oldest first, this cluster's own before others"},
		{"appliance/addons/ingress", "maxPerConsumer", false, "", "of another cluster"},
		{"appliance/addons/ingress", "maxPaths", false, "", "paths in all of them"},
		{"appliance/addons/ingress", "maxCertificates", false, "", "names with a certificate"},
		{"appliance/addons/ingress", "maxRequests", false, "", "requests under way at once"},
		{"appliance/addons/ingress", "answerTimeout", false, "", "until a pod begins its answer"},
	})
	section("This device", []fact{
		{"appliance/config", "maxSize", true, "", "the configuration file"},
		{"appliance/lifetime/firstboot", "maxCard", true, "", "the file on the boot partition"},
		{"appliance/diagnose/prometheus/endpoint", "MaxAccesses", false, "", "scrapers with access to the metrics over the network"},
		{"appliance/lifetime/upgrade", "maxCrashes", false, "", "crashes of a new version before it is undone"},
		{"appliance/lifetime/upgrade", "maxStarts", false, "", "starts of a new version before it is undone"},
	})
	b.WriteString("\n## Each listener\n\nStrangers are those who have not proved yet who they are. A stranger without a free place replaces the oldest one of the address that has most. Silence is a piece of a request that does not come, " +
		"or of an answer that is not taken; with \"in all\" it is all of both.\n\n| listener | connections | requests at once in one (HTTP/2) | headers | until they have come | silence | idle |\n|---|---|---|---|---|---|---|\n")
	for _, l := range httpserver.Table {
		conns, streams, silence, idle := "", "1", "", ""
		switch c := l.Conns; {
		case l.Most > 0:
			conns = fmt.Sprint(l.Most, ", more wait")
		case c.Strangers > 0:
			conns = fmt.Sprintf("%d of strangers, %d of one address", c.Strangers, c.PerSource)
			if c.Deadline > 0 {
				conns += fmt.Sprint(", ", c.Deadline, " each")
			}
			if c.Peers > 0 {
				conns += fmt.Sprintf("; %d of peers, %d of one", c.Peers, c.PerPeer)
			}
			if c.Users > 0 {
				conns += fmt.Sprintf("; %d of users, %d of one", c.Users, c.PerUser)
			}
		}
		if l.Streams > 0 {
			streams = fmt.Sprint(l.Streams)
		}
		switch {
		case l.Whole > 0:
			silence = fmt.Sprint(l.Whole, " in all")
		case l.Stall > 0:
			silence = fmt.Sprint(l.Stall)
		}
		if l.Idle > 0 {
			idle = fmt.Sprint(l.Idle)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %d KiB | %s | %s | %s |\n", l.What, conns, streams, l.Header>>10, l.Begin, silence, idle)
	}
	docpage.Check(t, "limits.md", "constants of the code, by test/arch/reference_test.go", b.String())
}

// docs/reference/crds.md is made of the definitions.
func TestReferenceOfCRDs(t *testing.T) {
	var b strings.Builder
	b.WriteString("# Custom resources\n\n`rivulet kubectl explain KIND.spec` says the same on a device.\n")
	found := 0
	for _, folder := range packagesOf(t, "appliance", "offload") {
		files, err := filepath.Glob(filepath.Join(root, folder, "*crd*.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			raw, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			found++
			describeCRD(t, &b, raw)
		}
	}
	if found == 0 {
		t.Error("no definition found")
	}
	b.WriteString("\nHow Peer objects are made, and what deleting one does: [peers](../design/peers.md).\n")
	docpage.Check(t, "crds.md", "the files *crd*.yaml", b.String())
}

// schema is what of an OpenAPI schema the page shows.
type schema struct {
	Type, Description, Pattern, Format string
	Properties                         map[string]schema
	Items                              *schema
}

func describeCRD(t *testing.T, b *strings.Builder, raw []byte) {
	t.Helper()
	var crd struct {
		Spec struct {
			Group, Scope string
			Names        struct{ Kind, Plural string }
			Versions     []struct {
				Name                     string
				AdditionalPrinterColumns []struct {
					Name, JSONPath string
					Priority       int
				}
				Schema struct{ OpenAPIV3Schema schema }
			}
		}
	}
	if err := yaml.Unmarshal(raw, &crd); err != nil {
		t.Fatal(err)
	}
	for _, v := range crd.Spec.Versions {
		fmt.Fprintf(b, "\n## %s\n\n`%s/%s`, %s scoped; `kubectl get %s`.\n\n| field | type | what |\n|---|---|---|\n",
			crd.Spec.Names.Kind, crd.Spec.Group, v.Name, strings.ToLower(crd.Spec.Scope), crd.Spec.Names.Plural)
		fields(b, "", v.Schema.OpenAPIV3Schema)
		b.WriteString("\n| column | shows |\n|---|---|\n")
		for _, c := range v.AdditionalPrinterColumns {
			wide := ""
			if c.Priority > 0 {
				wide = ", with `-o wide`"
			}
			fmt.Fprintf(b, "| %s | `%s`%s |\n", c.Name, c.JSONPath, wide)
		}
	}
}

func fields(b *strings.Builder, path string, s schema) {
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		at, p := strings.TrimPrefix(path+"."+name, "."), s.Properties[name]
		kind := p.Type
		if p.Format != "" {
			kind += ", " + p.Format
		}
		what := p.Description
		if p.Pattern != "" {
			what += " Matches `" + p.Pattern + "`."
		}
		if len(p.Properties) == 0 {
			fmt.Fprintf(b, "| `%s` | %s | %s |\n", at, kind, docpage.Cell(what))
		}
		fields(b, at, p)
		if p.Items != nil {
			fields(b, at+"[]", *p.Items)
		}
	}
}
