// Package podgate lets the supervisor decide on a pod's network before the pod has it: the CNI plugin sends
// {"namespace", "addr", "veth", "mac"} when the network is made, before the pod's first process starts, and refuses the
// pod if the answer {"refused": ""} has a reason or does not come. Both ends are root's, on a Unix socket in the
// runtime folder, one question to a connection. Serve alone writes the socket. A client waits for a supervisor that is
// starting, and tries again when that ends early.
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

// Env names the socket to the CNI plugin where it is not DefaultSocket.
const Env, DefaultSocket = "RIVULET_PODGATE", "/run/rivulet/pods.sock"

// Nobody, in place of a socket, is for an engine that somebody runs without a
// supervisor: no pods of other clusters run there. The supervisor sets Env for its own.
const Nobody = "none"

// Socket is the path under a runtime folder.
func Socket(runDir string) string { return filepath.Join(runDir, "pods.sock") }

// limit bounds a question and an answer, bytes.
const limit = 64 << 10

type answer struct {
	Refused string `json:"refused"`
}

// refusal is an answer that is final.
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
	// An answer without the field is none.
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

// Serve answers with decide until ctx ends; the context of decide ends with the asker's
// connection. ready is called once it listens.
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
	go func() { // the asker writes nothing more: this returns when it has gone
		_, _ = c.Read(make([]byte, 1))
		stop()
	}()
	var a answer
	if err := decide(ctx, pod); err != nil {
		if ctx.Err() != nil {
			return // an end in the middle is no refusal: the asker asks again
		}
		a.Refused = err.Error()
	}
	_ = json.NewEncoder(c).Encode(a)
}
