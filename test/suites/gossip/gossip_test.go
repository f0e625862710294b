package gossip

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"rivulet/test/harness/await"
	"rivulet/test/harness/labtest"
)

// members is how many there are: two on each device.
const members = 6

// ring is the group, as its users write it: nothing in it says that it is spread over clusters.
const ring = `
apiVersion: v1
kind: Namespace
metadata: {name: ring, labels: {rivulet.dev/offload: any}}
---
apiVersion: v1
kind: Service
metadata: {name: ring, namespace: ring}
spec: {clusterIP: None, publishNotReadyAddresses: true, selector: {app: ring}, ports: [{name: gossip, port: 7946}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: ring, namespace: ring}
spec:
  serviceName: ring
  replicas: 6
  podManagementPolicy: Parallel
  selector: {matchLabels: {app: ring}}
  template:
    metadata: {labels: {app: ring}}
    spec:
      terminationGracePeriodSeconds: 1
      topologySpreadConstraints:
      - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: ring}}}
      containers:
      - name: member
        image: rivulet.dev/gossip:1
        args: [$(POD_IP)]
        env:
        - {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
        - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
        - {name: GROUP, value: ring.ring.svc.cluster.local}
        resources: {requests: {cpu: 10m, memory: 16Mi}}
        readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1, timeoutSeconds: 10, failureThreshold: 60}
`

// state is ./member's.
type state struct {
	PodIP, Argument   string
	Hosts, Interfaces []string
	Members           map[string]string
}

// Members that announce the address that each was told find each other over three clusters,
// by the addresses that home's API shows; also after one has crashed, and when pods have been
// made anew.
func TestGroupThatGossipsItsAddresses(t *testing.T) {
	ctx := suite.Bounded(t, 15*time.Minute)
	a := suite.Devices["a"]
	labtest.Must(t, ctx, a, "sh", "-c", `printf %s "$1" | rivulet kubectl apply -f -`, "apply", ring)
	pods := func() (map[string]corev1.Pod, error) {
		out, err := a.Kubectl(ctx, "-n", "ring", "get", "pods", "-o", "json")
		var list corev1.PodList
		if err == nil {
			err = json.Unmarshal([]byte(out), &list)
		}
		all := map[string]corev1.Pod{}
		for _, p := range list.Items {
			if p.DeletionTimestamp == nil && p.Status.PodIP != "" {
				all[p.Name] = p
			}
		}
		return all, err
	}
	// agree waits until each member is told its address at home, has it and no other, and sees
	// all members at those of theirs.
	agree := func(what string) (all map[string]corev1.Pod) {
		t.Helper()
		await.NoError(t, ctx, 0, what, func() (err error) {
			if all, err = pods(); err != nil {
				return err
			}
			want := map[string]string{}
			for name, p := range all {
				want[name] = p.Status.PodIP
			}
			if len(want) != members {
				return fmt.Errorf("%d pods: %v", len(want), want)
			}
			for name, ip := range want {
				got, err := ask(ctx, name, "get", "http://"+ip+":8080/")
				if err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
				if !maps.Equal(got.Members, want) {
					return fmt.Errorf("%s on %s knows %v, home %v", name, all[name].Spec.NodeName, got.Members, want)
				}
				own := []string{ip}
				if got.PodIP != ip || got.Argument != ip || !slices.Equal(got.Hosts, own) || !slices.Equal(got.Interfaces, own) {
					return fmt.Errorf("%s on %s is %s at home; it has %+v", name, all[name].Spec.NodeName, ip, got)
				}
			}
			return nil
		})
		return all
	}
	all := agree("all know all")
	at := map[string][]string{}
	for name, p := range all {
		at[p.Spec.NodeName] = append(at[p.Spec.NodeName], name)
	}
	for _, device := range []string{"a", "b", "c"} {
		if len(at[device]) != members/3 {
			t.Fatalf("members are on %v, want two on each device", at)
		}
	}

	// One crashes, and comes back at the same address.
	first := at["b"][0]
	_, _ = ask(ctx, at["a"][0], "post", "http://"+all[first].Status.PodIP+":8080/crash")
	await.NoError(t, ctx, 0, first+" is started again", func() error {
		now, err := pods()
		if err == nil && (len(now[first].Status.ContainerStatuses) == 0 || now[first].Status.ContainerStatuses[0].RestartCount == 0) {
			err = fmt.Errorf("%v", now[first].Status.ContainerStatuses)
		}
		return err
	})
	if again := agree("all know the one that has crashed"); again[first].Status.PodIP != all[first].Status.PodIP {
		t.Errorf("%s has another address after it was started again", first)
	}

	// One on each device is made anew.
	for _, list := range at {
		labtest.Kubectl(t, ctx, a, "-n", "ring", "delete", "pod", list[1], "--wait=false")
	}
	await.NoError(t, ctx, 0, "there are others in their place", func() error {
		now, err := pods()
		for _, list := range at {
			if err == nil && (now[list[1]].UID == "" || now[list[1]].UID == all[list[1]].UID) {
				err = fmt.Errorf("%s is not made anew", list[1])
			}
		}
		return err
	})
	agree("all know the new ones")
}

// ask has a member ask itself or another, as home's user does it.
func ask(ctx context.Context, pod, method, url string) (s state, err error) {
	out, err := suite.Devices["a"].Kubectl(ctx, "-n", "ring", "exec", pod, "--", "web", method, url)
	if err == nil {
		err = json.Unmarshal([]byte(strings.TrimSpace(out)), &s)
	}
	return s, err
}

// loner binds to all addresses and announces the private one that it finds, as memberlist does without settings.
const loner = `{"apiVersion":"v1","kind":"List","items":[
{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"loner","labels":{"rivulet.dev/offload":"remote"}}},
{"apiVersion":"v1","kind":"Pod","metadata":{"name":"loner","namespace":"loner"},"spec":{"terminationGracePeriodSeconds":1,"containers":[{"name":"member","image":"rivulet.dev/gossip:1",
 "imagePullPolicy":"Never","command":["web"],"env":[{"name":"DEFAULTS","value":"1"},{"name":"POD_NAME","value":"loner"},{"name":"GROUP","value":"loner"}]}]}}]}`

// A member that looks for a private address ends at a peer: why names the setting, and with its command the member runs.
func TestMemberlistWithoutSettings(t *testing.T) {
	ctx := suite.Bounded(t, 6*time.Minute)
	a := suite.Devices["a"]
	labtest.CleanUp(t, func(ctx context.Context) {
		_, _ = a.Kubectl(ctx, "delete", "namespace", "loner", "--ignore-not-found", "--wait=false")
		labtest.Must(t, ctx, a, "sh", "-c", "rm -f /etc/rivulet/config.yaml; rivulet config reload")
	})
	labtest.Must(t, ctx, a, "sh", "-c", `printf %s "$1" | rivulet kubectl apply -f -`, "apply", loner)
	var setting string
	await.NoError(t, ctx, 2*time.Minute, "why names the setting", func() error {
		out, err := a.Run(ctx, "rivulet", "why", "-n", "loner", "loner")
		_, text, found := strings.Cut(out, ": write ")
		if setting, _, _ = strings.Cut(text, " into /etc/rivulet/config.yaml"); !found {
			return fmt.Errorf("%v: %s", err, out)
		}
		return nil
	})
	labtest.Must(t, ctx, a, "sh", "-c", `mkdir -p /etc/rivulet && echo "$1" > /etc/rivulet/config.yaml && rivulet config reload`, "sh", setting)
	await.NoError(t, ctx, 3*time.Minute, "it runs, and announces what home knows it by", func() error {
		ip, err := a.Kubectl(ctx, "-n", "loner", "get", "pod", "loner", "-o", "jsonpath={.status.podIP}")
		if err != nil {
			return err
		}
		out, err := a.Kubectl(ctx, "-n", "loner", "exec", "loner", "--", "web", "get", "http://127.0.0.1:8080/")
		if err != nil {
			return err
		}
		if !strings.HasPrefix(ip, "10.") || !strings.Contains(out, `"Members":{"loner":"`+ip+`"}`) {
			return fmt.Errorf("home says %s, it says %s", ip, out)
		}
		return nil
	})
}
