package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"rivulet/test/harness/await"
	"rivulet/test/harness/labtest"
	"rivulet/test/harness/mainjob"
)

// What home's API says of a Service, and of a pod that runs away, is true away: pods at two providers reach it by its
// cluster IP at home, by TCP and UDP, wherever its endpoints are, their variables and their
// DNS say the same, and home's API server is where home's Service kubernetes is. The
// provider's own Service of that address is none of theirs.
func TestClusterIPsOfHome(t *testing.T) {
	ctx := need(t, 5*time.Minute)
	a, b := devices["a"], devices["b"]
	const ns = "addresses"
	pod := func(name, where string) string {
		return fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%[1]q,"namespace":%[2]q,"labels":{"app":%[1]q,"part":"all"}},"spec":{"terminationGracePeriodSeconds":1,"nodeSelector":{%[3]s},
"containers":[{"name":"web","image":%[4]q,"envFrom":[{"configMapRef":{"name":"settings","optional":true}}],"env":[{"name":"OWN","value":"$(AT_B_PORT) $(AT_C_SERVICE_HOST)"}],
"resources":{"requests":{"cpu":"10m","memory":"8Mi"}}}]}}`, name, ns, where, mainjob.Image)
	}
	before := func(name, label, value, more string) string {
		return fmt.Sprintf(`{"apiVersion":"v1","kind":"Service","metadata":{"name":%q,"namespace":%q},"spec":{"selector":{%q:%q},%s
"ports":[{"name":"http","port":80,"targetPort":8080},{"name":"udp","protocol":"UDP","port":81,"targetPort":8080}]}}`, name, ns, label, value, more)
	}
	service := func(name, more string) string { return before(name, "app", name, more) }
	namespace := func(when string) string {
		return fmt.Sprintf(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":%q,"labels":{"rivulet.dev/offload":%q}}}`, ns, when)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		for _, name := range []string{"a", "b"} {
			devices[name].Kubectl(ctx, "delete", "namespace", ns, "--wait=false", "--ignore-not-found") //nolint:errcheck // seen below
		}
		for _, name := range []string{"b", "c"} {
			await.NoError(t, ctx, 0, "no twin is left on "+name, func() error {
				out, err := devices[name].Kubectl(ctx, "get", "namespaces", "-l", "rivulet.dev/origin", "-o", "name")
				if err == nil && out != "" {
					err = fmt.Errorf("%s", out)
				}
				return err
			})
		}
	}()
	// Services first: variables are of those that there are when a pod starts.
	apply(t, ctx, devices["a"], namespace("any"), fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"settings","namespace":%q},"data":{"AT_B_PORT":"6379"}}`, ns), service("nobody", ""), service("at-home", ""), service("at-b", ""), service("at-c", `"type":"NodePort",`),
		before("spread", "part", "all", ""), before("sticky", "part", "all", `"sessionAffinity":"ClientIP",`))
	cluster := map[string]string{}
	for _, name := range []string{"nobody", "at-home", "at-b", "at-c", "spread", "sticky"} {
		cluster[name] = labtest.Output(t, ctx, a, "rivulet", "kubectl", "-n", ns, "get", "service", name, "-o", "jsonpath={.spec.clusterIP}")
	}
	// The provider has a Service of its own at the address of one of them, and a pod behind it.
	apply(t, ctx, devices["b"], namespace("off"), pod("own", ""), service("own", `"clusterIP":"`+cluster["at-c"]+`",`))
	apply(t, ctx, devices["a"], pod("at-home", `"kubernetes.io/hostname":"a"`), pod("at-b", `"rivulet.dev/target":"b"`), pod("also-at-b", `"rivulet.dev/target":"b"`), pod("at-c", `"rivulet.dev/target":"c"`))
	for _, x := range [][2]string{{"a", "at-home"}, {"a", "at-b"}, {"a", "also-at-b"}, {"a", "at-c"}, {"b", "own"}} {
		await.NoError(t, ctx, 0, x[1]+" is ready", func() error {
			_, err := devices[x[0]].Kubectl(ctx, "-n", ns, "wait", "--for=condition=Ready", "pod/"+x[1], "--timeout=20s")
			return err
		})
	}
	exec := func(d, pod string, args ...string) (string, error) {
		return devices[d].Kubectl(ctx, append([]string{"-n", ns, "exec", pod, "--", "web"}, args...)...)
	}
	for _, from := range []string{"at-home", "at-b", "at-c"} {
		for _, to := range []string{"at-home", "at-b", "at-c"} {
			await.NoError(t, ctx, 0, from+" reaches "+to+" by its cluster IP at home", func() error {
				out, err := exec("a", from, "get", "http://"+cluster[to]+"/")
				if err == nil && !strings.Contains(out, `"`+to+`"`) {
					err = fmt.Errorf("%s answers", out)
				}
				return err
			})
			await.NoError(t, ctx, 0, from+" reaches "+to+" by UDP", func() error {
				out, err := exec("a", from, "udp", cluster[to]+":81", "hello")
				if err == nil && !strings.Contains(out, to) {
					err = fmt.Errorf("%s answers", out)
				}
				return err
			})
		}
	}
	// A node port of home's node leads to its Service, from home and from away.
	nodePort := func(protocol string) string {
		return labtest.Output(t, ctx, a, "rivulet", "kubectl", "-n", ns, "get", "service", "at-c", "-o",
			`jsonpath={.spec.ports[?(@.protocol=="`+protocol+`")].nodePort}`)
	}
	node := labtest.Output(t, ctx, a, "rivulet", "kubectl", "get", "node", "a", "-o", `jsonpath={.status.addresses[?(@.type=="InternalIP")].address}`)
	for _, from := range []string{"at-home", "at-b", "at-c"} {
		await.NoError(t, ctx, 0, from+" reaches at-c by a node port of home's node", func() error {
			out, err := exec("a", from, "get", "http://"+node+":"+nodePort("TCP")+"/")
			if err == nil && !strings.Contains(out, `"at-c"`) {
				err = fmt.Errorf("%s answers", out)
			}
			if err == nil {
				_, err = exec("a", from, "udp", node+":"+nodePort("UDP"), "hello")
			}
			return err
		})
	}
	// Of four pods at three places all answer, and to a client of a Service with affinity always one.
	for _, from := range []string{"at-home", "at-b", "at-c"} {
		answering := func(to string) (pods map[string]int, err error) {
			out, err := exec("a", from, "get", "-n", "40", "http://"+cluster[to]+"/")
			if err == nil {
				err = json.Unmarshal([]byte(out), &pods)
			}
			return pods, err
		}
		await.NoError(t, ctx, 0, from+" reaches all pods of a Service", func() error {
			pods, err := answering("spread")
			if err == nil && len(pods) != 4 {
				err = fmt.Errorf("%v answer", pods)
			}
			return err
		})
		await.NoError(t, ctx, 0, from+" reaches one pod of a Service with affinity", func() error {
			pods, err := answering("sticky")
			if err == nil && len(pods) != 1 {
				err = fmt.Errorf("%v answer", pods)
			}
			return err
		})
	}
	// A Service without endpoints refuses, at home and away; and the API server is found by the
	// name that every pod knows, where /etc/hosts is not asked.
	homeAPI := labtest.Output(t, ctx, a, "rivulet", "kubectl", "get", "service", "kubernetes", "-o", "jsonpath={.spec.clusterIP}")
	for _, from := range []string{"at-home", "at-b", "at-c"} {
		await.NoError(t, ctx, 0, from+" is refused", func() error {
			out, err := exec("a", from, "get", "http://"+cluster["nobody"]+"/")
			if err == nil || !strings.Contains(out+err.Error(), "refused") {
				return fmt.Errorf("%s %v", out, err)
			}
			return nil
		})
		await.NoError(t, ctx, 0, from+" finds home's API server", func() error {
			out, err := devices["a"].Kubectl(ctx, "-n", ns, "exec", from, "--", "/bin/busybox", "nslookup", "kubernetes.default.svc.cluster.local", "10.43.0.10")
			if err == nil && !strings.Contains(out, "Address: "+homeAPI) && !strings.Contains(out, "Address 1: "+homeAPI) {
				err = fmt.Errorf("%s", out)
			}
			return err
		})
	}
	// The address that home's API has of a pod that runs away leads to it from everywhere: from
	// home, from the same provider, from another one, and from itself.
	at := map[string]string{}
	for _, name := range []string{"at-b", "also-at-b", "at-c"} {
		at[name] = labtest.Output(t, ctx, a, "rivulet", "kubectl", "-n", ns, "get", "pod", name, "-o", "jsonpath={.status.podIP}")
	}
	for _, x := range []struct{ from, to string }{
		{"at-home", "at-b"}, {"at-home", "at-c"}, {"also-at-b", "at-b"}, {"at-b", "also-at-b"}, {"at-b", "at-b"}, {"at-c", "at-c"}, {"at-b", "at-c"}, {"at-c", "at-b"},
	} {
		await.NoError(t, ctx, 0, x.from+" reaches "+x.to+" by its address at home", func() error {
			out, err := exec("a", x.from, "get", "http://"+at[x.to]+":8080/")
			if err == nil && !strings.Contains(out, `"`+x.to+`"`) {
				err = fmt.Errorf("%s answers", out)
			}
			if err == nil {
				_, err = exec("a", x.from, "udp", at[x.to]+":8080", "hello")
			}
			return err
		})
	}
	await.NoError(t, ctx, 0, "the provider's own pod has the provider's Service at that address", func() error {
		out, err := exec("b", "own", "get", "http://"+cluster["at-c"]+"/")
		if err == nil && !strings.Contains(out, `"own"`) {
			err = fmt.Errorf("%s answers", out)
		}
		return err
	})

	// What the away pod was told, and where it is told that home's API server is.
	twin := strings.TrimSpace(labtest.Output(t, ctx, b, "rivulet", "kubectl", "get", "namespaces", "-l", "rivulet.dev/origin", "-o", "jsonpath={.items[*].metadata.name}"))
	var away struct {
		Spec struct {
			HostAliases []struct{ IP string }
		}
	}
	if err := json.Unmarshal([]byte(labtest.Output(t, ctx, b, "rivulet", "kubectl", "-n", twin, "get", "pod", "at-b", "-o", "json")), &away); err != nil {
		t.Fatal(err)
	}
	// The environment is that of a pod at home: Services by their addresses there, which give way to what the pod says.
	environment := func(pod string) map[string]string {
		t.Helper()
		env := map[string]string{}
		for line := range strings.Lines(labtest.Output(t, ctx, a, "rivulet", "kubectl", "-n", ns, "exec", pod, "--", "/bin/busybox", "env")) {
			if name, value, _ := strings.Cut(strings.TrimSpace(line), "="); name != "HOSTNAME" && !strings.HasPrefix(name, "KUBERNETES_") {
				env[name] = value
			}
		}
		return env
	}
	env := environment("at-b")
	if want := environment("at-home"); !maps.Equal(env, want) {
		t.Errorf("environment away\n%v, at home\n%v", env, want)
	}
	for name, want := range map[string]string{"AT_C_SERVICE_HOST": cluster["at-c"], "AT_C_SERVICE_PORT_HTTP": "80", "AT_C_PORT": "tcp://" + cluster["at-c"] + ":80", "AT_C_PORT_81_UDP_ADDR": cluster["at-c"],
		"AT_B_PORT": "6379", "OWN": "6379 " + cluster["at-c"]} {
		if env[name] != want {
			t.Errorf("%s is %q, want %q", name, env[name], want)
		}
	}
	api := labtest.Output(t, ctx, a, "rivulet", "kubectl", "get", "service", "kubernetes", "-o", "jsonpath={.spec.clusterIP}")
	if n := len(away.Spec.HostAliases); n != 1 || away.Spec.HostAliases[0].IP != api {
		t.Errorf("home's API server is told to be at %v, want %s", away.Spec.HostAliases, api)
	}
	await.NoError(t, ctx, 0, "the pod reaches home's API server", func() error {
		_, err := exec("a", "at-b", "api", "/version")
		return err
	})
	for _, name := range []string{"at-home", "at-c"} {
		await.NoError(t, ctx, 0, "names lead to the same address", func() error {
			_, err := exec("a", "at-b", "get", "http://"+name+"."+ns+".svc.cluster.local/")
			return err
		})
	}
}
