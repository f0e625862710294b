package badinput

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// An iptables that does not work (of another C library, for another kernel) does
// not keep the device from Ready: the bundled one is used, and the log says why.
func TestBrokenIptables(t *testing.T) {
	a, _ := pair(t)
	stop(t, a)
	tools := strings.Fields(must(t, a, "sh", "-c", "for f in iptables iptables-save iptables-restore; do readlink -f $(command -v $f); done | sort -u"))
	if len(tools) == 0 {
		t.Skip("needs iptables on this machine: apt-get install iptables")
	}
	must(t, a, "sh", "-c", "printf '#!/bin/sh\\necho no such thing in this kernel >&2\\nexit 3\\n' >/run/broken && chmod +x /run/broken")
	for _, tool := range tools {
		must(t, a, "mount", "--bind", "/run/broken", tool)
	}
	hidden := true
	show := func() {
		for i := len(tools) - 1; hidden && i >= 0; i-- {
			must(t, a, "umount", "--lazy", tools[i])
		}
		hidden = false
	}
	t.Cleanup(show)
	start(t, a)
	ready(t, a)
	if log := must(t, a, "sh", "-c", "grep 'iptables chosen' /var/log/rivulet.log | tail -n 1"); !strings.Contains(log, "/netfilter/nft/iptables") || !strings.Contains(log, "no such thing in this kernel") {
		t.Errorf("the log says %q; want the bundled one and what the host's said", log)
	}
	pod(t, a, "broken-iptables")
	must(t, a, "rivulet", "kubectl", "delete", "pod", "broken-iptables", "--wait=false")
	peered(t, a)
	show()
}

// Without a TUN device there are no tunnels, and everything else works.
func TestNoTUN(t *testing.T) {
	a, _ := pair(t)
	stop(t, a)
	must(t, a, "sh", "-c", "kill -KILL $(cat /run/rivulet/tunnel.pid)")
	must(t, a, "mount", "-t", "tmpfs", "none", "/dev/net")
	hidden := true
	show := func() {
		if hidden {
			must(t, a, "umount", "--lazy", "/dev/net")
		}
		hidden = false
	}
	t.Cleanup(show)
	start(t, a)
	ready(t, a)
	shows(t, a, 10*time.Second, "no tunnel to any peer", "/dev/net/tun", "modprobe tun", "tried again")
	pod(t, a, "without-tunnel")
	must(t, a, "rivulet", "kubectl", "delete", "pod", "without-tunnel", "--wait=false")
	show()
	eventually(t, 10*time.Second, func() error {
		if _, text := status(t, a); strings.Contains(text, "/dev/net/tun") {
			return fmt.Errorf("there is a TUN device, yet the status says:\n%s", text)
		}
		return nil
	})
	peered(t, a)
}

// After a power cut a device comes back though a webhook that nobody serves refuses every write; it
// says so, with the command that ends it.
func TestAPowerCutAndAWebhook(t *testing.T) {
	a, _ := pair(t)
	const guard = `{"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration", "metadata": {"name": "guard"}, "webhooks": [{"name": "guard.gone.example",
		"rules": [{"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*/*"]}], "clientConfig": {"service": {"namespace": "gone", "name": "guard"}},
		"sideEffects": "None", "admissionReviewVersions": ["v1"]}]}`
	must(t, a, "sh", "-c", "rivulet kubectl apply -f - <<'END'\n"+guard+"\nEND")
	end := func() {
		must(t, a, "rivulet", "kubectl", "delete", "--ignore-not-found", "validatingwebhookconfiguration", "guard")
	}
	t.Cleanup(end)
	refused := func() error {
		if r := on(t, a, "rivulet", "kubectl", "create", "configmap", "mine", "--dry-run=server"); !strings.Contains(r.errOut, "guard.gone.example") {
			return fmt.Errorf("a write is not refused: %+v", r)
		}
		return nil
	}
	eventually(t, 30*time.Second, refused)
	if err := a.Kill(limit(t, 30*time.Second), "power"); err != nil {
		t.Fatal(err)
	}
	start(t, a)
	ready(t, a)
	shows(t, a, time.Minute, "[admission]", "validatingwebhookconfiguration guard", "gone/guard is not there", "rivulet kubectl delete validatingwebhookconfiguration guard")
	if err := refused(); err != nil {
		t.Error(err)
	}
	st, _ := status(t, a)
	renewed := func() string {
		return must(t, a, "rivulet", "kubectl", "get", "lease", "-n", "kube-node-lease", st.NodeName, "-o", "jsonpath={.spec.renewTime}")
	}
	before := renewed()
	eventually(t, time.Minute, func() error { // every 30 s
		if renewed() == before {
			return fmt.Errorf("the node's lease is of %s", before)
		}
		return nil
	})
	end()
	eventually(t, 30*time.Second, func() error {
		if st, text := status(t, a); !st.Ready || strings.Contains(text, "[admission]") {
			return fmt.Errorf("the webhook is gone, yet the status says:\n%s", text)
		}
		return nil
	})
	pod(t, a, "after-a-webhook")
	must(t, a, "rivulet", "kubectl", "delete", "pod", "after-a-webhook", "--wait=false")
	peered(t, a)
}
