// Package partition tests what becomes of pods that are away when something goes away:
// the link, for longer and shorter, the supervisor, the engine, the power, and home
// for good. The real binary, one lab of two devices, a is home and b the provider. The table
// of table_test.go is the one of docs/design/offload.md.
package partition

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"rivulet/offload/policy"
	"rivulet/test/harness/await"
	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
	"rivulet/test/harness/mainjob"
)

var suite labtest.Suite

func TestMain(m *testing.M) { suite.Main(m, "partition", lab.Options{Devices: 2}) }

// begin waits for the peering and brings the image.
func begin(t *testing.T, ctx context.Context) (a, b *lab.Device) {
	t.Helper()
	a, b = suite.Devices["a"], suite.Devices["b"]
	peered(t, ctx)
	if err := mainjob.ImportImage(ctx, []*lab.Device{a, b}); err != nil {
		t.Fatal(err)
	}
	return a, b
}

func peered(t *testing.T, ctx context.Context) {
	t.Helper()
	for _, d := range suite.Devices {
		if err := d.WaitPeered(ctx, 1); err != nil {
			t.Fatal(err)
		}
	}
}

// client speaks to a device's API server.
func client(t *testing.T, ctx context.Context, d *lab.Device) kubernetes.Interface {
	t.Helper()
	cfg, err := clientcmd.RESTConfigFromKubeConfig([]byte(labtest.Must(t, ctx, d, "cat", "/var/lib/rivulet/kubeconfig")))
	if err != nil {
		t.Fatal(err)
	}
	cfg.Dial, cfg.QPS, cfg.Burst = d.Dial, 500, 500
	c, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// apply makes what a text in YAML or JSON says.
func apply(t *testing.T, ctx context.Context, d *lab.Device, text string) {
	t.Helper()
	await.NoError(t, ctx, time.Minute, "it is applied on "+d.Name, func() error {
		r := labtest.On(t, ctx, d, "sh", "-c", `printf %s "$1" | rivulet kubectl apply -f -`, "apply", text)
		if r.Code != 0 {
			return fmt.Errorf("%s", r.ErrOut)
		}
		return nil
	})
}

// kubectl runs one for a user of d; it has to succeed.
func kubectl(t *testing.T, ctx context.Context, d *lab.Device, args string) string {
	t.Helper()
	return labtest.Must(t, ctx, d, append([]string{"rivulet", "kubectl"}, strings.Fields(args)...)...)
}

// list returns the pods of an application.
func list(ctx context.Context, c kubernetes.Interface, namespace, app string) ([]corev1.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	pods, err := c.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=" + app})
	if err != nil {
		return nil, err
	}
	return pods.Items, nil
}

// twin is the name of a namespace's twin, and one that nobody has while there is none.
func twin(ctx context.Context, c kubernetes.Interface, home string) string {
	list, err := c.CoreV1().Namespaces().List(ctx, metav1.ListOptions{LabelSelector: policy.OriginLabel})
	if err == nil {
		for _, ns := range list.Items {
			if ns.Annotations[policy.HomeNamespaceAnnotation] == home {
				return ns.Name
			}
		}
	}
	return "no-twin"
}

func running(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodRunning && mainjob.Ready(p) && p.DeletionTimestamp == nil
}

// nodeReady reports what home says of b.
func nodeReady(ctx context.Context, a kubernetes.Interface) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	n, err := a.CoreV1().Nodes().Get(ctx, "b", metav1.GetOptions{})
	if err != nil {
		return false, err
	}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue, nil
		}
	}
	return false, nil
}
