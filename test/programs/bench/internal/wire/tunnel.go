package wire

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
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"rivulet/fabric/reach"
	"rivulet/fabric/tunnel"
)

// Kind says what runs between the nodes.
type Kind struct {
	Name string
	Bare bool // wireguard-go without Rivulet
	// Device: the nodes have the tables of devices, and the far pod is a tenant.
	Device bool
	Env    []string // of the tunnel's processes
}

// Link is a running tunnel between two nodes of its own.
type Link struct {
	net  *network
	kind Kind
	ends []*end
}

type end struct {
	cmd    *exec.Cmd
	stop   func() // asks it to end
	stderr *bytes.Buffer
	done   chan error
}

// Open makes the nodes, starts both ends and waits until the far pod answers. helper is the
// shipped rivulet-tunnel; dir is for its sockets.
func Open(ctx context.Context, kind Kind, helper, dir string) (*Link, error) {
	n, err := newNetwork()
	if err != nil {
		return nil, err
	}
	l := &Link{net: n, kind: kind}
	if kind.Device {
		if err := n.furnish(ctx, dir); err != nil {
			return nil, errors.Join(err, l.Close())
		}
	}
	for _, pair := range [][2]*side{{n.a, n.b}, {n.b, n.a}} {
		start := func() (*end, error) { return startRivulet(ctx, pair[0], pair[1], kind, helper, dir) }
		if kind.Bare {
			start = func() (*end, error) { return startBare(pair[0], pair[1], kind) }
		}
		e, err := start()
		if e != nil {
			l.ends = append(l.ends, e)
		}
		if err != nil {
			return nil, errors.Join(err, l.Close())
		}
	}
	if err := l.answers(ctx); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// PIDs of the two ends.
func (l *Link) PIDs() (pids []int) {
	for _, e := range l.ends {
		pids = append(pids, e.cmd.Process.Pid)
	}
	return pids
}

// Close ends both ends, waits, and lets the nodes go.
func (l *Link) Close() error {
	var errs []error
	for _, e := range l.ends {
		e.stop()
		select {
		case <-e.done:
		case <-time.After(5 * time.Second):
			e.cmd.Process.Kill()
			<-e.done
			errs = append(errs, fmt.Errorf("wire: %s had to be killed: %s", l.kind.Name, e.stderr))
		}
	}
	l.ends = nil
	return errors.Join(append(errs, l.net.close())...)
}

// from and to are the addresses of the pods as podA uses them.
func (l *Link) from() netip.Addr {
	if l.kind.Bare {
		return l.net.a.plainPod()
	}
	return netip.MustParseAddr(podAddress)
}

func (l *Link) to() netip.Addr {
	if l.kind.Bare {
		return l.net.b.plainPod()
	}
	return l.net.b.seenPod()
}

// far is the address under which podB knows itself: a tenant lives in home's addresses.
func (l *Link) far() netip.Addr {
	switch {
	case l.kind.Bare:
		return l.net.b.plainPod()
	case l.kind.Device:
		return l.net.b.seenPod()
	}
	return netip.MustParseAddr(podAddress)
}

// answers waits for the first echo through the tunnel.
func (l *Link) answers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for {
		_, err := l.RTT(1, 300*time.Millisecond)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			var said []string
			for _, e := range l.ends {
				said = append(said, e.stderr.String())
			}
			return fmt.Errorf("wire: nothing passes through %s: %w: %s", l.kind.Name, err, strings.Join(said, "; "))
		}
	}
}

// launch starts a command in a node's namespace; the kernel ends it with us.
func (s *side) launch(cmd *exec.Cmd) (*end, error) {
	e := &end{cmd: cmd, stderr: new(bytes.Buffer), done: make(chan error, 1)}
	cmd.Stderr = e.stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	// The signal is tied to the thread that forked: it lives as long as the child.
	go s.node.Do(func() error { //nolint:errcheck // comes through started
		err := cmd.Start()
		started <- err
		if err == nil {
			e.done <- cmd.Wait()
		}
		return err
	})
	if err := <-started; err != nil {
		return nil, fmt.Errorf("wire: start %s: %w", cmd.Path, err)
	}
	return e, nil
}

func startBare(s, other *side, kind Kind) (*end, error) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Args[0] = BareName
	cmd.Env = append(os.Environ(), kind.Env...)
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("wire: %w", err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("wire: %w", err)
	}
	defer r.Close()
	cmd.Stdout = w
	e, err := s.launch(cmd)
	w.Close()
	if err != nil {
		return nil, err
	}
	e.stop = func() { in.Close() }
	if _, err := io.WriteString(in, bareConfig(s, other)); err != nil {
		return e, fmt.Errorf("wire: configure: %w: %s", err, e.stderr)
	}
	if line, err := bufio.NewReader(r).ReadString('\n'); strings.TrimSpace(line) != "ready" {
		return e, fmt.Errorf("wire: bare wireguard: %w: %s", err, e.stderr)
	}
	return e, s.node.Do(func() error {
		return errors.Join(up(bareInterface), route(other.plain.String(), bareInterface, ""))
	})
}

func startRivulet(ctx context.Context, s, other *side, kind Kind, helper, dir string) (*end, error) {
	if !kind.Device {
		// What a peer reaches is package reach's to decide; here it is everything.
		if err := s.reach(reach.Rules{Whole: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}}); err != nil {
			return nil, err
		}
	}
	socket := filepath.Join(dir, "tunnel-"+s.name+".sock")
	os.Remove(socket)
	cmd := exec.Command(helper, "-socket", socket)
	cmd.Env = append(os.Environ(), kind.Env...)
	e, err := s.launch(cmd)
	if err != nil {
		return nil, err
	}
	e.stop = func() {
		if err := ask(context.Background(), socket, http.MethodPost, "/v1/stop", nil); err != nil {
			cmd.Process.Signal(syscall.SIGTERM)
		}
	}
	cfg := tunnel.Config{
		PrivateKey: s.secret.Private, Port: tunnelPort, Interface: tunInterface, MTU: mtu,
		Address: netip.MustParseAddr(tunAddress), ControlPort: tunnelPort, PodCIDR: netip.MustParsePrefix(podCIDR),
		Peers: []tunnel.Peer{{ID: other.name, PublicKey: other.secret.Public(),
			Endpoint: netip.AddrPortFrom(other.lan, tunnelPort), LocalMappedCIDR: s.as, PeerMappedCIDR: other.as}},
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		err := ask(ctx, socket, http.MethodPut, "/v1/config", cfg)
		if err == nil {
			return e, nil
		}
		if !errors.Is(err, os.ErrNotExist) && !errors.Is(err, syscall.ECONNREFUSED) || ctx.Err() != nil {
			return e, fmt.Errorf("%w: %s", err, e.stderr)
		}
		time.Sleep(10 * time.Millisecond) // until it listens
	}
}

// ask sends a request to a tunnel's socket.
func ask(ctx context.Context, socket, method, path string, body any) error {
	raw, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("wire: %w", err)
	}
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		}}}
	req, err := http.NewRequestWithContext(ctx, method, "http://tunnel"+path, bytes.NewReader(raw))
	if err != nil {
		return fmt.Errorf("wire: %w", err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("wire: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusNoContent {
		said, _ := io.ReadAll(resp.Body)
		return fmt.Errorf("wire: %s %s: %s: %s", method, path, resp.Status, said)
	}
	return nil
}
