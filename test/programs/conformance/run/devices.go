package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"rivulet/offload/policy"
	"rivulet/test/harness/conformancepage"
	"rivulet/test/harness/lab"
)

// work is the folder on device a that the tests write to.
const work = "/var/lib/conformance"

// offloadAll has a's API server label every new namespace.
const offloadAll = `apiVersion: admissionregistration.k8s.io/v1beta1
kind: MutatingAdmissionPolicy
metadata: {name: conformance}
spec:
  failurePolicy: Fail
  reinvocationPolicy: Never
  matchConstraints:
    resourceRules:
    - {apiGroups: [""], apiVersions: [v1], resources: [namespaces], operations: [CREATE]}
  mutations:
  - patchType: ApplyConfiguration
    applyConfiguration:
      expression: "Object{metadata: Object.metadata{labels: {'` + policy.NamespaceLabel + `': 'remote'}}}"
---
apiVersion: admissionregistration.k8s.io/v1beta1
kind: MutatingAdmissionPolicyBinding
metadata: {name: conformance}
spec: {policyName: conformance}
`

// devices are the lab: a is home, b its provider.
type devices struct {
	lab  *lab.Lab
	dir  string
	a, b *lab.Device
}

func makeLab(ctx context.Context, o options, archive string) (_ *devices, err error) {
	tell := func(format string, args ...any) { fmt.Printf(format+"\n", args...) }
	d := &devices{dir: o.dir}
	if d.lab, err = lab.Open(o.dir); errors.Is(err, lab.ErrNoLab) {
		d.lab, err = lab.Up(ctx, lab.Options{Dir: o.dir, Binary: o.rivulet, Devices: 2, Tell: tell})
	}
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil && !o.keep {
			d.down(&err)
		}
	}()
	if d.a, err = d.lab.Device("a"); err != nil {
		return nil, err
	}
	if d.b, err = d.lab.Device("b"); err != nil {
		return nil, err
	}
	if archive, err = filepath.Abs(archive); err != nil {
		return nil, err
	}
	for _, device := range []*lab.Device{d.a, d.b} {
		if err := device.WaitPeered(ctx, 1); err != nil {
			return nil, err
		}
		tell("images for %s", device.Name)
		if _, err := device.Run(ctx, "rivulet", "ctr", "images", "import", "--label", "rivulet.dev/share=true", "/host"+archive); err != nil {
			return nil, err
		}
	}
	_, err = d.a.Run(ctx, "sh", "-c", "mkdir -p "+work+" && ln -sf /opt/rivulet/rivulet "+work+"/kubectl")
	return d, err
}

// down takes the lab down, whatever became of ctx.
func (d *devices) down(err *error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	*err = errors.Join(*err, lab.Down(ctx, d.dir))
}

// offload has all namespaces that are made from now on offloaded, or none.
func (d *devices) offload(ctx context.Context, on bool) error {
	file := filepath.Join(work, "offload.yaml")
	if err := os.WriteFile(d.a.Path(file), []byte(offloadAll), 0o644); err != nil {
		return err
	}
	if !on {
		_, err := d.a.Kubectl(ctx, "delete", "--ignore-not-found", "-f", file)
		return err
	}
	if _, err := d.a.Kubectl(ctx, "apply", "-f", file); err != nil {
		return err
	}
	// The API server's admission reads policies by watch.
	for {
		label, err := d.a.Kubectl(ctx, "create", "namespace", "conformance", "--dry-run=server", "-o", "jsonpath={.metadata.labels}")
		if err != nil {
			return err
		}
		if strings.Contains(label, policy.NamespaceLabel) {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Second): // between two looks
		}
	}
}

// inside makes a virtual cluster on a, unless it is there, and returns the path of its administrator's kubeconfig on a.
func (d *devices) inside(ctx context.Context) (string, error) {
	const name, kubeconfig = "conformance", work + "/inside.kubeconfig"
	if _, err := d.a.Run(ctx, "rivulet", "vcluster", "describe", name); err != nil {
		if _, err := d.a.Run(ctx, "rivulet", "vcluster", "create", name, "--sleep", "0", "--memory", "1Gi"); err != nil {
			return "", err
		}
	}
	_, err := d.a.Run(ctx, "rivulet", "vcluster", "connect", name, "--kubeconfig", kubeconfig)
	return kubeconfig, err
}

// run runs the tests and returns how each ended, by its name.
func (d *devices) run(ctx context.Context, o options, which string) (map[string]conformancepage.Result, error) {
	if err := d.offload(ctx, which == conformancepage.Away); err != nil {
		return nil, err
	}
	bin, err := filepath.Abs(o.bin)
	if err != nil {
		return nil, err
	}
	kubeconfig := "/var/lib/rivulet/kubeconfig"
	if which == conformancepage.Inside {
		if kubeconfig, err = d.inside(ctx); err != nil {
			return nil, err
		}
	}
	report := filepath.Join(work, which+".json")
	cmd, err := d.a.Command(ctx, "/host"+bin+"/ginkgo", fmt.Sprintf("--procs=%d", o.procs), "--timeout="+o.limit.String(),
		"--focus="+o.focus, "--skip="+o.skip, "--silence-skips", "--no-color", "-v",
		"--output-dir="+work, "--json-report="+which+".json", "/host"+bin+"/e2e.test", "--",
		"--provider=skeleton", "--kubeconfig="+kubeconfig, "--kubectl-path="+work+"/kubectl",
		"--repo-root="+work, "--e2e-output-dir="+work, "--disable-log-dump",
		"--non-blocking-taints="+policy.VirtualTaint+","+policy.AwayTaint)
	if err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(o.bin, which+".log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	fmt.Printf("%s: the tests run, their output goes to %s\n", which, log.Name())
	cmd.Stdout, cmd.Stderr = log, log
	// Ginkgo ends the tests and writes what it has.
	cmd.Cancel, cmd.WaitDelay = func() error { return cmd.Process.Signal(syscall.SIGTERM) }, 2*time.Minute
	if err := os.Remove(d.a.Path(report)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	failed := cmd.Run() // 1 when a test is red: the report has which
	raw, err := os.ReadFile(d.a.Path(report))
	if err != nil {
		return nil, errors.Join(failed, err)
	}
	if err := os.WriteFile(filepath.Join(o.bin, which+".json"), raw, 0o644); err != nil {
		return nil, err
	}
	return conformancepage.Results(raw)
}
