package peering

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"context"

	"rivulet/appliance/api"
	"rivulet/fabric/peer"
	"rivulet/image/bundle"
	"rivulet/offload/policy"
	"rivulet/test/harness/await"
	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
)

// away is a namespace whose pods run on peers, and one pod.
const away = `
apiVersion: v1
kind: Namespace
metadata: {name: lab, labels: {rivulet.dev/offload: remote}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: idle, namespace: lab}
spec:
  selector: {matchLabels: {app: idle}}
  template:
    metadata: {labels: {app: idle}}
    spec:
      containers: [{name: idle, image: "` + bundle.PauseImage + `", imagePullPolicy: Never}]
`

// The whole life of a peering: it begins by itself, its key changes, it ends, leaves
// nothing on either side, begins again by an invite, is switched off in one
// direction, and ends once more with the other gone for good.
func TestLifeOfAPeering(t *testing.T) {
	ctx := suite.Bounded(t, 6*time.Minute)
	a, b := suite.Devices["a"], suite.Devices["b"]
	for _, d := range []*lab.Device{a, b} {
		if err := d.WaitPeered(ctx, 1); err != nil {
			t.Fatal(err)
		}
	}
	idA, idB := string(labtest.Status(t, ctx, a).ID), string(labtest.Status(t, ctx, b).ID)
	await.NoError(t, ctx, 10*time.Second, "both know the other's Kubernetes version", func() error {
		for d, id := range map[*lab.Device]string{a: idB, b: idA} {
			if see(t, ctx, d, id).KubeVersion == "" {
				return errors.New(d.Name + " does not")
			}
		}
		return nil
	})
	kubectl := func(d *lab.Device, args ...string) string {
		out, err := d.Kubectl(ctx, args...)
		if err != nil {
			return "error: " + err.Error()
		}
		return strings.TrimSpace(out)
	}
	if r := labtest.On(t, ctx, a, "sh", "-c", "cat > /tmp/away.yaml <<'END'\n"+away+"END\nrivulet kubectl apply -f /tmp/away.yaml"); r.Code != 0 {
		t.Fatalf("%+v", r)
	}
	runsAway := func() error {
		where := kubectl(a, "get", "pods", "-n", "lab", "-o", "jsonpath={.items[*].spec.nodeName} {.items[*].status.phase}")
		twins := kubectl(b, "get", "namespaces", "-l", policy.OriginLabel+"="+idA, "-o", "name")
		if where != "b Running" || twins == "" {
			return fmt.Errorf("pods: %q, twins at b: %q", where, twins)
		}
		return nil
	}
	await.NoError(t, ctx, time.Minute, "a pod of a runs on b", runsAway)

	t.Run("another key, and nobody notices", func(t *testing.T) {
		key := func() string { return see(t, ctx, b, idA).WireGuardKey.String() }
		before, beforeA, old := see(t, ctx, b, idA), see(t, ctx, a, idB), key()
		labtest.Must(t, ctx, a, "rivulet", "rotate-key")
		await.NoError(t, ctx, time.Minute, "b has the key", func() error {
			if key() == old {
				return errors.New("the old one")
			}
			return nil
		})
		seen := time.Now()
		await.NoError(t, ctx, time.Minute, "pings by the new key on both sides", func() error {
			for d, id := range map[*lab.Device]string{a: idB, b: idA} {
				if v := see(t, ctx, d, id); v.LastSeen.Before(seen) {
					return fmt.Errorf("%s: the last one was at %s", d.Name, v.LastSeen)
				}
			}
			return nil
		})
		for _, v := range []struct{ was, is peer.View }{{before, see(t, ctx, b, idA)}, {beforeA, see(t, ctx, a, idB)}} {
			if v.is.State != peer.Connected || !v.is.Since.Equal(v.was.Since) {
				t.Errorf("%s is %s since %s, before since %s", v.is.Name, v.is.State, v.is.Since, v.was.Since)
			}
		}
	})

	// traces is what is left of another cluster on a device.
	traces := func(d *lab.Device, id string) error {
		st := labtest.Status(t, ctx, d)
		for _, v := range st.Peers {
			if string(v.ID) == id && v.Trust.How != "" {
				return fmt.Errorf("%s: it is a peer: %s", d.Name, v.State)
			}
		}
		if st.Tunnel == nil || len(st.Tunnel.Peers) != 0 {
			return fmt.Errorf("%s: the tunnel has a peer", d.Name)
		}
		if routes := labtest.Must(t, ctx, d, "sh", "-c", "ip route show dev riv0; ip -6 route show dev riv0 | grep -v fe80 || true"); routes != "" {
			return fmt.Errorf("%s: routes: %s", d.Name, routes)
		}
		for _, what := range []string{"nodes -l " + policy.VirtualNodeLabel, "namespaces -l " + policy.OriginLabel} {
			if left := kubectl(d, append([]string{"get"}, append(strings.Fields(what), "-o", "name")...)...); left != "" {
				return fmt.Errorf("%s: left: %s", d.Name, left)
			}
		}
		return nil
	}

	t.Run("it ends on both sides", func(t *testing.T) {
		begun := time.Now()
		labtest.Must(t, ctx, a, "rivulet", "unpeer", "b", "--yes")
		if took := time.Since(begun); took > 10*time.Second {
			t.Errorf("unpeer took %s", took)
		}
		if st := labtest.Status(t, ctx, a); st.Tunnel == nil || len(st.Tunnel.Peers) != 0 {
			t.Error("the tunnel is there after unpeer has returned")
		}
		await.NoError(t, ctx, time.Minute, "no tunnel on b", func() error {
			if st := labtest.Status(t, ctx, b); len(st.Tunnel.Peers) != 0 {
				return errors.New("it is there")
			}
			return nil
		})
		await.NoError(t, ctx, time.Minute, "nothing left on a", func() error { return traces(a, idB) })
		await.NoError(t, ctx, time.Minute, "nothing left on b", func() error { return traces(b, idA) })
		await.NoError(t, ctx, time.Minute, "b says why", func() error {
			if v := see(t, ctx, b, idA); v.State != peer.Refused || !strings.Contains(v.Reason, "a has ended the peering") {
				return fmt.Errorf("%s: %s", v.State, v.Reason)
			}
			return nil
		})
	})

	t.Run("an invite begins it again", func(t *testing.T) {
		var i api.Invited
		if err := json.Unmarshal([]byte(labtest.Must(t, ctx, b, "rivulet", "invite", "-o", "json")), &i); err != nil {
			t.Fatal(err)
		}
		// The QR code is for terminals: here it would be noise.
		if text := labtest.Must(t, ctx, b, "rivulet", "invite"); !strings.Contains(text, "rivulet peer --invite ") || !strings.Contains(text, "rivulet://invite/") || strings.Contains(text, "█") {
			t.Errorf("invite prints:\n%s", text)
		}
		labtest.Must(t, ctx, a, "rivulet", "peer", "--invite", i.URL)
		for d, id := range map[*lab.Device]string{a: idB, b: idA} {
			await.NoError(t, ctx, time.Minute, "connected, by the invite", func() error {
				if v := see(t, ctx, d, id); v.State != peer.Connected || v.Trust.How != peer.TrustInvite {
					return fmt.Errorf("%s by %q: %s", v.State, v.Trust.How, v.Reason)
				}
				return nil
			})
		}
		if list := labtest.Must(t, ctx, b, "rivulet", "invite", "list"); !strings.Contains(list, "used") || !strings.Contains(list, "open") {
			t.Errorf("invite list prints:\n%s", list)
		}
		await.NoError(t, ctx, time.Minute, "the pod of a runs on b again", runsAway)
	})

	t.Run("one direction off", func(t *testing.T) {
		labtest.Must(t, ctx, b, "rivulet", "peer", "a", "--provide=off", "--yes")
		await.NoError(t, ctx, time.Minute, "a does not borrow, and has nothing there", func() error {
			nodes := kubectl(a, "get", "nodes", "-l", policy.VirtualNodeLabel, "-o", "name")
			twins := kubectl(b, "get", "namespaces", "-l", policy.OriginLabel, "-o", "name")
			if nodes != "" || twins != "" {
				return fmt.Errorf("%q %q", nodes, twins)
			}
			return nil
		})
		if n := kubectl(b, "get", "nodes", "-l", policy.VirtualNodeLabel, "-o", "name"); n != "node/a" {
			t.Errorf("the other direction went too: %q", n)
		}
		labtest.Must(t, ctx, b, "rivulet", "peer", "a", "--provide=on")
		await.NoError(t, ctx, time.Minute, "the pod of a runs on b again", runsAway)
	})

	t.Run("an object of the API begins it again", func(t *testing.T) {
		labtest.Must(t, ctx, b, "rivulet", "unpeer", "a", "--yes")
		await.NoError(t, ctx, time.Minute, "nothing left on b", func() error { return traces(b, idA) })
		wish := `{"apiVersion": "rivulet.dev/v1alpha1", "kind": "Peer", "metadata": {"name": "neighbour"}, "spec": {"address": "10.77.0.11", "id": "` + idA + `"}}`
		labtest.Must(t, ctx, b, "sh", "-c", "echo '"+wish+"' | rivulet kubectl apply -f -")
		await.NoError(t, ctx, time.Minute, "connected, by the object", func() error {
			if v := see(t, ctx, b, idA); v.State != peer.Connected || v.Trust.How != peer.TrustApproved {
				return fmt.Errorf("%s by %q: %s", v.State, v.Trust.How, v.Reason)
			}
			if out := kubectl(b, "get", "peers", "-o", "jsonpath={.items[*].metadata.name} {.items[*].status.state}"); out != "neighbour Connected" {
				return fmt.Errorf("objects: %q", out)
			}
			return nil
		})
		await.NoError(t, ctx, time.Minute, "the pod of a runs on b again", runsAway)
	})

	t.Run("a reset takes leave, and is met anew", func(t *testing.T) {
		if r := labtest.On(t, ctx, b, "rivulet", "reset", "--yes"); !strings.Contains(r.Out, "the peering with a; they were told") {
			t.Errorf("%+v", r)
		}
		await.NoError(t, ctx, time.Minute, "a has heard", func() error { return traces(a, idB) })
		if err := b.Start(ctx); err != nil {
			t.Fatal(err)
		}
		for d, id := range map[*lab.Device]string{a: idB, b: idA} {
			if err := d.WaitPeered(ctx, 1); err != nil {
				t.Fatal(err)
			}
			if v := see(t, ctx, d, id); v.Trust.How != peer.TrustLAN {
				t.Errorf("%s trusts the other by %q", d.Name, v.Trust.How)
			}
		}
	})

	t.Run("it ends though the other is gone for good", func(t *testing.T) {
		if err := b.Kill(ctx, "power"); err != nil {
			t.Fatal(err)
		}
		if r := labtest.On(t, ctx, a, "rivulet", "unpeer", "b", "--yes"); r.Code != 1 || !strings.Contains(r.ErrOut, "unpeer --force b") {
			t.Errorf("without --force: %+v", r)
		}
		labtest.Must(t, ctx, a, "rivulet", "unpeer", "--force", "b", "--yes")
		if text := labtest.Must(t, ctx, a, "rivulet", "unpeer", "b"); !strings.Contains(text, "it was none before") {
			t.Errorf("a second time: %s", text)
		}
		await.NoError(t, ctx, time.Minute, "nothing left on a", func() error { return traces(a, idB) })
		if text := labtest.Must(t, ctx, a, "rivulet", "peers"); !strings.Contains(text, "Denied") || !strings.Contains(text, "rivulet peer b") {
			t.Errorf("peers prints:\n%s", text)
		}
	})
}

// see is how a device sees another.
func see(t *testing.T, ctx context.Context, d *lab.Device, id string) peer.View {
	t.Helper()
	for _, v := range labtest.Status(t, ctx, d).Peers {
		if string(v.ID) == id {
			return v
		}
	}
	return peer.View{}
}
