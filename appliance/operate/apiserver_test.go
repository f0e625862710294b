package operate

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"rivulet/test/harness/apiserver"
	"rivulet/test/harness/await"
)

// What the pages of a pod need passes through a real API server, to a kubelet: logs, a shell over WebSocket, events.
func TestAPodThroughTheAPIServer(t *testing.T) {
	s := apiserver.Start(t)
	k := apiserver.StartKubelet(t, s, "n")
	k.Exec(func(_ string, cmd []string, in io.Reader, out io.Writer) error {
		c := exec.Command(cmd[0], cmd[1:]...)
		c.Stdin, c.Stdout = in, out
		return c.Run()
	})
	c := Cluster{Client: func() (kubernetes.Interface, error) { return s.Client, nil }, Supervisor: supervisor(nil)}
	if err := c.label(t.Context(), "lab", nil, true); err != nil {
		t.Fatal(err)
	}
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{Name: "c", Image: "x"}}}}
	await.Empty(t, time.Minute, "the pod runs", func(ctx context.Context) string {
		if _, err := s.Client.CoreV1().Pods("lab").Create(ctx, p, metav1.CreateOptions{}); err != nil && !strings.Contains(err.Error(), "already exists") {
			return err.Error() // no service account yet
		}
		d, err := c.PodDetails(ctx, "lab", "web")
		if err != nil || len(d.Containers) != 1 || d.Containers[0].State != "Running" {
			return fmt.Sprint(d, err)
		}
		return ""
	})
	for previous, want := range map[bool]string{false: "log of web/c tail=500\n", true: "previous log of web/c tail=500\n"} {
		log, err := c.Log(t.Context(), LogRequest{Namespace: "lab", Pod: "web", Previous: previous})
		if err != nil {
			t.Fatal(err)
		}
		if text, err := io.ReadAll(log); err != nil || string(text) != want {
			t.Errorf("%q, %v", text, err)
		}
		log.Close()
	}
	ctx, cancel := context.WithCancel(t.Context())
	log, err := c.Log(ctx, LogRequest{Namespace: "lab", Pod: "web", Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(log)
	for lines.Scan() && lines.Text() != "line 2" {
	}
	cancel()
	for lines.Scan() { // what was under way
	}
	log.Close()
	var out bytes.Buffer
	if err := c.Shell(t.Context(), s.Config, "lab", "web", "", Terminal{In: strings.NewReader("echo $((6*7))\n"), Out: &out}); err != nil || out.String() != "42\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	in, typed := io.Pipe()
	defer typed.Close()
	if err := c.Shell(ctx, s.Config, "lab", "web", "", Terminal{In: in, Out: io.Discard}); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	if w, err := c.Workloads(t.Context(), Selection{}); err != nil || len(w.Places) != 1 || len(w.Places[0].Pods) != 1 {
		t.Errorf("%+v, %v", w, err)
	}
}
