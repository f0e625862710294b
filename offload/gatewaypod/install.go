package gatewaypod

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/httpstream"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"
)

// installWithin is enough for 10 MB over a slow line.
const installWithin = 5 * time.Minute

// install copies the program into a pod with any image that has a shell, unless the image includes it or it is there.
// It is stored in an emptyDir: a restarted container still has it, a new pod gets it again.
func (g *Gateway) install(ctx context.Context, pod string) error {
	if g.cfg.Image != "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, installWithin)
	defer cancel()
	machine, err := g.exec(ctx, pod, "test -x "+program+" && echo there || uname -m", nil)
	if err != nil {
		return fmt.Errorf("gateway: the program cannot be put into the pod: %w: allow pods/exec, or name an image (--image)", err)
	}
	if machine == "there" {
		return nil
	}
	binary, err := g.cfg.Program(archOf(machine))
	if err != nil {
		return fmt.Errorf("gateway: for a node of the architecture %s: %w: name an image (--image)", machine, err)
	}
	g.log.Info("the gateway's program is put into the pod", "pod", pod, "machine", machine, "bytes", len(binary))
	script := fmt.Sprintf("cat >%[1]s.new && test $(wc -c <%[1]s.new) -eq %[2]d && chmod 755 %[1]s.new && mv %[1]s.new %[1]s && echo done", program, len(binary))
	if said, err := g.exec(ctx, pod, script, bytes.NewReader(binary)); err != nil || said != "done" {
		return fmt.Errorf("gateway: the program did not arrive in the pod (%s, %w): it is tried again; name an image (--image) if it stays so", said, err)
	}
	return nil
}

func archOf(machine string) string {
	switch {
	case machine == "x86_64":
		return "amd64"
	case machine == "aarch64":
		return "arm64"
	case strings.HasPrefix(machine, "armv"):
		return "arm"
	}
	return machine
}

// exec runs a script in the gateway's container and returns its output.
func (g *Gateway) exec(ctx context.Context, pod, script string, in io.Reader) (string, error) {
	at := g.campus.CoreV1().RESTClient().Post().Resource("pods").Namespace(g.cfg.Namespace).Name(pod).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Container: "gateway", Command: []string{"/bin/sh", "-c", script}, Stdin: in != nil, Stdout: true, Stderr: true}, scheme.ParameterCodec).URL()
	sockets, err := remotecommand.NewWebSocketExecutor(g.cfg.Campus, "GET", at.String())
	if err != nil {
		return "", err
	}
	old, err := remotecommand.NewSPDYExecutor(g.cfg.Campus, "POST", at)
	if err != nil {
		return "", err
	}
	e, err := remotecommand.NewFallbackExecutor(sockets, old, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
	if err != nil {
		return "", err
	}
	var out, complaint words
	err = e.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: in, Stdout: &out, Stderr: &complaint})
	if err != nil && len(complaint) > 0 {
		err = errors.Join(err, errors.New(strings.TrimSpace(string(complaint))))
	}
	return strings.TrimSpace(string(out)), err
}

// maxWords bounds the output of a script, in bytes: it is one word, or a complaint.
const maxWords = 4 << 10

// words keeps the beginning of an output.
type words []byte

func (w *words) Write(p []byte) (int, error) {
	*w = append(*w, p[:min(len(p), maxWords-len(*w))]...)
	return len(p), nil
}
