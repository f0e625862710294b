// Package power tests what a shelf does to a device: the power goes at any moment,
// processes are killed, files are damaged, the disk is full or read-only. Two
// devices with disks of their own, on which a power cut loses what was not synced,
// run the real binary under load. Nothing acknowledged may be lost silently.
package power

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"rivulet/test/harness/await"
	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
	"rivulet/test/harness/mainjob"
	"rivulet/test/harness/releases"
)

// cyclesEnv is how many power cuts are made, if not 20, and of a long run 200.
const cyclesEnv = "RIVULET_POWER_CYCLES"

// disk is the size of each device's disk in bytes.
const disk = 3 << 30

var devices []*lab.Device // a and b, peered; a test leaves them so

var suite = labtest.Suite{
	Binary: releases.Binary("v1/slim/rivulet"), // one that takes releases
	Needs:  map[string]string{releases.Binary("v1/slim/rivulet"): "make ops-binaries"},
	Prepare: func(ctx context.Context, s *labtest.Suite) error {
		devices = s.All()
		if err := labtest.Peered(ctx, s); err != nil {
			return err
		}
		return mainjob.ImportImage(ctx, devices[:1])
	},
}

func TestMain(m *testing.M) {
	suite.Main(m, "power", lab.Options{Devices: 2, Disk: disk}, "/var/lib/rivulet/log/engine.log")
}

func need(t *testing.T, limit time.Duration) (ctx context.Context, a, b *lab.Device) {
	t.Helper()
	ctx = suite.Bounded(t, limit)
	return ctx, devices[0], devices[1]
}

func cycles(t *testing.T) int {
	t.Helper()
	v := os.Getenv(cyclesEnv)
	if v == "" && labtest.Long() {
		return 200
	} else if v == "" {
		return 20
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 1 {
		t.Fatalf("%s=%q is not a number of cycles", cyclesEnv, v)
	}
	return n
}

// client speaks to a device's API server; it does not survive a cluster made anew.
func client(ctx context.Context, d *lab.Device) (kubernetes.Interface, error) {
	raw, err := d.Run(ctx, "cat", "/var/lib/rivulet/kubeconfig")
	if err != nil {
		return nil, err
	}
	cfg, err := clientcmd.RESTConfigFromKubeConfig([]byte(raw))
	if err != nil {
		return nil, err
	}
	cfg.Dial, cfg.QPS, cfg.Burst, cfg.Timeout = d.Dial, 500, 500, 5*time.Second
	return kubernetes.NewForConfig(cfg)
}

func peered(t *testing.T, ctx context.Context) {
	t.Helper()
	for _, d := range devices {
		if err := d.WaitPeered(ctx, 1); err != nil {
			t.Fatal(err)
		}
	}
}

// deploy makes the Deployment that has to be there after everything.
func deploy(t *testing.T, ctx context.Context, a *lab.Device) {
	t.Helper()
	labtest.Must(t, ctx, a, "rivulet", "kubectl", "create", "deployment", "shelf", "--image="+mainjob.Image, "--replicas=2")
	serves(t, ctx, a, "shelf")
	labtest.CleanUp(t, func(ctx context.Context) {
		a.Run(ctx, "rivulet", "kubectl", "delete", "deployment", "shelf", "--ignore-not-found")
	})
}

// serves waits until all pods of the Deployment are ready, as the kubelet of today sees them.
func serves(t *testing.T, ctx context.Context, a *lab.Device, name string) {
	t.Helper()
	await.NoError(t, ctx, 0, "the pods of "+name+" run", func() error {
		c, err := client(ctx, a)
		if err != nil {
			return err
		}
		pods, err := c.CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: "app=" + name})
		if err != nil {
			return err
		}
		ready := 0
		for i := range pods.Items {
			if p := &pods.Items[i]; mainjob.Ready(p) && p.DeletionTimestamp == nil {
				if _, err := c.CoreV1().RESTClient().Get().Namespace("default").Resource("pods").Name(p.Name).
					SubResource("log").Do(ctx).Raw(); err != nil { // its container is really there
					return err
				}
				ready++
			}
		}
		if ready != 2 {
			return fmt.Errorf("%d of 2 pods are ready: %v", ready, phases(pods.Items))
		}
		return nil
	})
}

// phases tells of each pod what it is and what its containers wait for.
func phases(pods []corev1.Pod) (out []string) {
	for _, p := range pods {
		text := fmt.Sprintf("%s %s", p.Name, p.Status.Phase)
		for _, c := range p.Status.ContainerStatuses {
			if w := c.State.Waiting; w != nil {
				text += fmt.Sprintf(" (%s: %s)", w.Reason, w.Message)
			}
		}
		out = append(out, text)
	}
	return out
}

// problem is one of `rivulet status -o json`.
func problem(ctx context.Context, d *lab.Device, code string) error {
	out, _ := d.Run(ctx, "rivulet", "status")
	if !strings.Contains(out, "["+code+"]") {
		return fmt.Errorf("the status does not show %s:\n%s", code, out)
	}
	return nil
}
