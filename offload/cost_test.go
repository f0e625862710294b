package offload

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/pprof"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"rivulet/appliance/machine/memory"
	"rivulet/test/harness/apicount"
	"rivulet/test/harness/await"
	"rivulet/test/harness/fakenodes"
)

const (
	costPods     = "RIVULET_TEST_COST"     // how many pods
	costProfiles = "RIVULET_TEST_PROFILES" // a folder for CPU profiles of both engines and of both supervisors
	costHollow   = "RIVULET_TEST_HOLLOW"   // of the process that keeps hollow nodes
)

// TestWhatPodsCost tells what CPU time pods take that are made at home for the provider,
// until they run: of each engine, and of both supervisors, which here are this process.
// The same number made at the provider itself is what to compare with. CPU time hardly
// depends on what else the machine does, so this is how to try what would make it less;
// the promise is measured by the benchmark (docs/design/bench.md).
func TestWhatPodsCost(t *testing.T) {
	n := number(costPods, 0)
	if n == 0 {
		t.Skipf("needs %s, a number of pods; %s is a folder for CPU profiles", costPods, costProfiles)
	}
	memory.For(16 << 30).Supervisor.Breathe() // as a supervisor does
	a, b := world(t)
	keepHollow(t, b, n)
	a.offloadNamespace(t, "lab")
	a.ready(t, true)
	b.create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "lab"}})
	places := []struct {
		name string
		at   *device
	}{{"away", a}, {"at the provider", b}}
	for _, pods := range []int{max(n/10, 1), n} { // the first warms up
		for _, p := range places {
			stop := func() {}
			if dir := os.Getenv(costProfiles); dir != "" && pods == n {
				stop = profiles(t, dir, strings.ReplaceAll(p.name, " ", "-"), a, b)
			}
			before, begun := spent(t, a, b), time.Now()
			d := web(int32(pods))
			d.Spec.Template.Spec.AutomountServiceAccountToken = new(bool)
			if p.at == b {
				d.Spec.Template.Spec.NodeSelector = map[string]string{"test.rivulet.dev/hollow": "yes"}
			}
			p.at.create(t, d)
			await.Empty(t, 8*time.Minute, fmt.Sprintf("%d pods run, made %s", pods, p.name), func(ctx context.Context) string {
				defer time.Sleep(time.Second) // the looks cost, too
				d, err := p.at.Client.AppsV1().Deployments("lab").Get(ctx, "web", metav1.GetOptions{})
				must(t, err)
				if int(d.Status.ReadyReplicas) != pods {
					return fmt.Sprintf("%d of %d", d.Status.ReadyReplicas, pods)
				}
				return ""
			})
			took := time.Since(begun)
			time.Sleep(3 * time.Second) // what it leaves to be done is its, too
			after := spent(t, a, b)
			stop()
			t.Logf("%d pods %s, CPU s for each 1000: home's engine %.1f, the provider's %.1f, both supervisors %.1f; in %.0f s\n   writes at home %s\n   writes at the provider %s",
				pods, p.name, after.home.since(before.home, pods), after.provider.since(before.provider, pods), after.ours.since(before.ours, pods), took.Seconds(),
				after.writes[0].Since(before.writes[0]).Each(pods), after.writes[1].Since(before.writes[1]).Each(pods))
			foreground := metav1.DeletePropagationForeground
			must(t, p.at.Client.AppsV1().Deployments("lab").Delete(t.Context(), "web", metav1.DeleteOptions{PropagationPolicy: &foreground}))
			await.Empty(t, 8*time.Minute, "they are gone", func(ctx context.Context) string {
				defer time.Sleep(time.Second) // the looks cost, too
				left, err := b.Client.CoreV1().Pods("").List(ctx, metav1.ListOptions{LabelSelector: "app=web"})
				must(t, err)
				if here := a.pods(ctx, t, "app=web"); len(here)+len(left.Items) > 0 {
					return fmt.Sprintf("%d at home, %d at the provider", len(here), len(left.Items))
				}
				return ""
			})
			time.Sleep(3 * time.Second)
		}
	}
}

// cpu is CPU time in seconds.
type cpu float64

func (c cpu) since(o cpu, pods int) float64 { return float64(c-o) * 1000 / float64(pods) }

type expense struct {
	home, provider, ours cpu
	writes               [2]apicount.Counts
}

func spent(t *testing.T, a, b *device) (e expense) {
	t.Helper()
	for i, d := range []*device{a, b} {
		raw, err := d.Client.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
		must(t, err)
		at := strings.Index(string(raw), "\nprocess_cpu_seconds_total ")
		if at < 0 {
			t.Fatal("the engine does not tell its CPU time")
		}
		var s cpu
		_, err = fmt.Sscanf(string(raw[at+1:]), "process_cpu_seconds_total %g", &s)
		must(t, err)
		*[]*cpu{&e.home, &e.provider}[i] = s
		e.writes[i], err = apicount.Writes(t.Context(), d.Client)
		must(t, err)
		e.writes[i] = e.writes[i].Without("leases", "nodes")
	}
	var usage syscall.Rusage
	must(t, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	e.ours = cpu(time.Duration(usage.Utime.Nano() + usage.Stime.Nano()).Seconds())
	return e
}

// profiling has an engine give profiles, if there is somebody to take them.
func profiling() []string {
	if os.Getenv(costProfiles) == "" {
		return nil
	}
	return []string{"--kube-apiserver-arg", "profiling=true"}
}

// profiles takes CPU profiles of the engines, 30 s, and of this process until it is stopped.
func profiles(t *testing.T, dir, name string, a, b *device) (stop func()) {
	must(t, os.MkdirAll(dir, 0o755))
	f, err := os.Create(filepath.Join(dir, name+"-supervisors.pprof"))
	must(t, err)
	must(t, pprof.StartCPUProfile(f))
	done := make(chan struct{}, 2)
	for _, d := range []*device{a, b} {
		go func() {
			defer func() { done <- struct{}{} }()
			raw, err := d.Client.Discovery().RESTClient().Get().AbsPath("/debug/pprof/profile").Param("seconds", "30").DoRaw(t.Context())
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, name+"-engine-"+d.name+".pprof"), raw, 0o644)
			}
			if err != nil {
				t.Log(err)
			}
		}()
	}
	return func() { pprof.StopCPUProfile(); f.Close(); <-done; <-done }
}

// keepHollow has another process keep nodes for n pods at d: what that costs is no part of ours.
func keepHollow(t *testing.T, d *device, n int) {
	raw, err := json.Marshal(hollowFor{d.Config.Host, d.Config.CAData, d.Config.CertData, d.Config.KeyData, n/100 + 1})
	must(t, err)
	file := filepath.Join(t.TempDir(), "cluster")
	must(t, os.WriteFile(file, raw, 0o600))
	self, err := os.Executable()
	must(t, err)
	cmd := exec.Command(self, "-test.run=^TestHollowNodes$")
	cmd.Env = append(os.Environ(), costHollow+"="+file)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must(t, cmd.Start())
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
}

type hollowFor struct {
	Host          string
	CA, Cert, Key []byte
	Nodes         int
}

// TestHollowNodes is no test but the process of keepHollow.
func TestHollowNodes(t *testing.T) {
	file := os.Getenv(costHollow)
	if file == "" {
		t.Skip("TestWhatPodsCost runs this")
	}
	raw, err := os.ReadFile(file)
	must(t, err)
	var c hollowFor
	must(t, json.Unmarshal(raw, &c))
	client, err := kubernetes.NewForConfig(&rest.Config{Host: c.Host, QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{CAData: c.CA, CertData: c.Cert, KeyData: c.Key}})
	must(t, err)
	var nodes []fakenodes.Node
	for i := range c.Nodes {
		nodes = append(nodes, fakenodes.Node{Name: fmt.Sprintf("hollow-%d", i), Architecture: "amd64", Labels: map[string]string{"test.rivulet.dev/hollow": "yes"},
			Pods: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 42, byte(i), 0}), 24),
			Room: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100"), corev1.ResourceMemory: resource.MustParse("100Gi"),
				corev1.ResourceEphemeralStorage: resource.MustParse("100Gi"), corev1.ResourcePods: resource.MustParse("120")}})
	}
	kept, err := fakenodes.Register(t.Context(), client, nodes...)
	must(t, err)
	kept.Run(t.Context())
}
