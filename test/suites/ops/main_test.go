// Package ops tests what a person does with a device over the years: save the
// cluster, bring it back on other hardware, run another version. The real binary
// runs on three devices of a lab; "another version" is the same tree, linked with
// another version and the key of these tests.
package ops

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"rivulet/appliance/version"
	"rivulet/image/signed"
	"rivulet/test/harness/await"
	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
	"rivulet/test/harness/tree"
)

// out is where make ops-binaries puts the two versions.
func out(name string) string { return tree.Path("bin", "ops", name) }

var (
	suite = labtest.Suite{
		Binary: out("v1/slim/rivulet"),
		Needs:  map[string]string{out("v1/slim/rivulet"): "make ops-binaries", out("v2/rivulet"): "make ops-binaries"},
		Prepare: func(ctx context.Context, s *labtest.Suite) error {
			a, b, c = s.Devices["a"], s.Devices["b"], s.Devices["c"]
			return labtest.Peered(ctx, s)
		},
	}
	a, b, c *lab.Device
	// releases is where signed files are, as the host and (below /host) the devices see it.
	releases string
)

func TestMain(m *testing.M) {
	o := lab.Options{Devices: 3}
	if labtest.Long() {
		o.Disk = 4 << 30 // a power cut then loses what was not synced
	}
	var err error
	if releases, err = os.MkdirTemp("/var/tmp", "rivulet-ops-"); err != nil {
		fmt.Fprintln(os.Stderr, "ops: "+err.Error())
		os.Exit(1)
	}
	code := suite.Run(m, "ops", o)
	os.RemoveAll(releases)
	os.Exit(code)
}

// refused runs a command that has to fail with all the words, on one line.
func refused(t *testing.T, ctx context.Context, d *lab.Device, words []string, args ...string) {
	t.Helper()
	_, err := d.Run(ctx, args...)
	if err == nil {
		t.Errorf("%v succeeded, it should be refused with %q", args, words)
		return
	}
	for _, w := range append(words, "rivulet: ", "; ") {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%v: %v; %q is missing", args, err, w)
		}
	}
}

// key is one of the keys that the binaries of the tests know; see OPS_KEY in the Makefile.
func key(n byte) ed25519.PrivateKey {
	return ed25519.NewKeyFromSeed(bytes.Repeat([]byte{n}, ed25519.SeedSize))
}

const (
	rootKey    = 1
	signingKey = 2
	strangeKey = 3
)

// release puts a copy of a file where devices find it, changed by change, with a
// signature of what it was before the change.
func release(t *testing.T, from, name string, root byte, change func([]byte) []byte) (seenByDevices string) {
	t.Helper()
	raw, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	digest := signed.NewDigest()
	digest.Write(raw)
	sig, err := json.Marshal(signed.Sign(key(signingKey), signed.Certify(key(root), key(signingKey).Public().(ed25519.PublicKey), 1), digest))
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		raw = change(raw)
	}
	path := filepath.Join(releases, name)
	for file, content := range map[string][]byte{path: raw, path + ".sig": sig} {
		if err := os.WriteFile(file, content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return "/host" + path
}

// faulty builds a release that goes wrong in a way, and signs it.
func faulty(t *testing.T, name, way, kubernetes string) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "rivulet")
	build := exec.Command("go", "build", "-o", binary, "-ldflags",
		fmt.Sprintf("-X main.name=%s -X main.way=%s -X main.kubernetes=%s", name, way, kubernetes), "./faulty")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if said, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	return release(t, binary, name, rootKey, nil)
}

// kubernetes is the version that the releases of this tree have.
func kubernetes(t *testing.T) string {
	t.Helper()
	cmd := exec.Command(out("v2/rivulet"), "version", "-o", "json")
	cmd.Args[0] = "rivulet"
	raw, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var parts []version.Part
	if err := json.Unmarshal(raw, &parts); err != nil {
		t.Fatal(err)
	}
	return version.KubernetesOf(parts)
}

// status is what these tests read of a device's status.
type status struct {
	ID      string         `json:"id"`
	Name    string         `json:"name"`
	Node    string         `json:"nodeName"`
	Version string         `json:"version"`
	Ready   bool           `json:"ready"`
	PIDs    map[string]int `json:"pids"`
	Peers   []struct {
		ID    string `json:"id"`
		Name  string `json:"name"`
		State string `json:"state"`
	} `json:"peers"`
	Health []struct {
		Code string `json:"code"`
		Text string `json:"text"`
		Cure string `json:"cure"`
	} `json:"health"`
}

func look(ctx context.Context, d *lab.Device) (st status, err error) {
	raw, err := d.Run(ctx, "rivulet", "status", "-o", "json")
	if raw == "" {
		return st, err
	}
	return st, json.Unmarshal([]byte(raw), &st) // not ready is an exit code, with a status
}

// runs waits until a version runs on a device and is ready.
func runs(t *testing.T, ctx context.Context, d *lab.Device, want string) (st status) {
	t.Helper()
	await.NoError(t, ctx, 0, d.Name+" runs "+want, func() (err error) {
		if st, err = look(ctx, d); err == nil && (st.Version != want || !st.Ready) {
			err = fmt.Errorf("version %s, ready: %v", st.Version, st.Ready)
		}
		return err
	})
	return st
}

func health(st status, code string) string {
	for _, p := range st.Health {
		if p.Code == code {
			return p.Text + "; " + p.Cure
		}
	}
	return ""
}

// deploy makes pods of the pause image, which every device has, and returns their
// containers once they run.
func deploy(t *testing.T, ctx context.Context, d *lab.Device, name string, replicas int) map[string]string {
	t.Helper()
	labtest.Must(t, ctx, d, "sh", "-c", `printf %s "$1" | rivulet kubectl apply -f -`, "apply", fmt.Sprintf(
		`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":%[1]q},"spec":{"replicas":%[2]d,"selector":{"matchLabels":{"app":%[1]q}},
		"template":{"metadata":{"labels":{"app":%[1]q}},"spec":{"terminationGracePeriodSeconds":1,"containers":[{"name":"x","image":"rivulet.dev/pause:1"}]}}}}`, name, replicas))
	return containers(t, ctx, d, name, replicas)
}

// containers waits until all pods of a Deployment run, and returns pod and container IDs.
func containers(t *testing.T, ctx context.Context, d *lab.Device, name string, replicas int) (got map[string]string) {
	t.Helper()
	await.NoError(t, ctx, 0, fmt.Sprintf("%d pods of %s run on %s", replicas, name, d.Name), func() error {
		raw, err := d.Kubectl(ctx, "get", "pods", "-l", "app="+name, "-o",
			`jsonpath={range .items[?(@.status.phase=="Running")]}{.metadata.uid} {.status.containerStatuses[0].containerID} {.status.containerStatuses[0].ready}{"\n"}{end}`)
		if err != nil {
			return err
		}
		got = map[string]string{}
		for line := range strings.Lines(raw) {
			if f := strings.Fields(line); len(f) == 3 && f[2] == "true" {
				got[f[0]] = f[1]
			}
		}
		if len(got) != replicas {
			return fmt.Errorf("%d are ready: %s", len(got), raw)
		}
		return nil
	})
	return got
}

// bring copies a file from one device's disk to another's, as a stick would.
func bring(t *testing.T, from *lab.Device, file string, to *lab.Device) {
	t.Helper()
	in, err := os.Open(from.Path(file))
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	w, err := os.OpenFile(to.Path(file), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if _, err := io.Copy(w, in); err != nil {
		t.Fatal(err)
	}
}

// binaryOf is the file of one of the two good versions.
func binaryOf(version string) string {
	if version == "v1.0.0" {
		return out("v1/slim/rivulet")
	}
	return out("v2/rivulet")
}

// other is the good release that b does not run, its version, and the one that runs.
func other(t *testing.T, ctx context.Context) (file, next, now string) {
	t.Helper()
	st, err := look(ctx, b)
	if err != nil {
		t.Fatal(err)
	}
	next = "v2.0.0"
	if st.Version == next {
		next = "v1.0.0"
	}
	return release(t, binaryOf(next), "rivulet-"+next, rootKey, nil), next, st.Version
}
