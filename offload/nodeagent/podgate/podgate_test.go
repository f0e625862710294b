package podgate

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"rivulet/offload/nodeagent/podnet"
)

var pod = podnet.Pod{Namespace: "lab", Name: "web", UID: "u", Addr: netip.MustParseAddr("10.42.0.7"), Veth: "veth7", MAC: "0a:00:00:00:00:01"}

func serveGate(t *testing.T, socket string, decide func(context.Context, podnet.Pod) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done, ready := make(chan error, 1), make(chan struct{})
	go func() { done <- Serve(ctx, socket, decide, func() { close(ready) }) }()
	select {
	case <-ready:
	case err := <-done:
		t.Fatal(err)
	}
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func TestTheAnswerIsTheSupervisors(t *testing.T) {
	socket := Socket(t.TempDir())
	var asked podnet.Pod
	refuse := error(nil)
	defer serveGate(t, socket, func(_ context.Context, p podnet.Pod) error { asked = p; return refuse })()
	if err := Request(t.Context(), socket, pod); err != nil || asked != pod {
		t.Errorf("%v, asked for %+v", err, asked)
	}
	refuse = errors.New("not isolated")
	if err := Request(t.Context(), socket, pod); err == nil || err.Error() != "not isolated" {
		t.Errorf("refused: %v", err)
	}
	if info, err := os.Stat(socket); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket is open to others: %v %v", info, err)
	}
}

// Without a supervisor, with one that hangs, and with one that answers nonsense there is
// no yes.
func TestNoAnswerIsNo(t *testing.T) {
	short := func() context.Context {
		ctx, stop := context.WithTimeout(context.Background(), 300*time.Millisecond)
		t.Cleanup(stop)
		return ctx
	}
	if err := Request(short(), filepath.Join(t.TempDir(), "none"), pod); err == nil || !strings.Contains(err.Error(), "rivulet status") {
		t.Errorf("no supervisor: %v", err)
	}
	hung := Socket(t.TempDir())
	gone := make(chan struct{})
	defer serveGate(t, hung, func(ctx context.Context, _ podnet.Pod) error { <-ctx.Done(); close(gone); return nil })()
	if err := Request(short(), hung, pod); err == nil {
		t.Error("a supervisor that hangs has admitted a pod")
	}
	<-gone // it learns that nobody waits
	for _, text := range []string{"", "{}", "[]", `{"refused":`, `{"refused":null}`, strings.Repeat(" ", limit) + `{"refused":""}`} {
		socket := Socket(t.TempDir())
		l, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = c.Write([]byte(text))
				c.Close()
			}
		}()
		if err := Request(short(), socket, pod); err == nil {
			t.Errorf("%.20q has admitted a pod", text)
		}
		l.Close()
	}
}

// An engine without a supervisor is told so.
func TestNobodyToAsk(t *testing.T) {
	if err := Request(t.Context(), Nobody, pod); err != nil {
		t.Error(err)
	}
}

// One that starts late, or ends in between, is waited for.
func TestItWaitsForASupervisor(t *testing.T) {
	socket := Socket(t.TempDir())
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	answered := make(chan error, 1)
	go func() { answered <- Request(ctx, socket, pod) }()
	asked := make(chan struct{})
	stop := serveGate(t, socket, func(ctx context.Context, _ podnet.Pod) error { close(asked); <-ctx.Done(); return ctx.Err() })
	<-asked
	stop()
	defer serveGate(t, socket, func(context.Context, podnet.Pod) error { return nil })()
	if err := <-answered; err != nil {
		t.Error(err)
	}
}
