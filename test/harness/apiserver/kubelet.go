package apiserver

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/kubelet/pkg/cri/streaming/portforward"
	kubeletexec "k8s.io/kubelet/pkg/cri/streaming/remotecommand"

	"rivulet/test/harness/fakenodes"
)

// EndsLabel on a pod, or an annotation of that name, has the Kubelet end it with this
// exit code at once.
const EndsLabel = fakenodes.EndsLabel

// Kubelet stands in for a node and its kubelet: pods bound to it are said to run
// and end, and streams are answered, without any container.
//
//	logs          one line with the pod's name and the tailLines asked for; followed, another each 100 ms; with limitBytes,
//	              zeros up to that size
//	exec          stdin comes back on stdout in capitals when it has ended, the command's last word is the exit code
//	              "sizes" tells the sizes of its terminal instead
//	attach        stdin comes back in capitals as it comes, on stderr if there is no terminal; sizes are told in between
//	port-forward  what comes goes back in capitals
//
// With Forward and Exec, what they do instead.
type Kubelet struct {
	server *Server
	// Stop ends it without a word, as a power cut does; the node object stays.
	Stop func()

	mu      sync.Mutex
	forward func(pod string, port int32) (net.Conn, error)
	exec    func(pod string, cmd []string, in io.Reader, out io.Writer) error
}

// Forward has port-forwards lead where dial does.
func (k *Kubelet) Forward(dial func(pod string, port int32) (net.Conn, error)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.forward = dial
}

// Exec has run do what is executed in containers.
func (k *Kubelet) Exec(run func(pod string, cmd []string, in io.Reader, out io.Writer) error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.exec = run
}

// StartKubelet registers the node, of arm64, and keeps it until the test ends.
func StartKubelet(t testing.TB, s *Server, name string) *Kubelet {
	t.Helper()
	return StartKubeletOf(t, s, name, "arm64", "10.42.0.0/23")
}

// StartKubeletOf does so for a node of another architecture, whose pods have addresses
// of their own.
func StartKubeletOf(t testing.TB, s *Server, name, arch, pods string) *Kubelet {
	t.Helper()
	k := &Kubelet{server: s}
	ctx, cancel := context.WithCancel(context.Background())
	kept, err := fakenodes.Register(ctx, s.Client, fakenodes.Node{
		Name: name, Architecture: arch, Kubelet: int32(k.listen(t)), Pods: netip.MustParsePrefix(pods),
		Room: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("4Gi"),
			corev1.ResourcePods: resource.MustParse("500"), corev1.ResourceEphemeralStorage: resource.MustParse("10Gi")},
	})
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		kept.Run(ctx)
	}()
	k.Stop = func() { cancel(); <-done }
	t.Cleanup(k.Stop)
	return k
}

// listen serves the kubelet's API with a certificate of the server's authority.
func (k *Kubelet) listen(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/containerLogs/{namespace}/{pod}/{container}", func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		if q.Get("previous") == "true" {
			_, _ = io.WriteString(w, "previous ")
		}
		n, _ := fmt.Fprintf(w, "log of %s/%s tail=%s\n", r.PathValue("pod"), r.PathValue("container"), q.Get("tailLines"))
		if limit, err := strconv.Atoi(q.Get("limitBytes")); err == nil {
			_, _ = w.Write(make([]byte, max(0, limit-n)))
			return
		}
		for n := 1; q.Get("follow") == "true" && r.Context().Err() == nil; n++ {
			if _, err := fmt.Fprintf(w, "line %d\n", n); err != nil || http.NewResponseController(w).Flush() != nil {
				return
			}
			select {
			case <-r.Context().Done():
			case <-time.After(100 * time.Millisecond):
			}
		}
	})
	// A request's options, and the protocols that a kubelet speaks.
	protocols := []string{"v4.channel.k8s.io"}
	with := func(serve func(http.ResponseWriter, *http.Request, *kubeletexec.Options)) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			opts, err := kubeletexec.NewOptions(r)
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			serve(w, r, opts)
		}
	}
	mux.HandleFunc("/exec/{namespace}/{pod}/{container}", with(func(w http.ResponseWriter, r *http.Request, opts *kubeletexec.Options) {
		kubeletexec.ServeExec(w, r, shout{k}, r.PathValue("pod"), "", r.PathValue("container"), r.URL.Query()["command"], opts,
			time.Minute, 10*time.Second, protocols)
	}))
	mux.HandleFunc("/attach/{namespace}/{pod}/{container}", with(func(w http.ResponseWriter, r *http.Request, opts *kubeletexec.Options) {
		kubeletexec.ServeAttach(w, r, shout{k}, r.PathValue("pod"), "", r.PathValue("container"), opts, time.Minute, 10*time.Second, protocols)
	}))
	mux.HandleFunc("/portForward/{namespace}/{pod}", func(w http.ResponseWriter, r *http.Request) {
		opts, err := portforward.NewV4Options(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		portforward.ServePortForward(w, r, shout{k}, r.PathValue("pod"), "", opts, time.Minute, 10*time.Second, portforward.SupportedProtocols)
	})
	srv := &http.Server{Handler: mux, TLSConfig: &tls.Config{Certificates: []tls.Certificate{k.certificate(t)}, NextProtos: []string{"http/1.1"}}}
	go srv.ServeTLS(l, "", "")
	t.Cleanup(func() { _ = srv.Close() })
	return l.Addr().(*net.TCPAddr).Port
}

func (k *Kubelet) certificate(t testing.TB) tls.Certificate {
	t.Helper()
	authority, err := cert.CertsFromFile(filepath.Join(k.server.TLSDir, "server-ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	signer, err := keyutil.PrivateKeyFromFile(filepath.Join(k.server.TLSDir, "server-ca.key"))
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}, authority[0], key.Public(), signer)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// shout is what runs in every container.
type shout struct{ k *Kubelet }

func (s shout) ExecInContainer(_ context.Context, pod string, _ types.UID, _ string, cmd []string, in io.Reader, out, _ io.WriteCloser, _ bool, sizes <-chan remotecommand.TerminalSize, _ time.Duration) error {
	s.k.mu.Lock()
	run := s.k.exec
	s.k.mu.Unlock()
	if run != nil {
		return run(pod, cmd, in, out)
	}
	if cmd[0] == "sizes" {
		for range 2 {
			size := <-sizes
			fmt.Fprintf(out, "%dx%d\n", size.Width, size.Height)
		}
		return nil
	}
	text, err := io.ReadAll(in)
	if err != nil {
		return err
	}
	err = capitals(bytes.NewReader(text), func(b []byte) error {
		_, err := out.Write(b)
		return err
	})
	if err != nil {
		return err
	}
	if code := cmd[len(cmd)-1]; code != "0" {
		return exitCode(code[0] - '0')
	}
	return nil
}

// AttachContainer is a program that somebody attaches to.
func (shout) AttachContainer(ctx context.Context, _ string, _ types.UID, _ string, in io.Reader, out, errOut io.WriteCloser, tty bool, sizes <-chan remotecommand.TerminalSize) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if !tty {
		out = errOut
	}
	var mu sync.Mutex
	go func() {
		for tty {
			select {
			case <-ctx.Done():
				return
			case size, ok := <-sizes:
				if !ok {
					return
				}
				mu.Lock()
				fmt.Fprintf(out, "[%dx%d]", size.Width, size.Height)
				mu.Unlock()
			}
		}
	}()
	return capitals(in, func(b []byte) error {
		mu.Lock()
		defer mu.Unlock()
		_, err := out.Write(b)
		return err
	})
}

// PortForward answers as it is spoken to.
func (s shout) PortForward(_ context.Context, pod string, _ types.UID, port int32, stream io.ReadWriteCloser) error {
	defer stream.Close()
	s.k.mu.Lock()
	dial := s.k.forward
	s.k.mu.Unlock()
	if dial != nil {
		c, err := dial(pod, port)
		if err != nil {
			return err
		}
		defer c.Close()
		go func() {
			_, _ = io.Copy(c, stream)
			c.Close()
		}()
		_, _ = io.Copy(stream, c) // it ends with either
		return nil
	}
	return capitals(stream, func(b []byte) error {
		_, err := stream.Write(b)
		return err
	})
}

func capitals(in io.Reader, out func([]byte) error) error {
	for buf := make([]byte, 32<<10); ; {
		n, err := in.Read(buf)
		if n > 0 {
			if werr := out(bytes.ToUpper(buf[:n])); werr != nil {
				return werr
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// exitCode is the error by which a container's exit code is told.
type exitCode int

func (e exitCode) Error() string   { return fmt.Sprintf("command terminated with exit code %d", int(e)) }
func (e exitCode) String() string  { return e.Error() }
func (e exitCode) Exited() bool    { return true }
func (e exitCode) ExitStatus() int { return int(e) }
