package vcluster

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"rivulet/test/harness/await"
	"rivulet/test/harness/labtest"
	"rivulet/test/harness/mainjob"
)

const operator = `
apiVersion: v1
kind: ServiceAccount
metadata: {name: reader}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: reader}
rules: [{apiGroups: [""], resources: [pods], verbs: [get, list]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: reader}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reader}
subjects: [{kind: ServiceAccount, name: reader}]
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Pod
metadata: {name: operator, labels: {app: web}}
spec:
  serviceAccountName: reader
  terminationGracePeriodSeconds: 1
  containers: [{name: web, image: "` + mainjob.Image + `"}]
`

// TestPodsReachTheirAPIServer: a pod finds the API server of its virtual cluster by the name and the variables that every cluster
// has, with the token of its account, wakes it, and reaches no other. Addresses of Services are true inside.
func TestPodsReachTheirAPIServer(t *testing.T) {
	ctx := suite.Bounded(t, 6*time.Minute)
	a := suite.Devices["a"]
	for _, name := range []string{"ann", "ben"} {
		labtest.CleanUp(t, func(ctx context.Context) { labtest.On(t, ctx, a, "rivulet", "vcluster", "delete", name, "--yes") })
		labtest.Must(t, ctx, a, "rivulet", "vcluster", "create", name, "--sleep", "15s")
	}
	kubectl := func(args ...string) (string, error) {
		return a.Run(ctx, append([]string{"rivulet", "vcluster", "connect", "ann", "--", "kubectl"}, args...)...)
	}
	labtest.Must(t, ctx, a, "sh", "-c", `printf '%s' "$1" > /tmp/operator.yaml && rivulet vcluster connect ann -- kubectl apply -f /tmp/operator.yaml`, "sh", operator)
	await.NoError(t, ctx, time.Minute, "the pod runs", func() error {
		out, err := kubectl("get", "pod", "operator", "-o", "jsonpath={.status.phase}")
		if err == nil && out != "Running" {
			err = fmt.Errorf("%q", out)
		}
		return err
	})
	// From the host's side: nothing of it is a request to the virtual cluster.
	twin := strings.TrimSpace(labtest.Must(t, ctx, a, "sh", "-c", "rivulet kubectl get namespaces -o name | grep namespace/default-ann- | cut -d/ -f2"))
	inside := func(args ...string) (string, error) {
		return a.Run(ctx, append([]string{"rivulet", "kubectl", "-n", twin, "exec", "operator", "--"}, args...)...)
	}
	answers := func(path, want string) func() error {
		return func() error {
			out, err := inside("/bin/web", "api", path)
			if err == nil && !strings.HasPrefix(out, want) {
				err = fmt.Errorf("%.200q, want %s", out, want)
			}
			return err
		}
	}
	await.NoError(t, ctx, 30*time.Second, "it reads itself by its account", answers("/api/v1/namespaces/default/pods/operator", "200"))
	if err := answers("/api/v1/namespaces/kube-system/secrets", "403")(); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"} {
		out, err := inside("sh", "-c", "KUBERNETES_SERVICE_HOST="+name+" KUBERNETES_SERVICE_PORT=443 /bin/web api /api/v1/namespaces/default/pods")
		if err != nil || !strings.HasPrefix(out, "200") {
			t.Errorf("by %s: %.200q %v", name, out, err)
		}
	}

	address, err := kubectl("get", "service", "web", "-o", "jsonpath={.spec.clusterIP}")
	if err != nil || net.ParseIP(address) == nil {
		t.Fatalf("%q %v", address, err)
	}
	await.NoError(t, ctx, 30*time.Second, "the address of a Service leads there", func() error {
		out, err := inside("/bin/web", "get", "http://"+address+"/")
		if err == nil && !strings.Contains(out, "operator") {
			err = fmt.Errorf("%q", out)
		}
		return err
	})
	if out, err := inside("sh", "-c", "busybox nslookup web.default.svc.cluster.local | busybox grep -A1 ^Name"); err != nil || !strings.Contains(out, address) {
		t.Errorf("DNS has another address than %s: %q %v", address, out, err)
	}
	resolver, err := inside("sh", "-c", "busybox sed -n 's/^nameserver //p' /etc/resolv.conf")
	if resolver = strings.TrimSpace(resolver); err != nil || net.ParseIP(resolver) == nil {
		t.Fatalf("%q %v", resolver, err)
	}
	if out, err := inside("sh", "-c", "busybox nslookup kube-dns.kube-system.svc.cluster.local | busybox grep -A1 ^Name"); err != nil || !strings.Contains(out, resolver) {
		t.Errorf("kube-dns has another address than %s: %q %v", resolver, out, err)
	}
	for what, want := range map[string][2]string{
		"the node":               {"node -o jsonpath={.items[*].status.addresses[?(@.type==\"InternalIP\")].address}", hostIP(t, ctx)},
		"hostIP":                 {"pod operator -o jsonpath={.status.hostIP}", hostIP(t, ctx)},
		"Endpoints kubernetes":   {"endpoints kubernetes -o jsonpath={.subsets[*].addresses[*].ip}", hostIP(t, ctx)},
		"Service kube-dns":       {"service -n kube-system kube-dns -o jsonpath={.spec.clusterIP}", resolver},
		"slices of kubernetes":   {"endpointslices -l kubernetes.io/service-name=kubernetes -o jsonpath={.items[*].endpoints[*].addresses[*]}", hostIP(t, ctx)},
		"the kubelet API's port": {"nodes -o jsonpath={.items[*].status.daemonEndpoints.kubeletEndpoint.Port}", "10250"},
	} {
		if out, err := kubectl(append([]string{"get"}, strings.Fields(want[0])...)...); err != nil || strings.TrimSpace(out) != want[1] {
			t.Errorf("%s: %q %v, want %s", what, out, err, want[1])
		}
	}
	if out, err := kubectl("logs", "operator"); err != nil {
		t.Errorf("its log: %q %v", out, err)
	}

	// What it must not reach.
	var list []struct {
		Name    string
		State   string
		Address string
	}
	views := func() map[string][2]string {
		t.Helper()
		if err := json.Unmarshal([]byte(labtest.Must(t, ctx, a, "rivulet", "vcluster", "list", "-o", "json")), &list); err != nil {
			t.Fatal(err)
		}
		out := map[string][2]string{}
		for _, v := range list {
			out[v.Name] = [2]string{v.State, v.Address}
		}
		return out
	}
	host, _, err := net.SplitHostPort(views()["ann"][1])
	if err != nil {
		t.Fatal(err)
	}
	for at, reached := range map[string]bool{views()["ann"][1]: true, views()["ben"][1]: false, host + ":6443": false, host + ":10250": false} {
		h, port, _ := net.SplitHostPort(at)
		out, err := inside("sh", "-c", "busybox nc -w 3 "+h+" "+port+" < /dev/null")
		if (err == nil) != reached {
			t.Errorf("a pod of ann connects to %s: %q %v, want %v", at, out, err, reached)
		}
	}

	await.NoError(t, ctx, 2*time.Minute, "it falls asleep", func() error {
		if s := views()["ann"][0]; s != "Asleep" {
			return fmt.Errorf("%s", s)
		}
		return nil
	})
	begun := time.Now()
	if err := answers("/api/v1/namespaces/default/pods/operator", "200")(); err != nil {
		t.Errorf("a request of a pod does not wake it: %v", err)
	}
	t.Logf("woken by a pod in %s", time.Since(begun).Round(10*time.Millisecond))
	if s := views()["ann"][0]; s != "Awake" {
		t.Errorf("it is %s", s)
	}
}
