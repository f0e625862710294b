package e2e

import (
	"debug/elf"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"rivulet/test/harness/await"
	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
	"rivulet/test/harness/mainjob"
)

// bin/rivulet is one static ELF that says what it is made of and carries the tools. A
// slim one has the same in the full binary beside it.
func TestOneStaticBinary(t *testing.T) {
	ctx := need(t, time.Minute)
	binary, here := labtest.Binary(), "rivulet"
	if full := filepath.Join(filepath.Dir(binary), "rivulet-full"); exists(full) {
		binary, here = full, "/opt/rivulet/rivulet-full"
	}
	f, err := elf.Open(binary)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
			t.Errorf("the binary has a %s segment: it is not static", p.Type)
		}
	}
	a := devices["a"]
	version := labtest.Output(t, ctx, a, here, "version")
	for _, part := range []string{"rivulet", "k3s", "Kubernetes", "containerd", "runc", "wireguard", "virtual-kubelet"} {
		found := false
		for line := range strings.Lines(version) {
			f := strings.Fields(line)
			found = found || len(f) == 2 && f[0] == part
		}
		if !found {
			t.Errorf("rivulet version does not name a version of %s:\n%s", part, version)
		}
	}
	for _, tool := range []struct{ args, want string }{
		{"kubectl version --client", "Client Version: v1."},
		{"ctr version", "Server:"},
		{"crictl version", "RuntimeName:  containerd"},
	} {
		// As a sub-command, and by its own name: a link is enough.
		for _, call := range []string{"rivulet " + tool.args, "/run/rivulet/bin/" + tool.args} {
			if out := labtest.Output(t, ctx, a, "sh", "-c", "export CONTAINER_RUNTIME_ENDPOINT=unix:///run/k3s/containerd/containerd.sock; "+call); !strings.Contains(out, tool.want) {
				t.Errorf("%s: %q, want %q in it", call, out, tool.want)
			}
		}
	}
	if out := labtest.Output(t, ctx, a, "/run/rivulet/bin/containerd", "--version"); !strings.Contains(out, "containerd") {
		t.Errorf("containerd --version: %q", out)
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// A machine that has never seen a network cable or the Internet reaches Ready
// with no configuration, runs a pod, and answers names; a cable later changes
// nothing for it.
func TestNeverSeenACable(t *testing.T) {
	ctx := need(t, 4*time.Minute)
	l, err := lab.Up(ctx, lab.Options{Dir: labtest.OwnDir(t, "alone"), Binary: labtest.Binary(), Devices: 1, Unplugged: true})
	if err != nil {
		t.Fatal(err)
	}
	a, err := l.Device("a")
	if err != nil {
		t.Fatal(err)
	}
	if err := a.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	if routes := labtest.Output(t, ctx, a, "ip", "route", "show", "default"); strings.TrimSpace(routes) != "" {
		t.Fatalf("the device has a default route, so this tests nothing: %q", routes)
	}
	if link := labtest.Output(t, ctx, a, "cat", "/sys/class/net/eth0/carrier"); strings.TrimSpace(link) != "0" {
		t.Fatalf("the device's cable is in (carrier %q), so this tests nothing", link)
	}
	if err := mainjob.ImportImage(ctx, []*lab.Device{a}); err != nil {
		t.Fatal(err)
	}
	labtest.Output(t, ctx, a, "rivulet", "kubectl", "run", "web", "--image="+mainjob.Image)
	labtest.Output(t, ctx, a, "rivulet", "kubectl", "expose", "pod", "web", "--port=80", "--target-port=8080")
	labtest.Output(t, ctx, a, "rivulet", "kubectl", "wait", "--for=condition=Ready", "pod/web", "--timeout=60s")
	await.NoError(t, ctx, 0, "a pod reaches itself through its service by name", func() error {
		_, err := a.Kubectl(ctx, "exec", "web", "--", "web", "get", "http://web.default/")
		return err
	})
	if out := labtest.Output(t, ctx, a, "busybox", "nslookup", "kubernetes.default.svc.cluster.local", "10.43.0.10"); !strings.Contains(out, "10.43.0.1") {
		t.Errorf("the host asked the cluster's DNS: %q", out)
	}
	if err := l.Heal(); err != nil {
		t.Fatal(err)
	}
	out := labtest.Output(t, ctx, a, "rivulet", "kubectl", "get", "pod", "web", "-o", "jsonpath={.status.containerStatuses[0].restartCount}")
	if out != "0" {
		t.Errorf("the pod was restarted %s times", out)
	}
}
