package burstnet

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"rivulet/test/harness/await"
	"rivulet/test/harness/campus"
)

// others are of another user of the namespace, who may send wherever he likes, and has a
// pod that hears everybody.
const others = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: others, namespace: ` + campus.Namespace + `}
spec: {podSelector: {matchLabels: {whose: other}}, policyTypes: [Ingress, Egress], ingress: [{}], egress: [{}]}
---
apiVersion: v1
kind: Pod
metadata: {name: other, namespace: ` + campus.Namespace + `, labels: {whose: other}}
spec:
  automountServiceAccountToken: false
  securityContext: {runAsNonRoot: true, runAsUser: 1000, seccompProfile: {type: RuntimeDefault}}
  containers:
  - name: web
    image: ` + image + `
    imagePullPolicy: Never
    securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
`

// strangers has another's pod in the same namespace try to reach ours, and ours try to
// reach it, where the campus enforces NetworkPolicies: the one that forbids all, and
// those that Rivulet has written beside it. What ours may do is tested all over.
func strangers(t *testing.T, ctx context.Context, there *campus.Campus) {
	if !campus.Enforces() {
		t.Skip("needs the program ipset, for the network policy controller of k3s")
	}
	must(t, there.Apply(ctx, others))
	address := func(selector string) (name, ip string) {
		t.Helper()
		await.NoError(t, ctx, 2*time.Minute, "the pod "+selector+" runs at the campus", func() error {
			out, err := there.Kubectl(ctx, "get", "pods", "-n", campus.Namespace, "-l", selector, "-o", `jsonpath={range .items[?(@.status.phase=="Running")]}{.metadata.name} {.status.podIP} {end}`)
			f := strings.Fields(out)
			if err != nil || len(f) != 2 {
				return fmt.Errorf("%q %w", out, err)
			}
			name, ip = f[0], f[1]
			return nil
		})
		return name, ip
	}
	other, otherIP := address("whose=other")
	ours, oursIP := address("away.rivulet.dev/app=away")
	_, gateway := address("rivulet.dev/gateway")
	dial := func(pod, to, port string) error {
		_, err := there.Kubectl(ctx, "exec", "-n", campus.Namespace, pod, "--", "sh", "-c", "nc -w 4 "+to+" "+port+" </dev/null >/dev/null")
		return err
	}
	await.NoError(t, ctx, time.Minute, "the other may send: the gateway answers kubelets, and so anybody, on its port for that", func() error { return dial(other, gateway, "10080") })
	// All of these are open but for the policies.
	for _, c := range []struct{ what, pod, to, port string }{
		{"another's pod does not reach ours", other, oursIP, "8080"},
		{"nor the gateway's names", other, gateway, "10053"},
		{"nor its ports for Services", other, gateway, "20000"},
		{"ours reach nobody but each other and the gateway", ours, otherIP, "8080"},
	} {
		await.NoError(t, ctx, time.Minute, c.what, func() error { // the policies are in force some seconds after they are written
			if dial(c.pod, c.to, c.port) == nil {
				return fmt.Errorf("%s reaches %s:%s", c.pod, c.to, c.port)
			}
			return nil
		})
	}
	must(t, dial(ours, gateway, "10053"))
	must(t, dial(other, otherIP, "8080"))
	_, err := there.Kubectl(ctx, "delete", "-n", campus.Namespace, "pod/other", "networkpolicy/others", "--grace-period=1")
	must(t, err)
}
