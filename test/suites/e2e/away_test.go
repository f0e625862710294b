package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"rivulet/test/harness/await"
	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
)

const awayManifest = `{"apiVersion":"v1","kind":"List","items":[
{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"needs","labels":{"rivulet.dev/offload":"remote","rivulet.dev/offload-to":"b"}}},
{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"other","labels":{"rivulet.dev/offload":"remote","rivulet.dev/offload-to":"b"}}},
{"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":"reader","namespace":"needs"}},
{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"RoleBinding","metadata":{"name":"reader","namespace":"needs"},
 "roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"view"},
 "subjects":[{"kind":"ServiceAccount","name":"reader","namespace":"needs"}]},
{"apiVersion":"v1","kind":"Service","metadata":{"name":"front","namespace":"needs"},"spec":{"selector":{"app":"web"},"ports":[{"name":"http","port":80,"targetPort":8080}]}},
{"apiVersion":"v1","kind":"Service","metadata":{"name":"far","namespace":"other"},"spec":{"selector":{"app":"none"},"ports":[{"port":80}]}},
{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web","namespace":"needs","labels":{"app":"web"}},"spec":{
 "serviceAccountName":"reader","terminationGracePeriodSeconds":1,
 "containers":[{"name":"web","image":"rivulet.dev/demo-web:1","readinessProbe":{"httpGet":{"path":"/ready","port":8080},"periodSeconds":1}}]}}]}`

// A pod away needs what it needs at home: the names of Services, the API server
// with its own account, its events, and somebody to debug it.
func TestWhatAPodNeedsAway(t *testing.T) {
	ctx := need(t, 5*time.Minute)
	a, b := devices["a"], devices["b"]
	kubectl := func(d *lab.Device, args ...string) (string, error) {
		return d.Run(ctx, append([]string{"rivulet", "kubectl"}, args...)...)
	}
	labtest.Output(t, ctx, a, "sh", "-c", `printf %s "$1" | rivulet kubectl apply -f -`, "apply", awayManifest)
	labtest.CleanUp(t, func(ctx context.Context) {
		_, _ = a.Run(ctx, "rivulet", "kubectl", "delete", "namespace", "needs", "other", "--wait=false")
	})
	var pod corev1.Pod
	await.NoError(t, ctx, 0, "the pod runs on b", func() error {
		out, err := kubectl(a, "get", "pod", "web", "-n", "needs", "-o", "json")
		if err != nil {
			return err
		}
		if err := json.Unmarshal([]byte(out), &pod); err != nil {
			return err
		}
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue && pod.Spec.NodeName == "b" {
				return nil
			}
		}
		return fmt.Errorf("on %q: %s %s", pod.Spec.NodeName, pod.Status.Phase, pod.Status.Message)
	})
	inside := func(args ...string) (string, error) {
		return kubectl(a, append([]string{"exec", "-n", "needs", "web", "--"}, args...)...)
	}

	t.Run("the API server of home answers its service account", func(t *testing.T) {
		await.NoError(t, ctx, 0, "its own pod at home", func() error {
			out, err := inside("/bin/web", "api", "/api/v1/namespaces/needs/pods/web")
			if err == nil && (!strings.HasPrefix(out, "200") || !strings.Contains(out, string(pod.UID))) {
				err = fmt.Errorf("%.300s", out)
			}
			return err
		})
		if out, err := inside("/bin/web", "api", "/api/v1/namespaces/kube-system/secrets"); err != nil || !strings.HasPrefix(out, "403") || !strings.Contains(out, "system:serviceaccount:needs:reader") {
			t.Errorf("what the account may not: %.300s %v", out, err)
		}
	})

	t.Run("OIDC discovery names what the pod reaches", func(t *testing.T) {
		const keys = "https://kubernetes.default.svc.cluster.local/openid/v1/jwks"
		if out, err := inside("/bin/web", "api", "/.well-known/openid-configuration"); err != nil || !strings.HasPrefix(out, "200") || !strings.Contains(out, `"`+keys+`"`) {
			t.Errorf("discovery: %.500s %v", out, err)
		}
		hosts, err := inside("/bin/busybox", "cat", "/etc/hosts")
		if err != nil || !strings.Contains(hosts, "kubernetes.default.svc.cluster.local") {
			t.Errorf("that name leads nowhere: %s %v", hosts, err)
		}
		if out, err := inside("/bin/web", "api", "/openid/v1/jwks"); err != nil || !strings.HasPrefix(out, "200") || !strings.Contains(out, `"kid"`) {
			t.Errorf("keys: %.500s %v", out, err)
		}
	})

	t.Run("the virtual node's kubelet answers as any", func(t *testing.T) {
		raw := func(path string) (string, error) { return kubectl(a, "get", "--raw", "/api/v1/nodes/b/proxy"+path) }
		for path, want := range map[string]string{"/pods": string(pod.UID), "/runningpods/": string(pod.UID), "/healthz": "ok"} {
			if out, err := raw(path); err != nil || !strings.Contains(out, want) {
				t.Errorf("%s: %.500s %v", path, out, err)
			}
		}
		for path, want := range map[string]string{"/stats/summary": `"uid":"` + string(pod.UID) + `"`, "/metrics/resource": `pod_memory_working_set_bytes{namespace="needs",pod="web"} `} {
			await.NoError(t, ctx, 0, path+" tells what the pod uses", func() error {
				out, err := raw(path)
				if err == nil && !strings.Contains(out, want) {
					err = fmt.Errorf("%.500s", out)
				}
				return err
			})
		}
	})

	t.Run("a deadline that is set later ends the pod", func(t *testing.T) {
		for name, restarts := range map[string]string{"never": "Never", "always": "Always"} {
			labtest.Output(t, ctx, a, "rivulet", "kubectl", "run", name, "-n", "needs", "--restart="+restarts, "--image=rivulet.dev/demo-web:1")
			await.NoError(t, ctx, 0, name+" runs", func() error {
				out, err := kubectl(a, "get", "pod", name, "-n", "needs", "-o", "jsonpath={.status.phase}")
				if err == nil && out != "Running" {
					err = fmt.Errorf("%s", out)
				}
				return err
			})
			labtest.Output(t, ctx, a, "rivulet", "kubectl", "patch", "pod", name, "-n", "needs", "-p", `{"spec":{"activeDeadlineSeconds":1}}`)
			await.NoError(t, ctx, 0, name+" has failed", func() error {
				out, err := kubectl(a, "get", "pod", name, "-n", "needs", "-o", "jsonpath={.status.phase} {.status.reason}")
				if err == nil && out != "Failed DeadlineExceeded" {
					err = fmt.Errorf("%s", out)
				}
				return err
			})
		}
	})

	t.Run("nobody else of the provider gets there", func(t *testing.T) {
		// b's node, which is in the tunnel too, by the way that the pod has.
		link := labtest.Output(t, ctx, b, "sh", "-c", `rivulet kubectl get endpointslices -A -l kubernetes.io/service-name=rivulet-home-api -o jsonpath='{.items[0].endpoints[0].addresses[0]}'`)
		answer, err := b.Run(ctx, "sh", "-c", `echo | timeout 20 openssl s_client -connect `+strings.TrimSpace(link)+`:7442 -servername kubernetes.default.svc 2>&1 | grep -c BEGIN.CERTIFICATE; true`)
		if err != nil || strings.TrimSpace(answer) != "0" {
			t.Errorf("%s showed b's node a certificate: %q %v", link, answer, err)
		}
	})

	t.Run("names are those of home", func(t *testing.T) {
		for _, name := range []string{"front", "front.needs", "front.needs.svc", "front.needs.svc.cluster.local"} {
			await.NoError(t, ctx, 0, name, func() error {
				out, err := inside("/bin/web", "get", "http://"+name+"/")
				if err == nil && !strings.Contains(out, `"web":1`) {
					err = fmt.Errorf("%s", out)
				}
				return err
			})
		}
		await.NoError(t, ctx, 0, "a Service of another namespace", func() error {
			out, err := inside("/bin/busybox", "nslookup", "far.other.svc.cluster.local")
			if err == nil && !strings.Contains(out, "10.43.") {
				err = fmt.Errorf("%s", out)
			}
			return err
		})
	})

	t.Run("home has the events of the provider", func(t *testing.T) {
		await.NoError(t, ctx, 0, "Started, said by b's kubelet of the pod of home", func() error {
			out, err := kubectl(a, "get", "events", "-n", "needs", "--field-selector", "reason=Started,involvedObject.name=web,involvedObject.uid="+string(pod.UID), "-o", "jsonpath={.items[*].source}")
			if err == nil && !strings.Contains(out, `"kubelet"`) {
				err = fmt.Errorf("%q", out)
			}
			return err
		})
	})

	t.Run("kubectl debug", func(t *testing.T) {
		labtest.Output(t, ctx, a, "rivulet", "kubectl", "debug", "-n", "needs", "web", "--image=rivulet.dev/demo-web:1", "--container=dbg", "--target=web", "--",
			"/bin/busybox", "sh", "-c", "read first </proc/1/comm; echo I see $first $KUBERNETES_SERVICE_HOST")
		await.NoError(t, ctx, 0, "what it says", func() error {
			out, err := kubectl(a, "logs", "-n", "needs", "web", "-c", "dbg")
			if err == nil && !strings.Contains(out, "I see web kubernetes.default.svc") {
				err = fmt.Errorf("%q", out)
			}
			return err
		})
		await.NoError(t, ctx, 0, "how it ended", func() error {
			out, err := kubectl(a, "get", "pod", "-n", "needs", "web", "-o", "jsonpath={.status.ephemeralContainerStatuses[0].state.terminated.reason}")
			if err == nil && out != "Completed" {
				err = fmt.Errorf("%q", out)
			}
			return err
		})
	})
}
