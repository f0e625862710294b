// Package apiserver starts real Kubernetes API servers for tests: the engine
// without an agent, on loopback, with controllers and scheduler but without nodes.
// It writes nothing outside the test's temporary folder, but for locks (test/harness/locks), and ends the processes that
// it started.
package apiserver

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"rivulet/appliance/machine/process"
	"rivulet/offload/policy"
	"rivulet/test/harness/await"
	"rivulet/test/harness/locks"
	"rivulet/test/harness/tree"
)

// BinaryEnv names the engine to start: a k3s, or a rivulet.
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
	// launch starts a process, which ends with the test.
	launch     func(t testing.TB) *process.Child
	engine     *process.Child
	log        string
	kubeconfig string
}

// Again ends the server without warning, as a power cut does, and starts it on what it has stored.
func (s *Server) Again(t testing.TB) {
	t.Helper()
	s.end()
	s.engine = s.launch(t)
	s.wait(t)
}

// end kills the engine and all that it has started, and waits until it is gone.
func (s *Server) end() {
	_ = syscall.Kill(-s.engine.Pid, syscall.SIGKILL) // a group of its own; it may have ended
	<-s.engine.Done
	s.engine.Done <- nil // for the next who asks
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
	path := binary(t, "engine", "rivulet") // the Makefile says what the first is
	defer locks.Turn(t, "engine", starts)()
	servers := make([]*Server, len(args))
	for i := range servers {
		servers[i] = launch(t, path, args[i])
	}
	for _, s := range servers {
		s.wait(t)
	}
	return servers
}

// Binary is the path of the rivulet of this tree, or what BinaryEnv names; it skips the test if there is none.
func Binary(t testing.TB) string {
	t.Helper()
	return binary(t, "rivulet")
}

// binary is the first of bin that there is.
func binary(t testing.TB, names ...string) string {
	t.Helper()
	if testing.Short() {
		t.Skip("starts an engine, which takes its time: run it without -short")
	}
	if path := os.Getenv(BinaryEnv); path != "" {
		return path
	}
	for _, name := range names {
		if path := tree.Path("bin", name); exists(path) {
			return path
		}
	}
	t.Skipf("needs an engine: run `make build`, or set %s to a k3s binary", BinaryEnv)
	return ""
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func launch(t testing.TB, binary string, args []string) *Server {
	t.Helper()
	dir := t.TempDir()
	port := locks.Ports(t, 2) // the engine takes the next for the API server proper
	s := &Server{TLSDir: filepath.Join(dir, "server", "tls"), kubeconfig: filepath.Join(dir, "kubeconfig"), log: filepath.Join(dir, "log")}
	scheduler := filepath.Join(dir, "scheduler.yaml")
	if err := os.WriteFile(scheduler, []byte(policy.SchedulerConfig(filepath.Join(dir, "server", "cred", "scheduler.kubeconfig"))), 0o600); err != nil {
		t.Fatal(err)
	}
	// argv[0] is what a rivulet looks at to become the engine; a k3s does not mind.
	argv := []string{"rivulet-engine", "server", "--disable-agent",
		"--data-dir", dir, "--write-kubeconfig", s.kubeconfig,
		"--bind-address", "127.0.0.1", "--https-listen-port", strconv.Itoa(port), "--node-ip", "127.0.0.1",
		"--disable", "traefik,servicelb,coredns,local-storage,metrics-server",
		"--disable-helm-controller", "--disable-cloud-controller", "--disable-network-policy",
		"--flannel-backend", "none", "--egress-selector-mode", "disabled",
		"--kube-controller-manager-arg", "secure-port=0", "--kube-scheduler-arg", "secure-port=0",
		"--kube-scheduler-arg", "config=" + scheduler,
	}
	for _, a := range policy.APIServerArgs() {
		argv = append(argv, "--kube-apiserver-arg", a)
	}
	for _, a := range policy.ControllerArgs() {
		argv = append(argv, "--kube-controller-manager-arg", a)
	}
	argv = append(argv, args...)
	s.launch = func(t testing.TB) *process.Child {
		t.Helper()
		log, err := os.OpenFile(s.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer log.Close()
		child, err := process.Start(&exec.Cmd{Path: binary, Args: argv, Dir: dir, Stdout: log, Stderr: log,
			Env: []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "GOMEMLIMIT=400MiB"}}, syscall.SIGKILL, nil)
		if err != nil {
			t.Fatalf("start %s: %v", binary, err)
		}
		return child
	}
	s.engine = s.launch(t)
	t.Cleanup(func() {
		s.end()
		if t.Failed() {
			t.Logf("the end of the API server's log:\n%s", s.tail())
		}
	})
	return s
}

// tail is the end of the engine's log.
func (s *Server) tail() []byte {
	text, _ := os.ReadFile(s.log)
	return text[max(0, len(text)-4000):]
}

// wait reads the kubeconfig, once the server answers. An engine that ended is started again once, as the product's
// supervisor does, and its log is shown: a hook of it panics where the machine is so busy that it takes a minute. The
// second end fails the test.
func (s *Server) wait(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	ends := 0
	await.NoError(t, ctx, 0, "the API server is up", func() error {
		if s.engine.Ended() {
			if ends++; ends > 1 {
				t.Fatalf("the engine has ended twice before it was up:\n%s", s.tail())
			}
			fmt.Fprintf(os.Stderr, "%s: the engine ended before it was up and is started once more:\n%s\n", t.Name(), s.tail())
			s.engine = s.launch(t)
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

// starts is how many tests of all packages may start engines at a time: more starve each other on two cores.
const starts = 2
