package operate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/httpstream"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	utilexec "k8s.io/client-go/util/exec"
)

// Terminal is the near end of a shell. In a terminal (TTY) the program's errors are in Out.
type Terminal struct {
	In       io.Reader
	Out, Err io.Writer
	TTY      bool
	// Sizes has the size of the window, and each change of it; only with TTY. nil: it stays as it is.
	Sizes <-chan remotecommand.TerminalSize
}

// shell runs bash where the image has it.
var shell = []string{"sh", "-c", "if command -v bash >/dev/null 2>&1; then exec bash; fi; exec sh"}

// Shell runs a shell in a container of a pod, at home or away; the empty container is the pod's default one. cfg is of
// home's API server. It blocks until the shell ends, whatever its exit code, or ctx ends: the shell then gets the end of
// its input, and a terminal hangs up.
func (c Cluster) Shell(ctx context.Context, cfg *rest.Config, namespace, name, container string, t Terminal) error {
	_, p, err := c.pod(ctx, namespace, name)
	if err != nil {
		return err
	}
	if container, err = containerOf(p, container); err != nil {
		return err
	}
	e, err := executor(cfg, namespace, name, &corev1.PodExecOptions{
		Container: container, Command: shell, Stdin: t.In != nil, Stdout: t.Out != nil, Stderr: t.Err != nil && !t.TTY, TTY: t.TTY})
	if err != nil {
		return err
	}
	o := remotecommand.StreamOptions{Stdin: t.In, Stdout: t.Out, Tty: t.TTY}
	if !t.TTY {
		o.Stderr = t.Err
	} else if t.Sizes != nil {
		o.TerminalSizeQueue = sizes{ctx, t.Sizes}
	}
	err = e.StreamWithContext(ctx, o)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err == nil, errors.As(err, new(utilexec.CodeExitError)):
		return nil
	case strings.Contains(err.Error(), "executable file not found"), strings.Contains(err.Error(), "no such file or directory"):
		return fmt.Errorf("the image of container %s has no shell; add one that has: rivulet kubectl debug -it -n %s %s --target %s --image IMAGE", container, namespace, name, container)
	}
	return fmt.Errorf("a shell in container %s of pod %s: %w; see: rivulet why %s/%s", container, name, err, namespace, name)
}

// executor speaks WebSocket, or SPDY to an API server that refuses that.
func executor(cfg *rest.Config, namespace, name string, o *corev1.PodExecOptions) (remotecommand.Executor, error) {
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	u := client.CoreV1().RESTClient().Post().Resource("pods").Namespace(namespace).Name(name).SubResource("exec").VersionedParams(o, scheme.ParameterCodec).URL()
	ws, err := remotecommand.NewWebSocketExecutor(cfg, http.MethodGet, u.String())
	if err != nil {
		return nil, err
	}
	spdy, err := remotecommand.NewSPDYExecutor(cfg, http.MethodPost, u)
	if err != nil {
		return nil, err
	}
	return remotecommand.NewFallbackExecutor(ws, spdy, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
}

// sizes is the queue of window sizes of a terminal.
type sizes struct {
	ctx  context.Context
	next <-chan remotecommand.TerminalSize
}

// Next blocks until there is another size; nil ends the queue.
func (s sizes) Next() *remotecommand.TerminalSize {
	select {
	case size, ok := <-s.next:
		if ok {
			return &size
		}
	case <-s.ctx.Done():
	}
	return nil
}
