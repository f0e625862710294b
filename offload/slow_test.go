package offload

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/utils/ptr"

	"rivulet/offload/policy"
	"rivulet/test/harness/apiserver"
)

// TestLongOutputOverASlowLink: what a pod that is away sends and gets arrives whole, however long the link takes. The
// connections are the kernel's: an end that closes while something is unread there loses what it still has to send.
func TestLongOutputOverASlowLink(t *testing.T) {
	a, b := world(t)
	k := apiserver.StartKubelet(t, b.Server, "b-node")
	k.Exec(func(_ string, cmd []string, in io.Reader, out io.Writer) error {
		if cmd[0] == "read" {
			got, err := io.ReadAll(in)
			if err == nil && !bytes.Equal(got, letters(len(got))) {
				err = errors.New("it came in another order")
			}
			fmt.Fprint(out, len(got))
			return err
		}
		n, err := strconv.Atoi(cmd[1])
		if err == nil {
			_, err = io.CopyBuffer(out, struct{ io.Reader }{bytes.NewReader(letters(n))}, make([]byte, 32<<10))
		}
		return err
	})
	k.Forward(func(_ string, n int32) (net.Conn, error) {
		pod, server := net.Pipe()
		go func() {
			defer server.Close()
			_, _ = server.Write(letters(int(n) << 10))
		}()
		return pod, nil
	})
	a.offloadNamespace(t, "lab")
	a.ready(t, true)
	a.create(t, bare("talk", corev1.PodSpec{Tolerations: []corev1.Toleration{{Key: policy.VirtualTaint, Operator: corev1.TolerationOpExists}}}))
	a.running(t, "talk", "")

	for _, link := range []struct{ mbits, size int }{{30, 24 << 20}, {5, 5 << 20}} {
		t.Run(fmt.Sprintf("%d Mbit/s", link.mbits), func(t *testing.T) {
			a.fabric.stall.rate.Store(int64(link.mbits) * 1e6 / 8)
			defer a.fabric.stall.rate.Store(0)
			ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
			defer cancel()
			want := letters(link.size)
			var wg sync.WaitGroup
			whole := func(name string, get func() ([]byte, error)) {
				wg.Go(func() {
					began := time.Now()
					if got, err := get(); err != nil || !bytes.Equal(got, want) {
						t.Errorf("%s: after %v: %d of %d bytes: %v", name, time.Since(began).Round(time.Millisecond), len(got), len(want), err)
					}
				})
			}
			for _, webSocket := range []bool{true, false} {
				whole(fmt.Sprintf("exec, WebSocket %v", webSocket), func() ([]byte, error) {
					return a.command(ctx, webSocket, &corev1.PodExecOptions{Command: []string{"write", strconv.Itoa(link.size)}, Stdout: true}, nil)
				})
				whole(fmt.Sprintf("cp to the pod, WebSocket %v", webSocket), func() ([]byte, error) {
					got, err := a.command(ctx, webSocket, &corev1.PodExecOptions{Command: []string{"read"}, Stdin: true, Stdout: true}, bytes.NewReader(want))
					if err == nil && string(got) != strconv.Itoa(link.size) {
						err = fmt.Errorf("%s bytes arrived", got)
					}
					return want, err
				})
				whole(fmt.Sprintf("attach, WebSocket %v", webSocket), func() ([]byte, error) {
					return a.command(ctx, webSocket, &corev1.PodAttachOptions{Stdin: true, Stderr: true}, bytes.NewReader(bytes.ToLower(want)))
				})
				whole(fmt.Sprintf("port-forward, WebSocket %v", webSocket), func() ([]byte, error) {
					return a.download(t, webSocket, link.size)
				})
			}
			whole("logs", func() ([]byte, error) {
				got, err := a.Client.CoreV1().Pods("lab").GetLogs("talk", &corev1.PodLogOptions{LimitBytes: ptr.To(int64(link.size))}).DoRaw(ctx)
				if err == nil && len(got) == len(want) {
					got = want
				}
				return got, err
			})
			wg.Wait()
		})
	}
}

// letters are n capitals, the same each time.
func letters(n int) []byte {
	out := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{}).Read(out)
	for i := range out {
		out[i] = 'A' + out[i]%26
	}
	return out
}

// command runs it in the pod, or attaches, and returns what came on its outputs.
func (d *device) command(ctx context.Context, webSocket bool, options any, in io.Reader) ([]byte, error) {
	r := d.Client.CoreV1().RESTClient().Post().Resource("pods").Namespace("lab").Name("talk")
	switch o := options.(type) {
	case *corev1.PodExecOptions:
		r = r.SubResource("exec").VersionedParams(o, scheme.ParameterCodec)
	case *corev1.PodAttachOptions:
		r = r.SubResource("attach").VersionedParams(o, scheme.ParameterCodec)
	}
	e, err := remotecommand.NewWebSocketExecutor(d.Config, "GET", r.URL().String())
	if !webSocket {
		e, err = remotecommand.NewSPDYExecutor(d.Config, "POST", r.URL())
	}
	if err != nil {
		return nil, err
	}
	out := &collected{}
	streams := remotecommand.StreamOptions{Stdin: in, Stdout: out}
	if _, attached := options.(*corev1.PodAttachOptions); attached {
		streams.Stdout, streams.Stderr = nil, out
	}
	err = e.StreamWithContext(ctx, streams)
	return []byte(out.String()), err
}

// download gets as many bytes from the pod by a port-forward.
func (d *device) download(t *testing.T, webSocket bool, size int) ([]byte, error) {
	address, stop := d.forward(t, "talk", size>>10, webSocket)
	defer stop()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(4 * time.Minute)) // fails only on a closed one
	return io.ReadAll(conn)
}
