// Package ops tests what a person does with a device over the years: save the
// cluster, bring it back on other hardware, run another version. The real binary
// runs on three devices of a lab; "another version" is the same tree, linked with
// another version and the key of these tests.
package ops

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"rivulet/test/harness/await"
	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
	"rivulet/test/harness/releases"
)

var (
	suite = labtest.Suite{
		Binary: releases.Binary("v1/slim/rivulet"),
		Needs:  map[string]string{releases.Binary("v1/slim/rivulet"): "make ops-binaries", releases.Binary("v2/rivulet"): "make ops-binaries"},
		Prepare: func(ctx context.Context, s *labtest.Suite) error {
			a, b, c = s.Devices["a"], s.Devices["b"], s.Devices["c"]
			return labtest.Peered(ctx, s)
		},
	}
	a, b, c *lab.Device
	// dir is where signed files are, as the host and (below /host) the devices see it.
	dir string
)

func TestMain(m *testing.M) {
	o := lab.Options{Devices: 3}
	if labtest.Long() {
		o.Disk = 4 << 30 // a power cut then loses what was not synced
	}
	var err error
	if dir, err = os.MkdirTemp("/var/tmp", "rivulet-ops-"); err != nil {
		fmt.Fprintln(os.Stderr, "ops: "+err.Error())
		os.Exit(1)
	}
	code := suite.Run(m, "ops", o)
	os.RemoveAll(dir)
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
		return releases.Binary("v1/slim/rivulet")
	}
	return releases.Binary("v2/rivulet")
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
	return releases.Sign(t, dir, binaryOf(next), "rivulet-"+next, releases.Root, nil), next, st.Version
}
