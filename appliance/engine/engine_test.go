package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"rivulet/appliance/config/fixed"
	"rivulet/appliance/machine/host"
	"rivulet/appliance/machine/process"
	"rivulet/test/harness/await"
)

func testConfig(t *testing.T) Config {
	dir := t.TempDir()
	pause := filepath.Join(dir, "pause.tar")
	if err := os.WriteFile(pause, []byte("image"), 0o600); err != nil {
		t.Fatal(err)
	}
	return Config{
		Executable: "/bin/sh", Argv0: "rivulet-engine-under-test",
		StateDir: filepath.Join(dir, "state"), RunDir: filepath.Join(dir, "run"),
		BundleBin: dir, Images: []string{pause}, NodeName: "a",
		NodeIP:  netip.MustParseAddr("100.127.1.1"),
		PodCIDR: netip.MustParsePrefix("10.42.0.0/16"), ServiceCIDR: netip.MustParsePrefix("10.43.0.0/16"),
		ClusterDNS: netip.MustParseAddr("10.43.0.10"),
		Log:        slog.New(slog.DiscardHandler),
	}
}

// The host's facts, and nothing the user says, decide these flags.
func TestFlagsFollowTheHost(t *testing.T) {
	for _, tc := range []struct {
		name     string
		change   func(*Config)
		want     []string
		unwanted string
	}{
		{"cgroup v1", func(c *Config) { c.Facts.CgroupV1 = true }, []string{"--kubelet-arg=fail-cgroupv1=false"}, ""},
		{"cgroup v2", func(*Config) {}, []string{"--node-ip=100.127.1.1", "--egress-selector-mode=disabled"}, "fail-cgroupv1"},
		{"nothing reserved but processes", func(*Config) {}, []string{"--kubelet-arg=system-reserved=pid=256"}, "cpu="},
		{"reserved", func(c *Config) { c.ReserveCPU, c.ReserveMemory = "500m", "1Gi" },
			[]string{"--kubelet-arg=system-reserved=pid=256,cpu=500m,memory=1Gi"}, ""},
		{"only memory", func(c *Config) { c.ReserveMemory = "1Gi" }, []string{"--kubelet-arg=system-reserved=pid=256,memory=1Gi"}, "cpu="},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := testConfig(t)
			tc.change(&c)
			args := New(c).Args()
			for _, w := range tc.want {
				if !slices.Contains(args, w) {
					t.Errorf("%q is missing in %q", w, args)
				}
			}
			if tc.unwanted != "" && strings.Contains(strings.Join(args, " "), tc.unwanted) {
				t.Errorf("%q is in %q", tc.unwanted, args)
			}
		})
	}
}

func TestContainerdTemplateFollowsTheCapability(t *testing.T) {
	for _, has := range []bool{true, false} {
		c := testConfig(t)
		c.Facts = host.Facts{SysResource: has}
		e := New(c)
		if err := e.prepareFiles(); err != nil {
			t.Fatal(err)
		}
		tmpl, err := os.ReadFile(filepath.Join(e.DataDir(), "agent/etc/containerd/config-v3.toml.tmpl"))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(tmpl), `{{ template "base" . }}`) {
			t.Errorf("the template lacks k3s's own: %s", tmpl)
		}
		if got := strings.Contains(string(tmpl), "imports"); got == has {
			t.Errorf("capability %v, imports %v", has, got)
		}
	}
}

// The networks of a cluster are on the disk before there is one.
func TestNetworksAreWrittenDown(t *testing.T) {
	c := testConfig(t)
	want := fixed.Ranges{Pods: netip.MustParsePrefix("10.52.0.0/16"), Services: netip.MustParsePrefix("10.53.0.0/16"), Nodes: netip.MustParsePrefix("100.126.0.0/16")}
	c.PodCIDR, c.ServiceCIDR, c.NodeIP = want.Pods, want.Services, netip.MustParseAddr("100.126.1.1")
	if err := New(c).prepareFiles(); err != nil {
		t.Fatal(err)
	}
	if got, there, err := fixed.Of(c.StateDir); got != want || !there || err != nil {
		t.Errorf("%+v %v %v", got, there, err)
	}
}

// Preparing again after any of the files changed brings all of them back.
func TestPrepareIsIdempotentAndRepairs(t *testing.T) {
	e := New(testConfig(t))
	if err := e.prepareFiles(); err != nil {
		t.Fatal(err)
	}
	rbac := filepath.Join(e.DataDir(), "server/manifests/rivulet-engine.yaml")
	image := filepath.Join(e.DataDir(), "agent/images/rivulet-pause.tar")
	before, err := os.Stat(image)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(rbac, []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := e.prepareFiles(); err != nil {
		t.Fatal(err)
	}
	if got, _ := os.ReadFile(rbac); string(got) != manifest {
		t.Error("the damaged manifest was not replaced")
	}
	after, err := os.Stat(image)
	if err != nil || !os.SameFile(before, after) {
		t.Errorf("the unchanged image was copied again (%v)", err)
	}
}

func TestTakenPortNamesTheHolderAndTheCure(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	err = checkPort("", port)
	if !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), "pid ") || !strings.Contains(err.Error(), "stop that program") {
		t.Fatalf("checkPort: %v, want the holder and a cure", err)
	}
	if err := checkPort("127.0.0.2", port); err != nil { // as a virtual node has the kubelet's
		t.Errorf("a port that is taken at another address: %v", err)
	}
}

func TestMissingProgramsAreWaitedFor(t *testing.T) {
	var told string
	looked := 0
	missing := func() []string {
		if looked++; looked == 1 {
			return []string{"mount", "umount"}
		}
		return nil
	}
	err := waitTools(t.Context(), func(f string, a ...any) { told = fmt.Sprintf(f, a...) }, missing)
	if err != nil || !strings.Contains(told, "mount, umount") || !strings.Contains(told, "apt-get install") {
		t.Errorf("err %v, told %q; want what is missing and the cure", err, told)
	}
}

// The engine's PATH has what was chosen; while nothing works, it is said and tried again.
func TestIptablesIsWaitedFor(t *testing.T) {
	c := testConfig(t)
	c.Netfilter = filepath.Join(c.StateDir, "no-bundle")
	path := os.Getenv("PATH")
	t.Setenv("PATH", "/nowhere")
	ctx, cancel := context.WithCancel(t.Context())
	var told string
	err := New(c).waitIptables(ctx, func(f string, a ...any) {
		if told = fmt.Sprintf(f, a...); strings.Contains(told, "has no iptables") {
			cancel()
		}
	})
	if err == nil || !strings.Contains(told, "modprobe") || !strings.Contains(told, "it goes on by itself") {
		t.Errorf("err %v, told %q; want what is wrong and the cure", err, told)
	}
	t.Setenv("PATH", path)
	e := New(c)
	if err := e.waitIptables(t.Context(), func(f string, a ...any) { t.Logf(f, a...) }); err != nil || e.iptables.Path == "" {
		t.Fatalf("%v, %+v", err, e.iptables)
	}
	t.Setenv("PATH", "/nowhere")
	if want := "PATH=" + e.binDir() + ":" + c.BundleBin + ":/nowhere"; !slices.ContainsFunc(e.environ(), func(v string) bool { return v == want || strings.HasPrefix(v, want+":"+c.Netfilter) }) {
		t.Errorf("%s is missing in %q", want, e.environ())
	}
}

// A child that ends by itself is an error with its last words; one that is told
// to end is none.
func TestRunReportsLastWords(t *testing.T) {
	e := New(testConfig(t))
	if err := os.MkdirAll(e.cfg.RunDir, 0o755); err != nil {
		t.Fatal(err)
	}
	c, err := e.spawn([]string{"-c", `echo 'level=info msg="hello"'; echo 'level=fatal msg="no space left"'; echo bye; exit 3`})
	if err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-c.Done:
		if got := c.tail.lastWords(); !strings.Contains(got, "no space left") || !strings.Contains(err.Error(), "3") {
			t.Fatalf("ended with %v, last words %q", err, got)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the child did not end")
	}
}

func TestStopIsGentleFirst(t *testing.T) {
	e := New(testConfig(t))
	if err := os.MkdirAll(e.cfg.RunDir, 0o755); err != nil {
		t.Fatal(err)
	}
	marker := filepath.Join(t.TempDir(), "ended")
	c, err := e.spawn([]string{"-c", `trap 'echo orderly > ` + marker + `; exit 0' TERM; echo up; while :; do sleep 0.1; done`})
	if err != nil {
		t.Fatal(err)
	}
	await.True(t, 10*time.Second, "the child is up", func() bool { return c.tail.lastWords() == "up" })
	_ = c.stop(e.cfg.Log)
	if _, err := os.Stat(marker); err != nil {
		t.Fatalf("the child was not given time to end: %v", err)
	}
}

func TestWaitAPIEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := WaitAPI(ctx, filepath.Join(t.TempDir(), "none")); err == nil {
		t.Fatal("an API server was found where there is none")
	}
}

// A starting API server may take a request and never answer it. That must not cost much more than the request.
func TestWaitAPIAfterARequestWithoutAnAnswer(t *testing.T) {
	var requests atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if requests.Add(1) == 1 {
			<-r.Context().Done()
		}
	}))
	defer server.Close()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	err := clientcmd.WriteToFile(clientcmdapi.Config{CurrentContext: "it", Clusters: map[string]*clientcmdapi.Cluster{"it": {Server: server.URL}},
		Contexts: map[string]*clientcmdapi.Context{"it": {Cluster: "it"}}}, file)
	if err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	if err := WaitAPI(t.Context(), file); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begun); requests.Load() != 2 || took > 7*time.Second { // 2 s for the first request
		t.Errorf("%d requests in %v", requests.Load(), took)
	}
}

// Without a PID file there is no engine of before. One that cannot be read says nothing, and a
// second engine would damage the datastore of the first.
func TestAnUnreadablePIDFile(t *testing.T) {
	e := New(Config{RunDir: t.TempDir(), Argv0: "rivulet-engine"})
	waits := func(string, ...any) { t.Error("it waits for an engine") }
	if err := e.waitOld(t.Context(), waits); err != nil {
		t.Errorf("no PID file: %v", err)
	}
	if err := os.Mkdir(e.PIDFile(), 0o700); err != nil { // read by nobody, not even root
		t.Fatal(err)
	}
	if err := e.waitOld(t.Context(), waits); err == nil || !strings.Contains(err.Error(), e.PIDFile()) || !strings.Contains(err.Error(), "remove that file") {
		t.Errorf("a PID file that is a folder: %v", err)
	}
}

// TestAKilledEngineHasNotEndedInOrder: what it has written may be torn, though its end was requested.
func TestAKilledEngineHasNotEndedInOrder(t *testing.T) {
	for signal, killed := range map[syscall.Signal]bool{syscall.SIGKILL: true, syscall.SIGTERM: false} {
		c := &child{}
		var err error
		if c.Child, err = process.Start(exec.Command("/bin/sleep", "60"), syscall.SIGTERM, nil); err != nil {
			t.Fatal(err)
		}
		if err := c.Signal(signal); err != nil {
			t.Fatal(err)
		}
		if err := c.stop(slog.New(slog.DiscardHandler)); (err != nil) != killed {
			t.Errorf("after %s: %v", signal, err)
		}
	}
}
