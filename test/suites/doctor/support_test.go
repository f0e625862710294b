package doctor

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
)

// canary is planted wherever a secret may be; its base64 is looked for as well.
const canary = "Canary4711InTheLab"

// unpack returns the archive's files.
func unpack(t *testing.T, raw string) map[string]string {
	t.Helper()
	z, err := gzip.NewReader(strings.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files[strings.TrimPrefix(h.Name, "rivulet-support/")] = string(text)
	}
}

// read returns a file of a device, which has to be there.
func read(t *testing.T, d *lab.Device, path string) string {
	t.Helper()
	raw, err := os.ReadFile(d.Path(path))
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// secrets are the device's real ones, by where they are.
func secrets(t *testing.T, d *lab.Device) map[string]string {
	t.Helper()
	out := map[string]string{"planted": canary, "planted, base64": base64.StdEncoding.EncodeToString([]byte(canary))}
	token := strings.TrimSpace(read(t, d, "/var/lib/rivulet/k3s/server/token"))
	out["server token"] = token[strings.LastIndex(token, ":")+1:]
	for name, find := range map[string]string{"seed": `"seed":"([^"]+)"`, "WireGuard key": `"wireguard":"([^"]+)"`} {
		m := regexp.MustCompile(find).FindStringSubmatch(read(t, d, "/var/lib/rivulet/state.db"))
		if m == nil {
			t.Fatalf("no %s in state.db", name)
		}
		out[name] = m[1]
	}
	m := regexp.MustCompile(`client-key-data: (\S+)`).FindStringSubmatch(read(t, d, "/var/lib/rivulet/kubeconfig"))
	if m == nil {
		t.Fatal("no key in the kubeconfig")
	}
	out["kubeconfig"] = m[1]
	for line := range strings.Lines(read(t, d, "/var/lib/rivulet/k3s/server/tls/server-ca.key")) {
		if !strings.HasPrefix(line, "-----") {
			out["CA key"] = strings.TrimSpace(line)
			break
		}
	}
	return out
}

// Secrets are planted everywhere, the real ones are written into logs without a
// name: the archive has none of them.
func TestSupportArchive(t *testing.T) {
	ctx := suite.Bounded(t, 3*time.Minute)
	labtest.Output(t, ctx, a, "rivulet", "kubectl", "create", "secret", "generic", "planted", "--from-literal=password="+canary)
	labtest.Output(t, ctx, a, "rivulet", "kubectl", "create", "configmap", "planted", "--from-literal=password="+canary)
	labtest.Output(t, ctx, a, "rivulet", "kubectl", "run", "planted", "--image=rivulet.dev/pause:1", "--image-pull-policy=Never", "--env=DB_PASSWORD="+canary, "--env=PLAIN="+canary)
	labtest.Output(t, ctx, a, "sh", "-c", "mkdir -p /etc/rivulet && umask 077 && printf 'ssid: lab\\npsk: "+canary+"\\n' > /etc/rivulet/wifi.yaml") // nobody's, so that nothing restarts
	known := secrets(t, a)
	var log strings.Builder
	for _, s := range known {
		log.WriteString("level=debug msg=\"somebody says " + s + " without a name\"\n")
	}
	log.WriteString("Authorization: Bearer " + canary + "xyz\nhttps://me:" + canary + "@r.example/v2/\n")
	for _, f := range []string{"engine.log", "tunnel.log"} {
		file, err := os.OpenFile(a.Path("/var/lib/rivulet/log/"+f), os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		_, err = file.WriteString(log.String())
		if err := errors.Join(err, file.Close()); err != nil {
			t.Fatal(err)
		}
	}
	labtest.CleanUp(t, func(ctx context.Context) {
		labtest.Output(t, ctx, a, "rivulet", "kubectl", "delete", "--wait=false", "secret/planted", "configmap/planted", "pod/planted")
		labtest.Output(t, ctx, a, "rm", "/etc/rivulet/wifi.yaml")
	})

	out, errOut, code := on(t, ctx, a, "rivulet", "support", "-o", "-")
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, errOut)
	}
	if len(out) > 10<<20 {
		t.Errorf("%d bytes", len(out))
	}
	files := unpack(t, out)
	clean(t, files, known)
	for name, want := range map[string]string{
		"status.json": `"stages"`, "goroutines.txt": "goroutine ", "metrics.txt": "rivulet_ready 1", "doctor.txt": `"memory-cgroup"`,
		"kubernetes/nodes.txt": "Ready", "kubernetes/pods.txt": "planted", "kubernetes/events.txt": "Scheduled", "network/iptables.txt": "KUBE-SERVICES",
		"network/routes.txt": "riv0", "logs/engine.log": "level=info", "configuration/wifi.yaml": "ssid: lab", "configuration/effective.txt": "trust", "files.txt": "state.db", "versions.txt": "wireguard",
	} {
		if !strings.Contains(files[name], want) {
			t.Errorf("%s: %.300q, want %q in it; %s", name, files[name], want, errOut)
		}
	}
	if !json.Valid([]byte(files["status.json"])) {
		t.Errorf("status.json is no JSON any more: %.500s", files["status.json"])
	}
}

// Nobody answers: what lies there still comes, into a file that is root's alone.
func supportWithoutSupervisor(t *testing.T, ctx context.Context) {
	t.Helper()
	out, errOut, code := on(t, ctx, b, "rivulet", "support", "-o", "/tmp/x.tar.gz")
	if code != 0 || !strings.Contains(errOut, "not in it: status.json: rivulet is not running") || !strings.Contains(out, "/tmp/x.tar.gz") {
		t.Errorf("exit code %d: %s %s", code, out, errOut)
	}
	if mode := labtest.Output(t, ctx, b, "stat", "-c", "%a", "/tmp/x.tar.gz"); mode != "600\n" {
		t.Errorf("mode %s", mode)
	}
	files := unpack(t, labtest.Output(t, ctx, b, "cat", "/tmp/x.tar.gz"))
	clean(t, files, secrets(t, b))
	if files["logs/engine.log"] == "" || !strings.Contains(files["index.txt"], "could not be had: rivulet is not running") {
		t.Errorf("%s", files["index.txt"])
	}
}

func clean(t *testing.T, files map[string]string, known map[string]string) {
	t.Helper()
	for name, text := range files {
		for where, s := range known {
			if i := strings.Index(text, s); i >= 0 {
				t.Errorf("%s holds a secret (%s): …%.200s", name, where, text[max(0, i-60):])
			}
		}
	}
}
