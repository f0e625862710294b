// Package podgate lets the supervisor decide on a pod's network before the pod has it. The CNI plugin sends
// {"namespace", "addr", "veth", "mac"} after the network is made and before the pod's first process starts. It refuses
// the pod if the answer {"refused": ""} has a reason or does not come. Both ends run as root, on a Unix socket in the
// runtime folder, with one request per connection. Serve alone writes the socket. Restart: a client waits for a
// supervisor that is starting, and retries if that ends early.
package podgate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"rivulet/fabric/changes"
	"rivulet/offload/nodeagent/podnet"
)

// Env has the socket for the CNI plugin if it is not DefaultSocket.
const Env, DefaultSocket = "RIVULET_PODGATE", "/run/rivulet/pods.sock"

// Nobody, in place of a socket, is for an engine without a supervisor: no pods of other clusters run there. The
// supervisor sets Env for its own.
const Nobody = "none"

// Socket is the path under a runtime folder.
func Socket(runDir string) string { return filepath.Join(runDir, "pods.sock") }

// limit bounds a request and an answer, in bytes.
const limit = 64 << 10

type answer struct {
	Refused string `json:"refused"`
}

// refusal is a final answer.
type refusal string

func (r refusal) Error() string { return string(r) }

// Request returns nil when the pod may have its network.
func Request(ctx context.Context, socket string, pod podnet.Pod) error {
	if socket == Nobody {
		return nil
	}
	for {
		err := request(ctx, socket, pod)
		var final refusal
		if err == nil || errors.As(err, &final) {
			return err
		}
		if !changes.Wait(ctx, 50*time.Millisecond) {
			return fmt.Errorf("the supervisor does not answer whether the pod may have a network: %w; see rivulet status", err)
		}
	}
}

func request(ctx context.Context, socket string, pod podnet.Pod) error {
	c, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })()
	if err := json.NewEncoder(c).Encode(pod); err != nil {
		return err
	}
	// An answer without the field is invalid.
	var a struct{ Refused *string }
	if err := json.NewDecoder(io.LimitReader(c, limit)).Decode(&a); err != nil {
		return err
	}
	switch {
	case a.Refused == nil:
		return errors.New("the answer is not whole")
	case *a.Refused != "":
		return refusal(*a.Refused)
	}
	return nil
}

// Serve answers with decide until ctx ends; the context of decide ends with the client's connection. ready is called
// once it listens.
func Serve(ctx context.Context, socket string, decide func(context.Context, podnet.Pod) error, ready func()) error {
	if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil {
		return fmt.Errorf("podgate: %w", err)
	}
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("podgate: %w", err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		return fmt.Errorf("podgate: %w", err)
	}
	defer l.Close()
	if err := os.Chmod(socket, 0o600); err != nil {
		return fmt.Errorf("podgate: %w", err)
	}
	defer context.AfterFunc(ctx, func() { l.Close() })()
	ready()
	for {
		c, err := l.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("podgate: %w", err)
		}
		go serve(ctx, c, decide)
	}
}

func serve(ctx context.Context, c net.Conn, decide func(context.Context, podnet.Pod) error) {
	defer c.Close()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
	var pod podnet.Pod
	if err := json.NewDecoder(io.LimitReader(c, limit)).Decode(&pod); err != nil {
		return
	}
	_ = c.SetReadDeadline(time.Time{})
	go func() { // the client writes nothing more: this returns when it has gone
		_, _ = c.Read(make([]byte, 1))
		stop()
	}()
	var a answer
	if err := decide(ctx, pod); err != nil {
		if ctx.Err() != nil {
			return // an early end is no refusal: the client retries
		}
		a.Refused = err.Error()
	}
	_ = json.NewEncoder(c).Encode(a)
}
