// Package campus makes of a device of a lab a cluster that runs no Rivulet: the pinned
// k3s, started bare, with a namespace in which an ordinary user may do what a Role
// says, and with the rules that such namespaces have. It is for tests of burst.
//
// It writes on that device only, and ends with the lab. The device was a Rivulet
// before: its supervisor and its tunnel are ended for good, and what walls its ports
// off is taken away.
package campus

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"rivulet/appliance/engine"
	"rivulet/appliance/machine/host"
	"rivulet/test/harness/await"
	"rivulet/test/harness/lab"
)

// Namespace is the user's, User who he is.
const (
	Namespace = "student42"
	User      = "student"
)

// Campus is such a cluster.
type Campus struct {
	Device *lab.Device
	Server string // the URL of its API
}

// note keeps what has to be known of a Rivulet before it is ended.
const note = `set -e
mkdir -p /var/lib/campus
readlink /proc/$(cat /run/rivulet/engine.pid)/exe > /var/lib/campus/exe
cat /run/rivulet/tunnel.pid > /var/lib/campus/tunnel`

// start starts the engine in a session of its own: it outlives the command that starts
// it. The arguments are the engine's; k3s itself shows none of them in /proc. The kubelet asks
// containerd for images: the supervisor, which answers under Rivulet, is not there.
const start = `kill $(cat /var/lib/campus/tunnel) 2>/dev/null || true
printf '%s\n' "$@" > /var/lib/campus/args
nft list tables | grep rivulet | while read -r line; do nft delete $line; done
sed -i /imageServiceEndpoint/d /var/lib/rivulet/k3s-kubelet.yaml
export RIVULET_PODGATE=none PATH=/run/rivulet/bin:/var/lib/rivulet/bundle/current/bin:$PATH
setsid bash -c 'exec -a rivulet-engine "$(cat /var/lib/campus/exe)" "$@"' - "$@" </dev/null >/var/lib/campus/log 2>&1 &`

// end and again: the engine ends as by its service manager, and begins as it was.
// Containers run on.
const (
	end = `engine=$(pgrep -o -f ^rivulet-engine); kill $engine; while kill -0 $engine 2>/dev/null; do sleep 0.2; done`

	again = `mapfile -t args < /var/lib/campus/args
export RIVULET_PODGATE=none PATH=/run/rivulet/bin:/var/lib/rivulet/bundle/current/bin:$PATH
setsid bash -c 'exec -a rivulet-engine "$(cat /var/lib/campus/exe)" "$@"' - "${args[@]}" </dev/null >>/var/lib/campus/log 2>&1 &`
)

// Stop ends the campus's API server, with all of its engine: nobody answers any more.
func (c *Campus) Stop(ctx context.Context) error {
	if _, err := c.Device.Run(ctx, "bash", "-c", end); err != nil {
		return fmt.Errorf("campus: end the engine: %w", err)
	}
	return nil
}

// Start starts it again and waits until it is up.
func (c *Campus) Start(ctx context.Context) error {
	if _, err := c.Device.Run(ctx, "bash", "-c", again); err != nil {
		return fmt.Errorf("campus: start the engine: %w", err)
	}
	return c.Wait(ctx)
}

// Become makes the device, on which Rivulet is ready, a campus. address is its own on
// the LAN.
func Become(ctx context.Context, d *lab.Device, address string) (*Campus, error) {
	return become(ctx, d, address, false)
}

// Enforces says whether a campus here can hold pods to NetworkPolicies: k3s's controller
// runs the program ipset, which a device has from the machine.
func Enforces() bool {
	_, err := exec.LookPath("ipset")
	return err == nil
}

// BecomeEnforcing is Become, for a campus that holds pods to NetworkPolicies.
func BecomeEnforcing(ctx context.Context, d *lab.Device, address string) (*Campus, error) {
	return become(ctx, d, address, true)
}

func become(ctx context.Context, d *lab.Device, address string, enforcing bool) (*Campus, error) {
	if _, err := d.Run(ctx, "sh", "-c", note); err != nil {
		return nil, fmt.Errorf("campus: what the engine was started with: %w", err)
	}
	args, err := flags(ctx, d)
	if err != nil {
		return nil, err
	}
	if enforcing {
		args = slices.DeleteFunc(args, func(a string) bool { return a == "--disable-network-policy" })
	}
	if err := d.Stop(ctx); err != nil {
		return nil, fmt.Errorf("campus: end rivulet: %w", err)
	}
	if _, err := d.Run(ctx, append([]string{"bash", "-c", start, "-"}, args...)...); err != nil {
		return nil, fmt.Errorf("campus: start the engine: %w", err)
	}
	c := &Campus{Device: d, Server: "https://" + address + ":6443"}
	return c, c.Wait(ctx)
}

// UserKubeconfig is where Join puts the user's kubeconfig on his device.
const UserKubeconfig = "/root/campus.kubeconfig"

// Joined is what the user saw.
type Joined struct {
	Command string // what he typed
	Denied  string // without rights, up to the Role that an administrator is asked for
	Added   string // with that Role
}

// Join is what a user and an administrator do until home has the campus as a burst
// target of that name: the user has a kubeconfig and no rights, and asks for those
// that are missing. flags are those of `rivulet burst add`.
func (c *Campus) Join(ctx context.Context, home *lab.Device, flags ...string) (j Joined, err error) {
	kubeconfig, err := c.Enrol(ctx)
	if err != nil {
		return j, err
	}
	if err := os.WriteFile(home.Path(UserKubeconfig), []byte(kubeconfig), 0o600); err != nil {
		return j, fmt.Errorf("campus: %w", err)
	}
	add := append([]string{"rivulet", "burst", "add", "campus", "--kubeconfig", UserKubeconfig}, flags...)
	j.Command = strings.Join(add, " ")
	var role string
	err = eventually(ctx, func() error {
		out, err := home.Run(ctx, add...)
		denied, rest, found := strings.Cut(out, "The smallest Role that has all of it:\n\n")
		if err == nil || !found {
			return fmt.Errorf("campus: somebody without rights is not told which are missing: %s%w", out, err)
		}
		j.Denied, role = strings.TrimSpace(denied), rest
		return nil
	})
	if err != nil {
		return j, err
	}
	if err := c.Apply(ctx, role); err != nil {
		return j, err
	}
	return j, eventually(ctx, func() (err error) { j.Added, err = home.Run(ctx, add...); return err })
}

// eventually calls f until it returns nil, within startTimeout.
func eventually(ctx context.Context, f func() error) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return await.Until(ctx, f)
}

// flags are those that the engine has under Rivulet, and a name for its certificate.
func flags(ctx context.Context, d *lab.Device) ([]string, error) {
	out, err := d.Run(ctx, "rivulet", "status", "-o", "json")
	if err != nil {
		return nil, err
	}
	var st struct{ NodeAddress string }
	if err := json.Unmarshal([]byte(out), &st); err != nil {
		return nil, fmt.Errorf("campus: %w", err)
	}
	address, err := netip.ParseAddr(st.NodeAddress)
	if err != nil {
		return nil, fmt.Errorf("campus: the node's address: %w", err)
	}
	facts, err := host.Probe()
	if err != nil {
		return nil, err
	}
	e := engine.New(engine.Config{Argv0: "rivulet-engine", StateDir: "/var/lib/rivulet", RunDir: "/run/rivulet", NodeName: d.Name, NodeIP: address, Facts: facts,
		PodCIDR: netip.MustParsePrefix("10.42.0.0/16"), ServiceCIDR: netip.MustParsePrefix("10.43.0.0/16"), ClusterDNS: netip.MustParseAddr("10.43.0.10")})
	return append(e.Args(), "--tls-san=campus"), nil
}

// startTimeout is generous: two cores may be shared with much else.
const startTimeout = 100 * time.Second

// Wait returns when the API answers and the node is Ready.
func (c *Campus) Wait(ctx context.Context) error {
	return eventually(ctx, func() error {
		out, err := c.Kubectl(ctx, "get", "nodes", "-o", `jsonpath={.items[0].status.conditions[?(@.type=="Ready")].status}`)
		if err == nil && out == "True" {
			return nil
		}
		return fmt.Errorf("campus: not up in time: node Ready: %q: %w", out, err)
	})
}

// Shut is a program that makes of home a device behind a router that translates
// addresses, as seen from a campus at that address: nothing begins there, and no UDP
// goes out. Open undoes it.
func Shut(address string) []string {
	return []string{"sh", "-ec", `nft add table inet nat_box
nft 'add chain inet nat_box in { type filter hook input priority -300; }'
nft add rule inet nat_box in ip saddr ` + address + ` ct state established,related accept
nft add rule inet nat_box in ip saddr ` + address + ` drop
nft 'add chain inet nat_box out { type filter hook output priority -300; }'
nft add rule inet nat_box out ip daddr ` + address + ` meta l4proto udp drop`}
}

// Open is the program that undoes Shut.
func Open() []string { return []string{"nft", "delete", "table", "inet", "nat_box"} }

// Kubectl is the administrator's.
func (c *Campus) Kubectl(ctx context.Context, args ...string) (string, error) {
	return c.Device.Kubectl(ctx, args...)
}

// Apply applies manifests as the administrator.
func (c *Campus) Apply(ctx context.Context, manifests string) error {
	_, err := c.Device.Run(ctx, "sh", "-c", "rivulet kubectl apply -f - <<'END'\n"+manifests+"\nEND")
	return err
}

// rules is the user's namespace: Pod Security restricted, a quota, defaults, and no
// connections that no policy allows.
const rules = `
apiVersion: v1
kind: Namespace
metadata: {name: ` + Namespace + `, labels: {pod-security.kubernetes.io/enforce: restricted}}
---
apiVersion: v1
kind: ResourceQuota
metadata: {name: quota, namespace: ` + Namespace + `}
spec: {hard: {requests.cpu: "2", requests.memory: 1Gi, pods: "10"}}
---
apiVersion: v1
kind: LimitRange
metadata: {name: defaults, namespace: ` + Namespace + `}
spec: {limits: [{type: Container, defaultRequest: {cpu: 10m, memory: 8Mi}}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: nothing, namespace: ` + Namespace + `}
spec: {podSelector: {}, policyTypes: [Ingress, Egress]}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: ` + User + `, namespace: default}`

// Enrol makes the namespace and the user, who has no rights yet, and returns his
// kubeconfig.
func (c *Campus) Enrol(ctx context.Context) (kubeconfig string, err error) {
	if err := c.Apply(ctx, rules); err != nil {
		return "", err
	}
	// What served resource metrics was the supervisor; an API that nobody serves keeps
	// controllers from clean lists of all kinds.
	if _, err := c.Kubectl(ctx, "delete", "apiservice", "v1beta1.metrics.k8s.io", "--ignore-not-found"); err != nil {
		return "", err
	}
	token, err := c.Kubectl(ctx, "create", "token", User, "-n", "default", "--duration=24h")
	if err != nil {
		return "", err
	}
	authority, err := c.Kubectl(ctx, "config", "view", "--raw", "-o", "jsonpath={.clusters[0].cluster.certificate-authority-data}")
	if err != nil {
		return "", err
	}
	return fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: campus, cluster: {server: %q, tls-server-name: campus, certificate-authority-data: %s}}]
users: [{name: %s, user: {token: %s}}]
contexts: [{name: campus, context: {cluster: campus, user: %s, namespace: %s}}]
current-context: campus
`, c.Server, strings.TrimSpace(authority), User, strings.TrimSpace(token), User, Namespace), nil
}
