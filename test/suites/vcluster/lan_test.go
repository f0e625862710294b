package vcluster

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"rivulet/test/harness/await"
	"rivulet/test/harness/labtest"
	"rivulet/test/harness/mainjob"
	"rivulet/test/harness/testns"
)

const show = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: site}
spec:
  selector: {matchLabels: {app: site}}
  template:
    metadata: {labels: {app: site}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: web, image: "` + mainjob.Image + `", ports: [{name: http, containerPort: 8080}]}]
---
apiVersion: v1
kind: Service
metadata: {name: site}
spec: {type: LoadBalancer, selector: {app: site}, ports: [{port: 80, targetPort: http}]}
`

// TestTheLANReachesAStudentsWork: a Service of type LoadBalancer in a virtual cluster is reached from another machine of
// the LAN at the address and the port that it shows, once the owner opens ports, until it is deleted.
func TestTheLANReachesAStudentsWork(t *testing.T) {
	ctx := suite.Bounded(t, 8*time.Minute)
	a := suite.Devices["a"]
	const settings = "/etc/rivulet/config.yaml"
	configure := func(text string) {
		t.Helper()
		labtest.Must(t, ctx, a, "sh", "-c", `mkdir -p /etc/rivulet && printf '%s' "$1" > `+settings+".tmp && mv "+settings+".tmp "+settings+" && rivulet config reload", "sh", text)
	}
	labtest.Must(t, ctx, a, "rivulet", "vcluster", "create", "show")
	labtest.CleanUp(t, func(ctx context.Context) {
		labtest.On(t, ctx, a, "rivulet", "vcluster", "delete", "show", "--yes")
		labtest.On(t, ctx, a, "sh", "-c", "printf '{}' > "+settings+" && rivulet config reload")
	})
	inside := func(args ...string) string {
		t.Helper()
		return labtest.Must(t, ctx, a, append([]string{"rivulet", "vcluster", "connect", "show", "--", "kubectl"}, args...)...)
	}
	events := func(words string) {
		t.Helper()
		await.NoError(t, ctx, time.Minute, "the event", func() error {
			if out := inside("get", "events", "--field-selector", "involvedObject.name=site"); !strings.Contains(out, words) {
				return fmt.Errorf("%s, want %q", out, words)
			}
			return nil
		})
	}
	room := testns.New(t)
	if err := suite.Lab.Attach("visitor", int(room.NS), "10.77.0.78/24"); err != nil {
		t.Fatal(err)
	}
	get := func(at string) error {
		client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, addr string) (c net.Conn, err error) {
			err = room.Try(func() error { c, err = (&net.Dialer{}).DialContext(ctx, network, addr); return err })
			return c, err
		}}}
		resp, err := client.Get("http://" + at + "/")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s", resp.Status)
		}
		return nil
	}
	labtest.Must(t, ctx, a, "sh", "-c", `printf '%s' "$1" > /tmp/show.yaml && rivulet vcluster connect show -- kubectl apply -f /tmp/show.yaml`, "sh", show)
	events("vclusters.ports")
	configure("vclusters: {ports: 31000-31009}")
	at := ""
	await.NoError(t, ctx, time.Minute, "it has an address", func() error {
		var s corev1.Service
		if err := json.Unmarshal([]byte(inside("get", "service", "site", "-o", "json")), &s); err != nil {
			return err
		}
		if len(s.Status.LoadBalancer.Ingress) != 1 {
			return fmt.Errorf("%+v", s.Status)
		}
		at = net.JoinHostPort(s.Status.LoadBalancer.Ingress[0].IP, fmt.Sprint(s.Spec.Ports[0].NodePort))
		return nil
	})
	await.NoError(t, ctx, time.Minute, "the LAN reaches "+at, func() error { return get(at) })
	events("http://" + at)
	closed := func(what string) {
		t.Helper()
		await.NoError(t, ctx, time.Minute, what, func() error {
			if get(at) == nil {
				return fmt.Errorf("%s is open", at)
			}
			return nil
		})
	}
	configure("{}")
	closed("it ends with the range")
	configure("vclusters: {ports: 31000-31009}")
	await.NoError(t, ctx, time.Minute, "it is open again, at the same place", func() error { return get(at) })
	inside("delete", "service", "site")
	closed("it ends with the Service")
}
