package operate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	kubeletexec "k8s.io/kubelet/pkg/cri/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"
)

// here runs what is executed in a container on this machine, and tells the sizes of its terminal.
type here struct{ t *testing.T }

func (h here) ExecInContainer(ctx context.Context, pod string, _ types.UID, _ string, cmd []string, in io.Reader, out, errs io.WriteCloser, tty bool, sizes <-chan remotecommand.TerminalSize, _ time.Duration) error {
	if pod == "distroless" {
		return errors.New(`OCI runtime exec failed: exec: "sh": executable file not found in $PATH`)
	}
	if tty {
		size := <-sizes
		_, err := io.WriteString(out, strings.Repeat("x", int(size.Width)))
		return err
	}
	c := exec.CommandContext(ctx, cmd[0], cmd[1:]...)
	c.Stdin, c.Stdout, c.Stderr = in, out, errs
	err := c.Run()
	if e := new(exec.ExitError); errors.As(err, &e) {
		return utilexec.CodeExitError{Err: err, Code: e.ExitCode()}
	}
	return err
}

// A kubelet speaks no version of the WebSocket protocol that clients do: SPDY takes its place.
func TestShell(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/v1/namespaces/lab/pods/{pod}", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(podOf("lab", r.PathValue("pod"), "home", corev1.PodRunning, true))
	})
	var mu sync.Mutex
	asked := map[string]int{}
	mux.HandleFunc("/api/v1/namespaces/lab/pods/{pod}/exec", func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		asked[strings.ToLower(r.Header.Get("Upgrade"))]++
		mu.Unlock()
		if strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
			http.Error(w, "no WebSocket here", http.StatusForbidden)
			return
		}
		if r.FormValue("container") != "c" {
			t.Errorf("container %q", r.FormValue("container"))
		}
		q := r.URL.Query()
		for kubelet, api := range map[string]string{"input": "stdin", "output": "stdout", "error": "stderr"} {
			if q.Get(api) == "true" {
				q.Set(kubelet, "1")
			}
		}
		if q.Get("tty") == "true" {
			q.Set("tty", "1")
		}
		r.URL.RawQuery, r.Form = q.Encode(), nil
		opts, err := kubeletexec.NewOptions(r)
		if err != nil {
			t.Error(err)
			return
		}
		kubeletexec.ServeExec(w, r, here{t}, r.PathValue("pod"), "", "c", q["command"], opts, time.Minute, 10*time.Second, []string{"v4.channel.k8s.io"})
	})
	server := httptest.NewServer(mux)
	defer server.Close()
	cfg := &rest.Config{Host: server.URL}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	c := Cluster{Client: func() (kubernetes.Interface, error) { return client, nil }}
	var out, errs bytes.Buffer
	if err := c.Shell(t.Context(), cfg, "lab", "web", "", Terminal{In: strings.NewReader("echo $((6*7)); echo no >&2; exit 3\n"), Out: &out, Err: &errs}); err != nil || out.String() != "42\n" || errs.String() != "no\n" {
		t.Errorf("%q, %q, %v", out.String(), errs.String(), err)
	}
	if asked["websocket"] != 1 || asked["spdy/3.1"] != 1 {
		t.Errorf("%v", asked)
	}
	out.Reset()
	sizes := make(chan remotecommand.TerminalSize, 1)
	sizes <- remotecommand.TerminalSize{Width: 7, Height: 2}
	if err := c.Shell(t.Context(), cfg, "lab", "web", "c", Terminal{In: strings.NewReader(""), Out: &out, TTY: true, Sizes: sizes}); err != nil || out.String() != "xxxxxxx" {
		t.Errorf("%q, %v", out.String(), err)
	}
	if err := c.Shell(t.Context(), cfg, "lab", "distroless", "", Terminal{Out: &out}); err == nil || !strings.Contains(err.Error(), "rivulet kubectl debug -it -n lab distroless --target c") {
		t.Error(err)
	}
	// The end of the context ends it, whatever the shell does.
	ctx, cancel := context.WithCancel(t.Context())
	in, typed := io.Pipe()
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() { done <- c.Shell(ctx, cfg, "lab", "web", "", Terminal{In: in, Out: w}) }()
	if _, err := io.WriteString(typed, "echo up\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(r, make([]byte, 3)); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	typed.Close()
}
