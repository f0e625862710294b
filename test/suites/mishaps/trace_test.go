package mishaps

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"rivulet/appliance/diagnose/trace"
	"rivulet/test/harness/await"
	"rivulet/test/harness/labtest"
	"rivulet/test/harness/mainjob"
)

// web is a pod with the application on port 8080, client one that only connects.
const webPods = `{apiVersion: v1, kind: List, items: [
{apiVersion: v1, kind: Pod, metadata: {name: client, labels: {app: client}}, spec: {nodeName: a, terminationGracePeriodSeconds: 1, containers: [{name: c, image: "IMAGE", imagePullPolicy: Never}]}},
{apiVersion: v1, kind: Pod, metadata: {name: NAME, labels: {app: web}}, spec: {NODE, terminationGracePeriodSeconds: 1, containers: [{name: c, image: "IMAGE", imagePullPolicy: Never, ports: [{name: http, containerPort: PORT}]}]}},
{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {selector: {app: web}, ports: [{port: 80, targetPort: PORT}]}}]}`

// traced is what `rivulet trace` prints on a.
func traced(t *testing.T, ctx context.Context, args ...string) (r trace.Report, text string) {
	t.Helper()
	out := labtest.On(t, ctx, a, append(append([]string{"rivulet", "trace"}, args...), "-o", "json")...)
	if err := json.Unmarshal([]byte(out.Out), &r); err != nil || (out.Code == 1) != (r.Verdict == trace.Fails) {
		t.Fatalf("%v, exit code %d: %s%s", err, out.Code, out.Out, out.ErrOut)
	}
	for _, h := range r.Hops {
		text += fmt.Sprintf("%s %s %s %s: %s → %s\n", h.Verdict, h.Name, h.Pod, h.Took, h.Text, h.Cure)
	}
	return r, text
}

// breaksAt waits until a trace begins at a hop, with words in its text and its cure; "" is none.
func breaksAt(t *testing.T, ctx context.Context, hop, words, cure string, args ...string) {
	t.Helper()
	await.NoError(t, ctx, time.Minute, fmt.Sprintf("trace %v breaks at %q", args, hop), func() error {
		r, text := traced(t, ctx, args...)
		h, found := r.Cause()
		if found != (hop != "") || h.Name != hop || hop != "" && (h.Verdict != trace.Fails || !strings.Contains(h.Text, words) || !strings.Contains(h.Cure, cure)) {
			return fmt.Errorf("it begins at %q:\n%s", h.Name, text)
		}
		if hop == "" && !strings.Contains(text, words) {
			return fmt.Errorf("no hop has %q:\n%s", words, text)
		}
		return nil
	})
}

// A Service is followed on real devices: what works is ok in each hop, and what is broken is the hop to begin with.
func TestTrace(t *testing.T) {
	ctx := suite.Bounded(t, 5*time.Minute)
	objects := func(ns, name, node string) string {
		return strings.NewReplacer("IMAGE", mainjob.Image, "NAME", name, "NODE", node, "PORT", "8080").Replace(webPods)
	}
	for _, ns := range []string{"traced", "traced-away"} {
		labtest.Must(t, ctx, a, "rivulet", "kubectl", "create", "namespace", ns)
		labtest.CleanUp(t, func(ctx context.Context) {
			labtest.On(t, ctx, a, "rivulet", "kubectl", "delete", "namespace", ns, "--now", "--wait=false")
		})
	}
	labtest.Must(t, ctx, a, "rivulet", "offload", "traced-away", "--when", "any")
	into(t, ctx, "traced", objects("traced", "home", "nodeName: a"))
	into(t, ctx, "traced-away", objects("traced-away", "away", onPeer))

	// All works, from the device and from a pod.
	breaksAt(t, ctx, "", "accepts connections", "", "traced/web")
	breaksAt(t, ctx, "", "accepts connections", "", "traced/web", "--from", "client")
	breaksAt(t, ctx, "", "accepts connections", "", "traced-away/web", "--from", "client")
	breaksAt(t, ctx, "", "this cluster's pods are", "", "traced-away/web")
	breaksAt(t, ctx, "", "accepts connections", "", "pod/away", "-n", "traced-away")
	r, text := traced(t, ctx, "traced-away/web", "--from", "client")
	for _, h := range r.Hops {
		if measured := map[string]bool{"name": true, "rules": true, "path": true, "container": true}; h.Verdict != trace.OK || measured[h.Name] && h.Took == 0 {
			t.Errorf("%s is %s after %s:\n%s", h.Name, h.Verdict, h.Took, text)
		}
	}

	// A targetPort on which nothing listens, at home and away; the cure ends it.
	for _, ns := range []string{"traced", "traced-away"} {
		labtest.Kubectl(t, ctx, a, "patch", "service", "web", "-n", ns, "--type=json", "-p", `[{"op":"replace","path":"/spec/ports/0/targetPort","value":8081}]`)
		breaksAt(t, ctx, "container", "nothing listens on port 8081 of the pod; the Service's targetPort is 8081", `"value":8080`, ns+"/web", "--from", "client")
		r, _ := traced(t, ctx, ns+"/web", "--from", "client")
		h, _ := r.Cause()
		if _, err := a.Run(ctx, "sh", "-c", h.Cure); err != nil {
			t.Errorf("%s: %v", h.Cure, err)
		}
		breaksAt(t, ctx, "", "accepts connections", "", ns+"/web", "--from", "client")
	}

	// A NetworkPolicy that lets nobody in, at home and away.
	for _, ns := range []string{"traced", "traced-away"} {
		into(t, ctx, ns, `{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: nobody}, spec: {podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress]}}`)
		breaksAt(t, ctx, "policy", ns+"/nobody does not let client in", "edit networkpolicy -n "+ns+" nobody", ns+"/web", "--from", "client")
		breaksAt(t, ctx, "policy", ns+"/nobody lets no pod in", "edit networkpolicy", ns+"/web")
		labtest.Kubectl(t, ctx, a, "delete", "networkpolicy", "nobody", "-n", ns)
		breaksAt(t, ctx, "", "accepts connections", "", ns+"/web", "--from", "client")
	}

	// No pod has the labels; and a name that is none.
	labtest.Kubectl(t, ctx, a, "patch", "service", "web", "-n", "traced", "-p", `{"spec":{"selector":{"app":"wbe"}}}`)
	breaksAt(t, ctx, "endpoints", "no pod has the labels", "selector", "traced/web")
	if out := labtest.On(t, ctx, a, "rivulet", "trace", "traced/wbe"); out.Code != 1 || !strings.Contains(out.ErrOut, "there is no Service or pod wbe in namespace traced; see:") {
		t.Errorf("exit code %d: %s", out.Code, out.ErrOut)
	}

	// The peer is cut off.
	if err := suite.Lab.Cut("a", "b"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { heal(t, suite.Bounded(t, time.Minute), "") })
	breaksAt(t, ctx, "tunnel", "peer b is not reached", "rivulet doctor peer b", "traced-away/web")
}

// into makes objects in a namespace, and waits until its pods run.
func into(t *testing.T, ctx context.Context, ns, objects string) {
	t.Helper()
	await.NoError(t, ctx, time.Minute, "the objects are made", func() error {
		_, err := a.Run(ctx, "sh", "-c", `printf %s "$1" | rivulet kubectl apply -n "$2" -f -`, "apply", objects, ns)
		return err
	})
	await.NoError(t, ctx, time.Minute, "the pods run", func() error { return podsRun(t, ctx, ns) })
}
