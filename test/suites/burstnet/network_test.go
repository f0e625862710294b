package burstnet

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"rivulet/test/harness/await"
	"rivulet/test/harness/campus"
	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
)

const image = "rivulet.dev/demo-web:1"

// What home has: a pod of its own behind a Service, and one that goes to the campus. busybox's nc answers one connection after the other.
const work = `
apiVersion: v1
kind: Namespace
metadata: {name: lab, labels: {rivulet.dev/offload: any}}
---
apiVersion: v1
kind: Pod
metadata: {name: server, namespace: lab, labels: {app: server}}
spec:
  hostname: first
  subdomain: peers
  nodeSelector: {node-role.kubernetes.io/control-plane: "true"}
  containers:
  - name: tcp
    image: ` + image + `
    imagePullPolicy: Never
    command: [sh, -c, "while :; do echo tcp at home | nc -l -p 8079; done"]
  - name: web
    image: ` + image + `
    imagePullPolicy: Never
---
apiVersion: v1
kind: Service
metadata: {name: server, namespace: lab}
spec:
  selector: {app: server}
  ports:
  - {name: tcp, port: 80, targetPort: 8079}
  - {name: udp, port: 80, targetPort: 8080, protocol: UDP}
---
apiVersion: v1
kind: Service
metadata: {name: peers, namespace: lab}
spec:
  clusterIP: None
  selector: {app: server}
  ports:
  - {name: tcp, port: 8079}
---
apiVersion: v1
kind: Service
metadata: {name: alias, namespace: lab}
spec: {type: ExternalName, externalName: server.lab.svc.cluster.local}
---
apiVersion: v1
kind: Pod
metadata: {name: away, namespace: lab, labels: {app: away}}
spec:
  nodeSelector: {kubernetes.io/hostname: burst-campus}
  tolerations: [{operator: Exists}]
  containers:
  - name: web
    image: ` + image + `
    imagePullPolicy: Never
    securityContext: {runAsUser: 1000}
    command: [sh, -c, "while :; do echo pod at the campus | nc -l -p 8080; done"]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: reader, namespace: lab}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}
subjects: [{kind: ServiceAccount, name: default, namespace: lab}]
---
apiVersion: v1
kind: Pod
metadata: {name: asker, namespace: lab}
spec:
  nodeSelector: {node-role.kubernetes.io/control-plane: "true"}
  containers:
  - name: sh
    image: ` + image + `
    imagePullPolicy: Never
    command: [sh, -c, "sleep 100000"]
`

// Home lets nobody in and sends no UDP: what is left is HTTPS to the campus.
const shut = `nft add table inet nat_box
nft 'add chain inet nat_box in { type filter hook input priority -300; }'
nft add rule inet nat_box in iifname eth0 ct state established,related accept
nft add rule inet nat_box in iifname eth0 drop
nft 'add chain inet nat_box out { type filter hook output priority -300; }'
nft add rule inet nat_box out oifname eth0 meta l4proto udp drop`

func TestNetworkOfABurst(t *testing.T) {
	ctx := suite.Bounded(t, 8*time.Minute)
	home, d := suite.Devices["a"], suite.Devices["b"]
	labtest.Must(t, ctx, d, "rivulet", "ctr", "-n", "k8s.io", "images", "import", "/opt/rivulet/demo-web.tar")
	labtest.Must(t, ctx, home, "rivulet", "ctr", "-n", "k8s.io", "images", "import", "/opt/rivulet/demo-web.tar")
	become := campus.Become
	if campus.Enforces() {
		become = campus.BecomeEnforcing
	}
	there, err := become(ctx, d, "10.77.0.12")
	must(t, err)
	kubeconfig, err := there.Enrol(ctx)
	must(t, err)
	must(t, os.WriteFile(home.Path("/root/campus.kubeconfig"), []byte(kubeconfig), 0o600))
	must(t, os.WriteFile(home.Path("/root/work.yaml"), []byte(work), 0o600))
	labtest.Must(t, ctx, home, "sh", "-c", shut)
	must(t, suite.Lab.Heal())

	add := []string{"rivulet", "burst", "add", "campus", "--kubeconfig", "/root/campus.kubeconfig", "--limits", "cpu=8,memory=512Mi", "--network", "auto", "--image", "shell=" + image}
	var denied labtest.Result
	await.NoError(t, ctx, time.Minute, "it is told which rights a network needs", func() error {
		if denied = labtest.On(t, ctx, home, add...); denied.Code != 3 {
			return fmt.Errorf("exit code %d: %s%s", denied.Code, denied.Out, denied.ErrOut)
		}
		return nil
	})
	_, role, _ := strings.Cut(denied.Out, "The smallest Role that has all of it:\n\n")
	must(t, there.Apply(ctx, role))
	await.NoError(t, ctx, time.Minute, "with them it is added", func() error {
		if r := labtest.On(t, ctx, home, add...); r.Code != 0 {
			return fmt.Errorf("exit code %d: %s%s", r.Code, r.Out, r.ErrOut)
		}
		return nil
	})
	labtest.Must(t, ctx, home, "rivulet", "kubectl", "apply", "-f", "/root/work.yaml")
	awaitGateway(t, ctx, home, "stream through the API server")
	awaitBoth(t, ctx, home)

	t.Run("the campus holds pods to its policies", func(t *testing.T) { strangers(t, ctx, there) })
	t.Run("the gateway pod is deleted", func(t *testing.T) {
		was := status(t, ctx, home).Pod
		_, err := there.Kubectl(ctx, "delete", "pod", "-n", campus.Namespace, was, "--grace-period=1")
		must(t, err)
		await.NoError(t, ctx, 2*time.Minute, "another is the gateway", func() error {
			if s := status(t, ctx, home); !s.Ready || s.Pod == was {
				return fmt.Errorf("%+v", s)
			}
			return nil
		})
		awaitBoth(t, ctx, home)
	})
	t.Run("the API server of the campus restarts", func(t *testing.T) {
		must(t, there.Stop(ctx))
		must(t, there.Start(ctx))
		awaitGateway(t, ctx, home, "stream through the API server")
		awaitBoth(t, ctx, home)
	})
	t.Run("UDP passes after all", func(t *testing.T) {
		labtest.Must(t, ctx, home, "nft", "delete", "table", "inet", "nat_box")
		awaitGateway(t, ctx, home, "udp ")
		awaitBoth(t, ctx, home)
	})
	t.Run("removed", func(t *testing.T) {
		labtest.Must(t, ctx, home, "rivulet", "burst", "remove", "campus", "--yes")
		await.NoError(t, ctx, time.Minute, "nothing is left", func() error {
			out, err := there.Kubectl(ctx, "get", "deployments,replicasets,pods,services,secrets,networkpolicies", "-n", campus.Namespace, "-l", "rivulet.dev/burst-home", "-o", "name")
			if err != nil || strings.TrimSpace(out) != "" {
				return fmt.Errorf("%s %w", out, err)
			}
			return nil
		})
	})
}

type gatewayStatus struct {
	Ready     bool
	Reason    string
	Pod       string
	Transport string
	RTT       time.Duration
	Problems  []string
}

func status(t *testing.T, ctx context.Context, home *lab.Device) gatewayStatus {
	t.Helper()
	r := labtest.On(t, ctx, home, "rivulet", "burst", "status", "campus", "-o", "json")
	var one struct{ Gateway gatewayStatus }
	var many []struct{ Gateway gatewayStatus }
	if json.Unmarshal([]byte(r.Out), &many) == nil && len(many) == 1 {
		return many[0].Gateway
	}
	if err := json.Unmarshal([]byte(r.Out), &one); err != nil {
		return gatewayStatus{Reason: r.Out + r.ErrOut}
	}
	return one.Gateway
}

func awaitGateway(t *testing.T, ctx context.Context, home *lab.Device, transport string) {
	t.Helper()
	start := time.Now()
	await.NoError(t, ctx, 3*time.Minute, "the gateway is there, by "+transport, func() error {
		if s := status(t, ctx, home); !s.Ready || !strings.HasPrefix(s.Transport, transport) {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	t.Logf("by %s after %s: %+v", transport, time.Since(start).Round(100*time.Millisecond), status(t, ctx, home))
}

// awaitBoth has a pod at home reach the pod at the campus by its address, and that pod
// the Service at home by its names, by TCP and UDP.
func awaitBoth(t *testing.T, ctx context.Context, home *lab.Device) {
	t.Helper()
	var ip string
	await.NoError(t, ctx, 3*time.Minute, "the pod runs at the campus and has an address", func() error {
		out, err := home.Kubectl(ctx, "get", "pod", "-n", "lab", "away", "-o", "jsonpath={.status.phase} {.status.podIP} {.status.message}")
		f := strings.Fields(out)
		if err != nil || len(f) < 2 || f[0] != "Running" || !strings.Contains(f[1], ".") {
			return fmt.Errorf("%s %w %+v", out, err, status(t, ctx, home))
		}
		ip = f[1]
		return nil
	})
	say := func(pod, want string, cmd ...string) {
		t.Helper()
		await.NoError(t, ctx, 2*time.Minute, pod+" hears "+want, func() error {
			out, err := home.Kubectl(ctx, append([]string{"exec", "-n", "lab", pod, "--", "sh", "-c"}, cmd...)...)
			if !strings.Contains(out, want) {
				return fmt.Errorf("%q %w %+v", out, err, status(t, ctx, home))
			}
			return nil
		})
	}
	say("asker", "pod at the campus", "nc -w 5 "+ip+" 8080 </dev/null")
	// The campus has no DNS of its own here: a name that is not home's takes its time.
	for _, name := range []string{"server", "server.lab", "server.lab.svc.cluster.local."} {
		say("away", "tcp at home", "nc -w 15 "+name+" 80 </dev/null")
	}
	// A pod by its own name, a name that stands for another, and where a port is.
	say("away", "tcp at home", "nc -w 15 first.peers.lab.svc.cluster.local. 8079 </dev/null")
	say("away", "tcp at home", "nc -w 15 alias.lab.svc.cluster.local. 80 </dev/null")
	say("away", "8079 first.peers.lab.svc.cluster.local", "nslookup -type=srv _tcp._tcp.peers.lab.svc.cluster.local.")
	// Home's API server, with the pod's own token, which is good for what its account at home may do.
	say("away", `"name":"asker"`, "web api /api/v1/namespaces/lab/pods/asker")
	say("away", "403 Forbidden", "web api /api/v1/namespaces/kube-system/pods")
	// UDP, from the pod's own address as home sees it.
	say("away", `hello {"pod":"first","client":"`+ip+`"}`, "web udp server.lab.svc.cluster.local.:80 hello")
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
