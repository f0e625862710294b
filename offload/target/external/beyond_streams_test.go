package external_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/client-go/util/exec"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"rivulet/test/harness/await"
)

// streams are those of kubectl, against home's ordinary API; what answers is the
// stand-in for a kubelet at the campus.
func streams(t *testing.T, h *home, pod string) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	pods := h.Client.CoreV1().Pods("lab")

	t.Run("logs that are followed", func(t *testing.T) {
		within, stop := context.WithCancel(ctx)
		defer stop()
		log, err := pods.GetLogs(pod, &corev1.PodLogOptions{Follow: true}).Stream(within)
		must(t, err)
		defer log.Close()
		lines := bufio.NewScanner(log)
		for n := 0; n < 4; n++ { // the first, and three that come later
			if !lines.Scan() {
				t.Fatalf("after %d lines: %v", n, lines.Err())
			}
			if want := fmt.Sprintf("line %d", n); n > 0 && lines.Text() != want {
				t.Errorf("%q, want %q", lines.Text(), want)
			}
		}
	})
	t.Run("logs of the previous container", func(t *testing.T) {
		raw, err := pods.GetLogs(pod, &corev1.PodLogOptions{Previous: true}).DoRaw(ctx)
		if must(t, err); !strings.HasPrefix(string(raw), "previous log of ") {
			t.Errorf("%q", raw)
		}
	})

	// A terminal tells its sizes; otherwise stdin, a file of cp, comes back in capitals.
	run := func(sub string, options any, stream remotecommand.StreamOptions) error {
		r := h.Client.CoreV1().RESTClient().Post().Resource("pods").Namespace("lab").Name(pod).SubResource(sub)
		switch o := options.(type) {
		case *corev1.PodExecOptions:
			r.VersionedParams(o, scheme.ParameterCodec)
		case *corev1.PodAttachOptions:
			r.VersionedParams(o, scheme.ParameterCodec)
		}
		e, err := remotecommand.NewWebSocketExecutor(h.Config, "GET", r.URL().String())
		must(t, err)
		return e.StreamWithContext(ctx, stream)
	}
	t.Run("exec", func(t *testing.T) {
		file := bytes.Repeat([]byte("a file of cp "), 1<<16)
		var out bytes.Buffer
		err := run("exec", &corev1.PodExecOptions{Command: []string{"tar", "0"}, Stdin: true, Stdout: true}, remotecommand.StreamOptions{Stdin: bytes.NewReader(file), Stdout: &out})
		if must(t, err); !bytes.Equal(out.Bytes(), bytes.ToUpper(file)) {
			t.Errorf("%d of %d bytes came back", out.Len(), len(file))
		}
		err = run("exec", &corev1.PodExecOptions{Command: []string{"false", "7"}, Stdin: true, Stdout: true}, remotecommand.StreamOptions{Stdin: strings.NewReader(""), Stdout: io.Discard})
		if code, ok := errors.AsType[exec.CodeExitError](err); !ok || code.Code != 7 {
			t.Errorf("exit code: %v", err)
		}
	})
	t.Run("exec with a terminal", func(t *testing.T) {
		var out bytes.Buffer
		sizes := sized{{Width: 80, Height: 24}, {Width: 132, Height: 43}}
		err := run("exec", &corev1.PodExecOptions{Command: []string{"sizes"}, Stdin: true, Stdout: true, TTY: true},
			remotecommand.StreamOptions{Stdin: strings.NewReader(""), Stdout: &out, Tty: true, TerminalSizeQueue: &sizes})
		if must(t, err); out.String() != "80x24\n132x43\n" {
			t.Errorf("%q", out.String())
		}
	})
	t.Run("attach", func(t *testing.T) {
		var out bytes.Buffer
		err := run("attach", &corev1.PodAttachOptions{Stdin: true, Stderr: true}, remotecommand.StreamOptions{Stdin: strings.NewReader("hello"), Stderr: &out})
		if must(t, err); out.String() != "HELLO" {
			t.Errorf("%q", out.String())
		}
	})
	t.Run("port-forward", func(t *testing.T) {
		r := h.Client.CoreV1().RESTClient().Post().Resource("pods").Namespace("lab").Name(pod).SubResource("portforward")
		address, stop := forward(t, h, r.URL())
		defer stop()
		conn, err := net.Dial("tcp", address)
		must(t, err)
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(time.Minute)) // fails only on a closed one
		_, err = io.WriteString(conn, "through two API servers")
		must(t, err)
		back := make([]byte, len("through two API servers"))
		if _, err := io.ReadFull(conn, back); err != nil || string(back) != "THROUGH TWO API SERVERS" {
			t.Errorf("%q %v", back, err)
		}
	})
}

// sized is a terminal that is changed in its size.
type sized []remotecommand.TerminalSize

func (s *sized) Next() *remotecommand.TerminalSize {
	if len(*s) == 0 {
		return nil
	}
	next := (*s)[0]
	*s = (*s)[1:]
	return &next
}

func forward(t *testing.T, h *home, to *url.URL) (address string, stop func()) {
	t.Helper()
	transport, upgrader, err := spdy.RoundTripperFor(h.Config)
	must(t, err)
	end, ready := make(chan struct{}), make(chan struct{})
	f, err := portforward.New(spdy.NewDialer(upgrader, &http.Client{Transport: transport}, "POST", to), []string{"0:8080"}, end, ready, io.Discard, io.Discard)
	must(t, err)
	failed := make(chan error, 1)
	go func() { failed <- f.ForwardPorts() }()
	select {
	case <-ready:
	case err := <-failed:
		t.Fatal(err)
	}
	ports, err := f.GetPorts()
	must(t, err)
	return fmt.Sprint("127.0.0.1:", ports[0].Local), func() { close(end); <-failed }
}

// metricsAPI stands for a metrics-server's: a custom resource of its name, which the
// real authorizer guards.
const metricsAPI = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition",
"metadata":{"name":"pods.metrics.k8s.io","annotations":{"api-approved.kubernetes.io":"unapproved, for a test"}},
"spec":{"group":"metrics.k8s.io","scope":"Namespaced","names":{"plural":"pods","kind":"PodMetrics"},
"versions":[{"name":"v1beta1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`

// measured: what pods use is told under home's names where the campus measures, and
// that it does not where it does not.
func measured(t *testing.T, h *home, c *campus, pod *corev1.Pod) {
	summary := func(ctx context.Context) ([]byte, error) {
		return h.Client.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes/burst-campus/proxy/stats/summary").DoRaw(ctx)
	}
	if raw, err := summary(t.Context()); err == nil || !strings.Contains(string(raw)+err.Error(), "what pods in lab use") {
		t.Errorf("nobody measures: %s %v", raw, err)
	}
	raw, err := c.Client.CoreV1().RESTClient().Post().AbsPath("/apis/apiextensions.k8s.io/v1/customresourcedefinitions").Body([]byte(metricsAPI)).SetHeader("Content-Type", "application/json").DoRaw(t.Context())
	if err != nil {
		t.Fatalf("%v %s", err, raw)
	}
	there, err := c.Client.CoreV1().Pods(shared).List(t.Context(), metav1.ListOptions{LabelSelector: "away.rivulet.dev/app=web"})
	must(t, err)
	for _, p := range there.Items { // of both homes
		labels, err := json.Marshal(p.Labels)
		must(t, err)
		object := fmt.Sprintf(`{"apiVersion":"metrics.k8s.io/v1beta1","kind":"PodMetrics","metadata":{"name":%q,"labels":%s},"timestamp":"2026-01-02T03:04:05Z","window":"15s",
"containers":[{"name":"main","usage":{"cpu":"123m","memory":"7Mi"}}]}`, p.Name, labels)
		await.Empty(t, 60*time.Second, "it is measured there", func(ctx context.Context) string {
			raw, err := c.Client.CoreV1().RESTClient().Post().AbsPath("/apis/metrics.k8s.io/v1beta1/namespaces/"+shared+"/pods").Body([]byte(object)).SetHeader("Content-Type", "application/json").DoRaw(ctx)
			if err != nil {
				return fmt.Sprintf("%v %s", err, raw)
			}
			return ""
		})
	}
	await.Empty(t, 60*time.Second, "home knows what its pod uses", func(ctx context.Context) string {
		raw, err := summary(ctx)
		if err != nil {
			return fmt.Sprintf("%v %s", err, raw)
		}
		var s stats.Summary
		must(t, json.Unmarshal(raw, &s))
		if len(s.Pods) != 1 || s.Pods[0].PodRef.Name != pod.Name || s.Pods[0].PodRef.Namespace != "lab" || *s.Pods[0].CPU.UsageNanoCores != 123e6 ||
			*s.Pods[0].Memory.WorkingSetBytes != 7<<20 || *s.Node.CPU.UsageNanoCores != 123e6 {
			return string(raw)
		}
		return ""
	})
}
