package apiserver

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/kubelet/pkg/cri/streaming/portforward"
	kubeletexec "k8s.io/kubelet/pkg/cri/streaming/remotecommand"
	"k8s.io/utils/ptr"
)

// EndsLabel on a pod, or an annotation of that name, has the Kubelet end it with this
// exit code at once.
const EndsLabel = "test.rivulet.dev/exit-code"

// Kubelet stands in for a node and its kubelet: pods bound to it are said to run
// and end, and streams are answered, without any container.
//
//	logs          one line with the pod's name and the tailLines asked for; followed, another each 100 ms
//	exec, attach  stdin comes back on stdout in capitals, the command's last word is the exit code
//	              "sizes" tells the sizes of its terminal instead
//	port-forward  the same
//
// With Forward and Exec, what they do instead.
type Kubelet struct {
	server *Server
	name   string
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

// StartKubelet registers the node and keeps it until the test ends.
func StartKubelet(t testing.TB, s *Server, name string) *Kubelet {
	t.Helper()
	k := &Kubelet{server: s, name: name}
	port := k.listen(t)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	k.Stop = func() { cancel(); <-done }
	t.Cleanup(k.Stop)
	room := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("4Gi"),
		corev1.ResourcePods: resource.MustParse("500"), corev1.ResourceEphemeralStorage: resource.MustParse("10Gi")}
	_, err := s.Client.CoreV1().Nodes().Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			corev1.LabelHostname: name, corev1.LabelArchStable: "arm64", corev1.LabelOSStable: "linux"}},
		Status: corev1.NodeStatus{
			Capacity: room, Allocatable: room,
			Conditions:      []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now()}},
			Addresses:       []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}},
			DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: int32(port)}},
			NodeInfo:        corev1.NodeSystemInfo{Architecture: "arm64", OperatingSystem: "linux", KubeletVersion: "v1.35.0"},
		}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(done)
		for address := firstAddress(name); ctx.Err() == nil; {
			k.heartbeat(ctx)
			k.sync(ctx, &address)
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
		}
	}()
	return k
}

// firstAddress is not that of another node's pods, as long as none has more than
// sixty and names end differently.
func firstAddress(name string) byte { return name[len(name)-1] % 4 * 64 }

// heartbeat touches the node's status now and then; nobody else does.
func (k *Kubelet) heartbeat(ctx context.Context) {
	nodes := k.server.Client.CoreV1().Nodes()
	n, err := nodes.Get(ctx, k.name, metav1.GetOptions{})
	if err != nil {
		return
	}
	for i := range n.Status.Conditions {
		if c := &n.Status.Conditions[i]; c.Type == corev1.NodeReady && (time.Since(c.LastHeartbeatTime.Time) > 3*time.Second || c.Status != corev1.ConditionTrue) {
			c.LastHeartbeatTime, c.Status = metav1.Now(), corev1.ConditionTrue
			_, _ = nodes.UpdateStatus(ctx, n, metav1.UpdateOptions{}) // the next round tries again
		}
	}
}

func ends(p *corev1.Pod) string {
	if code := p.Labels[EndsLabel]; code != "" {
		return code
	}
	return p.Annotations[EndsLabel]
}

// sync does for every pod what a kubelet would; what fails is done in the next round.
func (k *Kubelet) sync(ctx context.Context, address *byte) {
	pods := k.server.Client.CoreV1().Pods("")
	list, err := pods.List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + k.name})
	if err != nil {
		return
	}
	for i := range list.Items {
		p := &list.Items[i]
		ended := p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
		switch {
		case p.DeletionTimestamp != nil:
			_ = k.server.Client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)})
		case ended, p.Status.Phase == corev1.PodRunning && ends(p) == "":
		default:
			if p.Status.PodIP == "" {
				*address++
			}
			runs(p, *address)
			_, _ = k.server.Client.CoreV1().Pods(p.Namespace).UpdateStatus(ctx, p, metav1.UpdateOptions{})
		}
	}
}

// runs fills in the status of a pod that runs, or has ended if its label says so.
func runs(p *corev1.Pod, address byte) {
	now := metav1.Now()
	code := ends(p)
	p.Status.Phase, p.Status.StartTime = corev1.PodRunning, &now
	p.Status.PodIP = fmt.Sprintf("10.42.0.%d", address)
	p.Status.PodIPs = []corev1.PodIP{{IP: p.Status.PodIP}}
	ready := corev1.ConditionTrue
	if code != "" {
		ready, p.Status.Phase = corev1.ConditionFalse, corev1.PodFailed
		if code == "0" {
			p.Status.Phase = corev1.PodSucceeded
		}
	}
	p.Status.ContainerStatuses = nil
	for _, c := range p.Spec.Containers {
		st := corev1.ContainerStatus{Name: c.Name, Image: c.Image, ContainerID: "fake://" + string(p.UID) + c.Name, Ready: code == ""}
		if code == "" {
			st.State.Running = &corev1.ContainerStateRunning{StartedAt: now}
		} else {
			st.State.Terminated = &corev1.ContainerStateTerminated{ExitCode: int32(code[0] - '0'), StartedAt: now, FinishedAt: now}
		}
		p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, st)
	}
	scheduled := p.Status.Conditions[:0]
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled {
			scheduled = append(scheduled, c)
		}
	}
	p.Status.Conditions = scheduled
	for t, s := range map[corev1.PodConditionType]corev1.ConditionStatus{
		corev1.PodInitialized: corev1.ConditionTrue, corev1.ContainersReady: ready, corev1.PodReady: ready} {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: t, Status: s, LastTransitionTime: now})
	}
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
		fmt.Fprintf(w, "log of %s/%s tail=%s\n", r.PathValue("pod"), r.PathValue("container"), q.Get("tailLines"))
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
	run := func(w http.ResponseWriter, r *http.Request) {
		opts, err := kubeletexec.NewOptions(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		kubeletexec.ServeExec(w, r, shout{k}, r.PathValue("pod"), "", r.PathValue("container"), r.URL.Query()["command"], opts,
			time.Minute, 10*time.Second, []string{"v4.channel.k8s.io"})
	}
	mux.HandleFunc("/exec/{namespace}/{pod}/{container}", run)
	mux.HandleFunc("/attach/{namespace}/{pod}/{container}", run)
	mux.HandleFunc("/portForward/{namespace}/{pod}", func(w http.ResponseWriter, r *http.Request) {
		opts, err := portforward.NewV4Options(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		portforward.ServePortForward(w, r, shout{k}, r.PathValue("pod"), "", opts, time.Minute, 10*time.Second, portforward.SupportedProtocols)
	})
	srv := &http.Server{Handler: mux, TLSConfig: &tls.Config{Certificates: []tls.Certificate{k.certificate(t)}, NextProtos: []string{"http/1.1"}}}
	go srv.ServeTLS(l, "", "") //nolint:errcheck // ends with the test
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
	if _, err = io.WriteString(out, strings.ToUpper(string(text))); err != nil {
		return err
	}
	if code := cmd[len(cmd)-1]; code != "0" {
		return exitCode(code[0] - '0')
	}
	return nil
}

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
	buf := make([]byte, 1024)
	n, err := stream.Read(buf)
	if err != nil {
		return err
	}
	_, err = io.WriteString(stream, strings.ToUpper(string(buf[:n])))
	return err
}

// exitCode is the error by which a container's exit code is told.
type exitCode int

func (e exitCode) Error() string   { return fmt.Sprintf("command terminated with exit code %d", int(e)) }
func (e exitCode) String() string  { return e.Error() }
func (e exitCode) Exited() bool    { return true }
func (e exitCode) ExitStatus() int { return int(e) }
