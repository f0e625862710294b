// Package apiserver starts real Kubernetes API servers for tests: the engine
// without an agent, on loopback, with controllers and scheduler but without nodes.
// It writes nothing outside the test's temporary folder and ends the processes
// that it started.
package apiserver

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"rivulet/appliance/engine"
	"rivulet/offload/policy"
	"rivulet/test/harness/await"
	"rivulet/test/harness/tree"
)

// BinaryEnv names the engine to start: a k3s, or a rivulet. Without it
// bin/rivulet of this repository is taken.
const BinaryEnv = "RIVULET_TEST_K3S"

// startTimeout is generous: tests may share two cores with whatever else runs.
const startTimeout = 4 * time.Minute

// Server is a running API server.
type Server struct {
	// Config reaches it with all rights.
	Config *rest.Config
	Client kubernetes.Interface
	// TLSDir is its server/tls folder.
	TLSDir string
	// launch starts a process. It is ended with the test or by end; ended is closed once it has.
	launch     func(t testing.TB) (end func(), ended <-chan struct{})
	end        func()
	ended      <-chan struct{}
	kubeconfig string
}

// Again ends the server without warning, as a power cut does, and starts it on what it has stored.
func (s *Server) Again(t testing.TB) {
	t.Helper()
	s.end()
	s.end, s.ended = s.launch(t)
	s.wait(t)
}

// Start starts one and waits until it answers. It skips the test if there is no
// engine. Further arguments are appended to the engine's own.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	return StartAll(t, 1, args...)[0]
}

// StartAll starts several at the same time.
func StartAll(t testing.TB, n int, args ...string) []*Server {
	t.Helper()
	each := make([][]string, n)
	for i := range each {
		each[i] = args
	}
	return StartEach(t, each...)
}

// StartEach starts one for each list of arguments, all at the same time.
func StartEach(t testing.TB, args ...[]string) []*Server {
	t.Helper()
	binary := Binary(t)
	servers := make([]*Server, len(args))
	for i := range servers {
		servers[i] = launch(t, binary, args[i])
	}
	for _, s := range servers {
		s.wait(t)
	}
	return servers
}

// Binary is the path of the engine; it skips the test if there is none.
func Binary(t testing.TB) string {
	t.Helper()
	if testing.Short() {
		t.Skip("starts an engine, which takes its time: run it without -short")
	}
	if path := os.Getenv(BinaryEnv); path != "" {
		return path
	}
	path := tree.Path("bin", "rivulet")
	if _, err := os.Stat(path); err != nil {
		t.Skipf("needs an engine: %v; run `make build`, or set %s to a k3s binary", err, BinaryEnv)
	}
	return path
}

func launch(t testing.TB, binary string, args []string) *Server {
	t.Helper()
	dir := t.TempDir()
	port := freePair(t)
	kubeconfig := filepath.Join(dir, "kubeconfig")
	logPath := filepath.Join(dir, "log")
	scheduler := filepath.Join(dir, "scheduler.yaml")
	if err := os.WriteFile(scheduler, []byte(policy.SchedulerConfig(filepath.Join(dir, "server", "cred", "scheduler.kubeconfig"))), 0o600); err != nil {
		t.Fatal(err)
	}
	// argv[0] is what a rivulet looks at to become the engine; a k3s does not mind.
	argv := append([]string{"rivulet-engine", "server", "--disable-agent",
		"--data-dir", dir, "--write-kubeconfig", kubeconfig,
		"--bind-address", "127.0.0.1", "--https-listen-port", strconv.Itoa(port), "--node-ip", "127.0.0.1",
		"--disable", "traefik,servicelb,coredns,local-storage,metrics-server",
		"--disable-helm-controller", "--disable-cloud-controller", "--disable-network-policy",
		"--flannel-backend", "none", "--egress-selector-mode", "disabled",
		"--kube-controller-manager-arg", "secure-port=0", "--kube-scheduler-arg", "secure-port=0",
		"--kube-scheduler-arg", "config=" + scheduler, // as the product has it
		"--kube-controller-manager-arg", "kube-api-qps=200", "--kube-controller-manager-arg", "kube-api-burst=400", // as the product has it
		"--kube-apiserver-arg", "feature-gates=MutatingAdmissionPolicy=true",
		"--kube-apiserver-arg", "runtime-config=admissionregistration.k8s.io/v1beta1=true",
		"--kube-apiserver-arg", "service-account-jwks-uri=" + engine.JWKS, // as the product has it
	}, args...)
	s := &Server{TLSDir: filepath.Join(dir, "server", "tls"), kubeconfig: kubeconfig}
	s.launch = func(t testing.TB) (func(), <-chan struct{}) {
		t.Helper()
		log, err := os.OpenFile(logPath, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer log.Close()
		cmd := &exec.Cmd{Path: binary, Args: argv, Dir: dir, Stdout: log, Stderr: log,
			SysProcAttr: &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL},
			Env:         []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "GOMEMLIMIT=400MiB"}}
		if err := cmd.Start(); err != nil {
			t.Fatalf("start %s: %v", binary, err)
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = cmd.Wait()
		}()
		return sync.OnceFunc(func() {
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // a group of its own
			<-ended
		}), ended
	}
	s.end, s.ended = s.launch(t)
	t.Cleanup(func() {
		s.end()
		if t.Failed() {
			text, _ := os.ReadFile(logPath)
			t.Logf("the end of the API server's log:\n%s", text[max(0, len(text)-4000):])
		}
	})
	return s
}

// wait reads the kubeconfig, once the server answers. One that has ended is started again, as the product's
// supervisor does: a hook of the engine panics where the machine is so busy that it takes a minute.
func (s *Server) wait(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	await.NoError(t, ctx, 0, "the API server is up", func() error {
		select {
		case <-s.ended:
			s.end()
			s.end, s.ended = s.launch(t)
		default:
		}
		return s.try(ctx)
	})
}

func (s *Server) try(ctx context.Context) error {
	config, err := clientcmd.BuildConfigFromFlags("", s.kubeconfig)
	if err != nil {
		return err
	}
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	if body, err := client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx); err != nil {
		return fmt.Errorf("%w: %.200s", err, body)
	}
	// Pods cannot be made before the controllers have made this.
	if _, err := client.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{}); err != nil {
		return err
	}
	s.Config, s.Client = config, client
	return nil
}

// freePair finds a port p with p+1 free as well, which the engine takes for the API
// server proper. It takes them by chance from below those that the kernel gives away,
// so that nobody is given one before the engine has it.
func freePair(t testing.TB) int {
	t.Helper()
	const first, last = 15000, 32000
	for range 100 {
		port := first + rand.IntN((last-first)/2)*2
		if free(port) && free(port+1) {
			return port
		}
	}
	t.Fatal("no two free ports in a row")
	return 0
}

func free(port int) bool {
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err == nil {
		l.Close()
	}
	return err == nil
}
