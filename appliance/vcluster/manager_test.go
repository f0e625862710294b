package vcluster

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/cert"
	"k8s.io/utils/ptr"

	"rivulet/appliance/engine/controlplane"
	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
	"rivulet/offload/offer"
	"rivulet/test/harness/apiserver"
	"rivulet/test/harness/await"
)

// patience is generous: the machine may be busy.
const patience = 3 * time.Minute

// shortSleep is the sleep of those whose falling asleep a test waits for; the machine may be busy.
const shortSleep = 3 * time.Second

// device is a supervisor's part that keeps virtual clusters, which can be stopped and begun again.
type device struct {
	t    *testing.T
	cfg  Config
	k    *Manager
	pace pace
	stop func()
}

// empty is a host that has nothing and lends nothing.
type empty struct{}

func (empty) Evict(context.Context, peer.ID) (int, error) { return 0, nil }
func (empty) Use(peer.ID) corev1.ResourceList             { return nil }
func (empty) Follow(func(peer.ID))                        {}

func (empty) StateOf(peer.ID) (s offer.PodsState, known bool) { return s, false }

// devices counts them: each has its own address, so that all have all ports.
var devices atomic.Int32

func newDevice(t *testing.T, executable string) *device {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespaces, users")
	}
	dir := t.TempDir()
	quick := usualPace
	quick.sleep, quick.firstWait, quick.longWait = shortSleep, 10*time.Millisecond, time.Second
	d := &device{t: t, pace: quick, cfg: Config{
		State: filepath.Join(dir, "state"), Run: filepath.Join(dir, "run"), Executable: executable, ID: peer.Hosted("x", "a"),
		Address: netip.AddrFrom4([4]byte{127, 0, 17, byte(devices.Add(1))}), Services: netip.MustParsePrefix("10.43.0.0/16"), Pods: netip.MustParsePrefix("10.42.0.0/16"),
		Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	}}
	for _, sub := range []string{d.cfg.State, d.cfg.Run} {
		if err := os.MkdirAll(sub, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	d.start()
	t.Cleanup(func() {
		for _, v := range d.k.List() {
			if t.Failed() {
				log, _ := os.ReadFile(filepath.Join(d.k.folder(), v.Name, "control-plane.log"))
				t.Logf("%s says:\n%.6000s", v.Name, log[max(0, len(log)-6000):])
			}
			if err := d.k.Delete(context.Background(), v.Name); err != nil {
				t.Error(err)
			}
		}
		d.stop()
	})
	return d
}

func (d *device) start() {
	d.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	d.k = New(d.cfg)
	d.k.pace = d.pace
	d.k.Attach(empty{}, empty{})
	d.k.Handle("GET /v1/namespaces", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		rpc.Write(w, http.StatusOK, map[string]any{"twins": nil})
	}))
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- d.k.Run(ctx, func() { close(ready) }) }()
	select {
	case <-ready:
	case err := <-done:
		d.t.Fatal(err)
	}
	d.stop = func() {
		cancel()
		if err := <-done; err != nil {
			d.t.Error(err)
		}
	}
}

func (d *device) create(spec Spec) View {
	d.t.Helper()
	if _, err := d.k.Create(spec); err != nil {
		d.t.Fatal(err)
	}
	return d.awake(spec.Name)
}

func (d *device) awake(name string) View {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), patience)
	defer cancel()
	v, err := d.k.Await(ctx, name)
	if err != nil {
		d.t.Fatal(err)
	}
	return v
}

// is waits for a state.
func (d *device) is(name string, want State) View {
	d.t.Helper()
	c, err := d.k.get(name)
	if err != nil {
		d.t.Fatal(err)
	}
	limit := time.After(patience)
	for {
		v, changed := c.watch()
		if v.State == want && (want != Paused || v.PID == 0) { // it is Paused while its process ends
			return c.view(c.k.room.free())
		}
		select {
		case <-changed:
		case <-limit:
			d.t.Fatalf("%s is %s (%s), want %s", name, v.State, v.Reason, want)
		}
	}
}

func (d *device) config(name string) *rest.Config {
	d.t.Helper()
	raw, err := d.k.Kubeconfig(name)
	if err != nil {
		d.t.Fatal(err)
	}
	cfg, err := clientcmd.RESTConfigFromKubeConfig(raw)
	if err != nil {
		d.t.Fatal(err)
	}
	cfg.Timeout = patience
	return cfg
}

func (d *device) client(name string) *kubernetes.Clientset {
	d.t.Helper()
	client, err := kubernetes.NewForConfig(d.config(name))
	if err != nil {
		d.t.Fatal(err)
	}
	return client
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestLife is the story of a virtual cluster, with the real control plane.
func TestLife(t *testing.T) {
	t.Parallel()
	d := newDevice(t, apiserver.Binary(t))
	ctx := t.Context()
	v := d.create(Spec{Name: "ann", Sleep: DefaultSleep})
	t.Logf("create to usable: %s, %d MB private", v.Took.Round(time.Millisecond), v.Private>>20)
	pid := v.PID

	t.Run("it is confined", func(t *testing.T) {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		must(t, err)
		uid := firstUID + int(v.Address.Port()) - firstPort // another program may have the first port
		for _, line := range []string{"CapEff:\t0000000000000000", "CapPrm:\t0000000000000000", fmt.Sprintf("Uid:\t%d\t%d\t%d\t%d", uid, uid, uid, uid)} {
			if !strings.Contains(string(status), line) {
				t.Errorf("its status lacks %q:\n%s", line, status)
			}
		}
		root, err := os.Readlink(fmt.Sprintf("/proc/%d/root", pid))
		must(t, err)
		if want := filepath.Join(d.cfg.State, "vclusters", "ann", "root"); root != want {
			t.Errorf("its root is %s, want %s", root, want)
		}
		own, err := os.Readlink("/proc/self/ns/net")
		must(t, err)
		if its, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid)); err != nil || its == own {
			t.Errorf("its network namespace is %s (%v), ours %s", its, err, own)
		}
		d.seesItsOwn(t, "ann", pid)
	})

	client := d.client("ann")
	t.Run("it is a cluster", func(t *testing.T) {
		for _, ns := range []string{"default", "kube-system"} {
			_, err := client.CoreV1().Namespaces().Get(ctx, ns, metav1.GetOptions{})
			must(t, err)
		}
		_, err := client.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kept"}}, metav1.CreateOptions{})
		must(t, err)
		anonymous, err := kubernetes.NewForConfig(rest.AnonymousClientConfig(d.config("ann")))
		must(t, err)
		if _, err := anonymous.CoreV1().Namespaces().List(ctx, metav1.ListOptions{}); !apierrors.IsUnauthorized(err) {
			t.Errorf("a stranger gets %v", err)
		}
	})
	t.Run("its documents are made when asked for", func(t *testing.T) {
		raw, err := client.Discovery().RESTClient().Get().AbsPath("/openapi/v3").DoRaw(ctx)
		must(t, err)
		var index struct{ Paths map[string]any }
		must(t, json.Unmarshal(raw, &index))
		for _, path := range []string{"api/v1", "apis/apps/v1", "apis/apiextensions.k8s.io/v1", "apis/apiregistration.k8s.io/v1"} {
			if index.Paths[path] == nil {
				t.Errorf("the index lacks %s", path)
			}
		}
		pod, err := client.Discovery().RESTClient().Get().AbsPath("/openapi/v3/api/v1").DoRaw(ctx)
		if err != nil || !strings.Contains(string(pod), "io.k8s.api.core.v1.Pod") {
			t.Errorf("%.200s %v", pod, err)
		}
		if _, err := client.Discovery().OpenAPISchema(); err != nil {
			t.Error(err)
		}
	})
	t.Run("it knows time zones", func(t *testing.T) {
		zone := "Europe/Rome"
		job := &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Name: "nightly"}, Spec: batchv1.CronJobSpec{Schedule: "0 3 * * *", TimeZone: &zone,
			JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
				RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "web", Image: "web:1"}},
			}}}}}}
		_, err := client.BatchV1().CronJobs("default").Create(ctx, job, metav1.CreateOptions{})
		must(t, err)
	})
	t.Run("without a host, a pod is told that it waits", func(t *testing.T) {
		_, err := client.CoreV1().Pods("default").Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "web", Image: "web:1"}}, AutomountServiceAccountToken: new(bool),
		}}, metav1.CreateOptions{})
		must(t, err)
		await.True(t, patience, "the pod's event", func() bool {
			events, err := client.CoreV1().Events("default").List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=web"})
			return err == nil && len(events.Items) == 1 && strings.Contains(events.Items[0].Message, "has no node")
		})
		pod, err := client.CoreV1().Pods("default").Get(ctx, "web", metav1.GetOptions{})
		must(t, err)
		if len(pod.Status.Conditions) != 1 || pod.Status.Conditions[0].Reason != corev1.PodReasonUnschedulable {
			t.Errorf("%+v", pod.Status)
		}
	})
	kept := func(t *testing.T) {
		t.Helper()
		_, err := client.CoreV1().ConfigMaps("default").Get(ctx, "kept", metav1.GetOptions{})
		must(t, err)
	}
	t.Run("killed, it comes back", func(t *testing.T) {
		must(t, syscall.Kill(pid, syscall.SIGKILL))
		d.another("ann", pid)
		kept(t)
	})
	t.Run("a supervisor that starts again finds it", func(t *testing.T) {
		before := d.is("ann", Awake)
		d.stop()
		kept(t)
		d.start()
		if after := d.is("ann", Awake); after.PID != before.PID {
			t.Errorf("process %d became %d", before.PID, after.PID)
		}
		kept(t)
	})
	t.Run("adopted and killed, it comes back", func(t *testing.T) {
		pid := d.is("ann", Awake).PID
		must(t, syscall.Kill(pid, syscall.SIGKILL))
		d.another("ann", pid)
		kept(t)
	})
	t.Run("paused, it does not answer", func(t *testing.T) {
		must(t, d.k.Pause("ann"))
		if v := d.is("ann", Paused); v.PID != 0 {
			t.Errorf("it runs as %d", v.PID)
		}
		if _, err := client.Discovery().ServerVersion(); err == nil {
			t.Error("it answers")
		}
		must(t, d.k.Resume("ann"))
		d.awake("ann")
		kept(t)
	})
	t.Run("deleted, nothing is left", func(t *testing.T) {
		must(t, d.k.Delete(ctx, "ann"))
		for _, dir := range []string{d.k.folder(), d.cfg.Run} {
			if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
				t.Errorf("%s has %v (%v)", dir, left, err)
			}
		}
		for _, c := range cgroups {
			if _, err := os.Stat(filepath.Join(c.root, cgroupName, "ann")); err == nil {
				t.Error("its cgroup is left")
			}
		}
		if _, err := d.k.Get("ann"); err == nil {
			t.Error("it is still there")
		}
	})
}

// another waits until it is awake as another process.
func (d *device) another(name string, pid int) {
	d.t.Helper()
	c, err := d.k.get(name)
	must(d.t, err)
	limit := time.After(patience)
	for {
		v, changed := c.watch()
		if v.State == Awake && v.PID != pid && v.PID != 0 {
			return
		}
		select {
		case <-changed:
		case <-limit:
			d.t.Fatalf("%s is %s as %d (%s)", name, v.State, v.PID, v.Reason)
		}
	}
}

// TestSleep: nobody uses it, so it ends; a request wakes it, and is answered.
func TestSleep(t *testing.T) {
	t.Parallel()
	d := newDevice(t, apiserver.Binary(t))
	d.create(Spec{Name: "ben", Sleep: shortSleep})
	client := d.client("ben")
	_, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kept"}}, metav1.CreateOptions{})
	must(t, err)
	if v := d.is("ben", Asleep); v.PID != 0 || v.Private != 0 {
		t.Errorf("asleep it is %+v", v)
	}
	began := time.Now()
	_, err = client.CoreV1().ConfigMaps("default").Get(t.Context(), "kept", metav1.GetOptions{})
	must(t, err)
	t.Logf("woken by a request in %s", time.Since(began).Round(time.Millisecond))

	// Asleep over a restart of the supervisor, too.
	d.is("ben", Asleep)
	d.stop()
	d.start()
	d.is("ben", Asleep)
	_, err = client.CoreV1().ConfigMaps("default").Get(t.Context(), "kept", metav1.GetOptions{})
	must(t, err)

	// A forgotten watch is no use, unless it is wanted; then it is ended when told to.
	follow := func() watch.Interface {
		w, err := client.CoreV1().ConfigMaps("default").Watch(t.Context(), metav1.ListOptions{})
		must(t, err)
		return w
	}
	ended := func(w watch.Interface) {
		t.Helper()
		for {
			select {
			case _, more := <-w.ResultChan():
				if !more {
					return
				}
			case <-time.After(time.Minute):
				t.Fatal("the watch goes on")
			}
		}
	}
	w := follow()
	d.is("ben", Awake)
	d.is("ben", Asleep)
	ended(w)
	_, err = d.k.Change(t.Context(), "ben", Change{WatchKeepsAwake: ptr.To(true)})
	must(t, err)
	w = follow()
	pid := d.is("ben", Awake).PID
	time.Sleep(shortSleep + shortSleep/2) // what must not happen in that time does not
	v := d.is("ben", Awake)
	if v.PID != pid {
		t.Errorf("process %d became %d while it was watched", pid, v.PID)
	}
	t.Logf("idle: %d MB private", v.Private>>20)
	must(t, Sleep(t.Context(), d.k, "ben"))
	ended(w)
	if v := d.is("ben", Asleep); v.PID != 0 {
		t.Errorf("told to sleep it is %+v", v)
	}
	must(t, Sleep(t.Context(), d.k, "ben")) // it does already
	must(t, d.k.Pause("ben"))
	if err := Sleep(t.Context(), d.k, "ben"); err == nil || !strings.Contains(err.Error(), "is paused") {
		t.Errorf("a paused one falls asleep: %v", err)
	}
	must(t, d.k.Resume("ben"))
	d.is("ben", Awake)
	never := time.Duration(0)
	_, err = d.k.Change(t.Context(), "ben", Change{Sleep: &never, WatchKeepsAwake: ptr.To(false)})
	must(t, err)
	d.is("ben", Awake)
	must(t, Sleep(t.Context(), d.k, "ben"))
	d.is("ben", Asleep)
	_, err = d.k.Change(t.Context(), "ben", Change{Sleep: ptr.To(shortSleep)})
	must(t, err)
	_, err = client.CoreV1().ConfigMaps("default").Get(t.Context(), "kept", metav1.GetOptions{})
	must(t, err)

	// One that was found by a new supervisor falls asleep, too, and is not started for it.
	starts := func() int {
		log, err := d.k.Log("ben")
		must(t, err)
		raw, err := os.ReadFile(log)
		must(t, err)
		return strings.Count(string(raw), ": usable\n")
	}
	before := starts()
	d.stop()
	d.start()
	d.is("ben", Awake)
	d.is("ben", Asleep)
	if now := starts(); now != before {
		t.Errorf("%d starts, %d before", now, before)
	}
}

// script is a process that says what a test has it say, by files beside it.
func script(t *testing.T) (path string, say func(what string)) {
	t.Helper()
	hups := make(chan os.Signal, 1) // a shell cannot catch what is ignored where the test runs, as under nohup
	signal.Notify(hups, syscall.SIGHUP)
	t.Cleanup(func() { signal.Stop(hups) })
	path = filepath.Join(t.TempDir(), "process")
	must(t, os.WriteFile(path, []byte(`#!/bin/sh
trap 'touch '"$0"'.hup' HUP
trap 'exit 1' TERM
until [ -e "$0.usable" ]; do sleep 0.02; done
echo usable >&4
until [ -e "$0.asleep" ]; do sleep 0.02; done
echo asleep 4102444800 >&4
`), 0o700))
	return path, func(what string) { must(t, os.WriteFile(path+"."+what, nil, 0o600)) }
}

// TestReports: what a process has said of itself is what a supervisor goes by, one that starts later, too.
func TestReports(t *testing.T) {
	t.Parallel()
	path, say := script(t)
	d := newDevice(t, path)
	_, err := d.k.Create(Spec{Name: "eve", Sleep: DefaultSleep})
	must(t, err)
	started := func() (pid int) {
		t.Helper()
		await.True(t, patience, "its process", func() bool {
			v, err := d.k.Get("eve")
			pid = v.PID
			return err == nil && pid != 0 && v.State == Starting
		})
		return pid
	}
	pid := started()
	d.stop()
	d.start()
	if found := started(); found != pid {
		t.Errorf("process %d became %d", pid, found)
	}
	say("usable")
	if v := d.is("eve", Awake); v.PID != pid {
		t.Errorf("process %d became %d", pid, v.PID)
	}
	d.stop()
	d.start()
	v := d.is("eve", Awake) // its executable is the shell, another than that of the supervisor
	if v.PID != pid || !v.Old || !strings.Contains(v.Reason, "replaced once nobody uses it") {
		t.Errorf("%+v", v)
	}
	await.True(t, patience, "it is to end when it is idle", func() bool { _, err := os.Stat(path + ".hup"); return err == nil })
	say("asleep")
	d.is("eve", Asleep)
	c, err := d.k.get("eve")
	must(t, err)
	await.True(t, patience, "when it is due again is written", func() bool { return c.record().Due.Unix() == 4102444800 })
}

// TestReplacement: a process of another version is replaced when its time is over.
func TestReplacement(t *testing.T) {
	t.Parallel()
	path, say := script(t)
	d := newDevice(t, path)
	say("usable")
	before := d.create(Spec{Name: "fay"})
	d.stop()
	d.pace.replace = 0
	d.start()
	d.another("fay", before.PID)
	if v := d.is("fay", Awake); v.Old || v.Reason != "" {
		t.Errorf("%+v", v)
	}
}

// A process that never ends by itself is replaced when half the validity of its certificates is over, by one with new ones.
// Nobody else renews them meanwhile: the process would not know.
func TestReplacementForCertificates(t *testing.T) {
	t.Parallel()
	path, say := script(t)
	d := newDevice(t, path)
	say("usable")
	before := d.create(Spec{Name: "gil"})
	c, err := d.k.get("gil")
	must(t, err)
	old := c.pki()
	old.now = time.Now().Add(-leafLife/2 - time.Minute)
	must(t, os.RemoveAll(old.tls))
	must(t, old.write(net.IP(d.cfg.Address.AsSlice()), net.IPv4(10, 43, 0, 1)))
	half := old.renewAt()
	if _, err := d.k.Kubeconfig("gil"); err != nil || !old.renewAt().Equal(half) {
		t.Errorf("%v; its certificates are renewed at %s while it runs, were at %s", err, old.renewAt(), half)
	}
	c.nudge()
	await.True(t, patience, "it is to end when it is idle", func() bool { _, err := os.Stat(path + ".hup"); return err == nil })
	if v := d.is("gil", Awake); v.PID != before.PID || !strings.Contains(v.Reason, "due for renewal; it is replaced once nobody uses it") {
		t.Errorf("%+v", v)
	}
	old.now = time.Now().Add(-leafLife/2 - 2*d.pace.replace)
	must(t, os.RemoveAll(old.tls))
	must(t, old.write(net.IP(d.cfg.Address.AsSlice()), net.IPv4(10, 43, 0, 1)))
	c.nudge()
	d.another("gil", before.PID)
	if v := d.is("gil", Awake); v.Reason != "" || time.Until(old.renewAt()) < leafLife/2-time.Hour {
		t.Errorf("renewed at %s, %+v", old.renewAt(), v)
	}
}

// Two years of a process that never ends by itself, day by day: its certificates are always valid.
func TestCertificatesOfTwoYears(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: files of the tenant's group")
	}
	p := pki{secret: filepath.Join(t.TempDir(), "secret"), tls: filepath.Join(t.TempDir(), "tls"), now: time.Now()}
	address, starts := net.IPv4(127, 0, 0, 1), 0
	for end := p.now.Add(2 * leafLife); p.now.Before(end); p.now = p.now.Add(24 * time.Hour) {
		if at := p.renewAt(); at.IsZero() || p.now.After(at.Add(usualPace.replace)) {
			must(t, p.write(address, address))
			starts++
		}
		must(t, p.admin())
		files, err := filepath.Glob(filepath.Join(p.tls, "*.crt"))
		must(t, err)
		for _, path := range append(files, filepath.Join(p.secret, "admin.crt")) {
			c, err := cert.CertsFromFile(path)
			must(t, err)
			if left := c[0].NotAfter.Sub(p.now); left < adminLife/2 {
				t.Fatalf("on %s %s ends in %s", p.now, path, left)
			}
		}
	}
	if starts != 4 {
		t.Errorf("%d starts in two years", starts)
	}
}

// TestDoesNotStart: who waits is refused, and told why.
func TestDoesNotStart(t *testing.T) {
	t.Parallel()
	d := newDevice(t, "/bin/false")
	_, err := d.k.Create(Spec{Name: "cat"})
	must(t, err)
	_, err = d.k.Await(t.Context(), "cat")
	if err == nil || !strings.Contains(err.Error(), "ended with code 1") {
		t.Errorf("%v", err)
	}
	// A client would try again for ten seconds and more.
	if _, err := d.client("cat").Discovery().RESTClient().Get().AbsPath("/version").MaxRetries(0).DoRaw(t.Context()); err == nil {
		t.Error("it answers")
	}
}

// TestADatastoreWithoutARecordStays starts with three folders without a record: what a creation or a removal was
// interrupted in goes, a datastore stays.
func TestADatastoreWithoutARecordStays(t *testing.T) {
	k := New(Config{State: t.TempDir(), Log: slog.New(slog.DiscardHandler)})
	for _, dir := range []string{"created", "removed/root/tls", "lost/root/data/db"} {
		must(t, os.MkdirAll(filepath.Join(k.folder(), dir), 0o700))
	}
	kept := filepath.Join(k.folder(), "lost/root/data/db/state.db")
	must(t, os.WriteFile(kept, []byte("x"), 0o600))
	for range 2 {
		records, err := k.load()
		if err != nil || len(records) != 0 {
			t.Fatalf("%v %v", records, err)
		}
		if _, err := os.Stat(kept); err != nil {
			t.Error(err)
		}
		if all, err := os.ReadDir(k.folder()); err != nil || len(all) != 1 {
			t.Errorf("left are %v, %v", all, err)
		}
		if !k.unread.Load() {
			t.Error("nobody is told that a folder was not read")
		}
	}
}

func TestSpecs(t *testing.T) {
	for _, c := range []struct {
		spec Spec
		want string
	}{
		{Spec{Name: "ann"}, ""},
		{Spec{Name: "Ann"}, "no name"},
		{Spec{Name: "../ann"}, "no name"},
		{Spec{Name: strings.Repeat("a", maxName+1)}, "no name"},
		{Spec{Name: "ann", Sleep: time.Second}, "sleeps after"},
		{Spec{Name: "ann", Memory: 1 << 20}, "does not start in 1 MiB"},
		{Spec{Name: "ann", Quota: corev1.ResourceList{"disk": resource.MustParse("1")}}, "no \"disk\""},
		{Spec{Name: "ann", Quota: corev1.ResourceList{"cpu": resource.MustParse("-1")}}, "less than nothing"},
	} {
		err := c.spec.Check()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v: %v, want %q", c.spec, err, c.want)
		}
	}
}

func TestLastLine(t *testing.T) {
	for log, want := range map[string]string{
		"": "it said nothing", "one\ntwo\n": "two", "I1124 03:04:05.000000       1 x.go:1] three\n": "three",
		"one\npanic: too much\n\ngoroutine 1 [running]:\nmain.go:1 +0x1\n": "panic: too much",
		"F1124 03:04:05.000000       1 hooks.go:1] timed out\n" + strings.Repeat("goroutine 7 [select]:\nk8s.io/x/y.(*Z).run(0x1, {0x2, 0x3})\n\t/src/y.go:7 +0x1\ncreated by k8s.io/x in goroutine 1\n\n", 20000): "timed out",
		"it listens\ngoroutine 7 [select]:\nk8s.io/x/y.(*Z).run(0x1, {0x2, 0x3})\n\t/src/y.go:7 +0x1\n":                                                                                                            "it listens",
		"F1124 03:04:05.000000       1 hooks.go:1] hook failed\ngoroutine 1 [running]:\nx.go:1 +0x1\n":                                                                                                             "hook failed",
	} {
		if got := lastLine(strings.NewReader(log)); got != want {
			t.Errorf("%q: %q, want %q", log, got, want)
		}
	}
}

// As many start at once as there are turns, the others after them in their order; who is asked something else while it
// waits gives way.
func TestStartsTakeTurns(t *testing.T) {
	k := New(Config{Log: slog.New(slog.DiscardHandler)})
	k.turns = make(chan struct{}, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	named := func(name string) *cluster { return newCluster(k, record{Spec: Spec{Name: name}}) }
	if !named("first").turn(ctx) {
		t.Fatal("the first has no turn")
	}
	order := make(chan string)
	for _, name := range []string{"second", "third"} {
		c := named(name)
		go func() {
			if c.turn(ctx) {
				order <- c.name
			}
		}()
		await.True(t, 10*time.Second, name+" waits", func() bool { return c.brief().Reason == "others start before it" })
	}
	poked, gone := named("poked"), make(chan bool)
	go func() { gone <- poked.turn(ctx) }()
	poked.nudge()
	if <-gone {
		t.Error("it starts, though it was asked something else")
	}
	for _, want := range []string{"second", "third"} {
		<-k.turns
		if got := <-order; got != want {
			t.Errorf("%s has its turn, want %s", got, want)
		}
	}
}

// A client that waits for others to start is told when to come again before it gives the handshake up.
func TestWaitingClientsGetRetryAfter(t *testing.T) {
	t.Parallel()
	d := newDevice(t, "/bin/false")
	d.k.turns = make(chan struct{}, 1)
	d.k.turns <- struct{}{}
	v, err := d.k.Create(Spec{Name: "ivy"})
	must(t, err)
	c, err := d.k.get("ivy")
	must(t, err)
	must(t, c.certificates())
	roots := x509.NewCertPool()
	ca, err := os.ReadFile(filepath.Join(c.tlsDir(), "server-ca.crt"))
	must(t, err)
	roots.AppendCertsFromPEM(ca)
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, DisableKeepAlives: true}}
	resp, err := client.Post("https://"+v.Address.String()+"/api/v1/namespaces", "application/json", strings.NewReader(strings.Repeat("x", 1<<20)))
	must(t, err)
	defer resp.Body.Close()
	var said metav1.Status
	must(t, json.NewDecoder(resp.Body).Decode(&said))
	if resp.StatusCode != http.StatusTooManyRequests || resp.Header.Get("Retry-After") != "5" || said.Reason != metav1.StatusReasonTooManyRequests || !strings.Contains(said.Message, "ivy is being started") {
		t.Errorf("%d %v %+v", resp.StatusCode, resp.Header, said)
	}
}

// podsAt is a host whose pods are in the state that it points to.
type podsAt struct {
	empty
	state *offer.PodsState
}

func (p podsAt) StateOf(peer.ID) (offer.PodsState, bool) { return *p.state, true }

// What changes at the host has a virtual cluster that sleeps run a while later, together with what changes until then. It
// is the state that counts, so what nobody was told, or is undone, counts as well.
func TestWhatChangesAtTheHost(t *testing.T) {
	seen, state := offer.PodsState{Pods: "a", Ready: "a"}, offer.PodsState{Pods: "a", Ready: "a"}
	k := New(Config{State: t.TempDir()})
	k.Attach(empty{}, podsAt{state: &state})
	of := func(r record) *cluster {
		r.Spec = Spec{Name: "ann"}
		c := newCluster(k, r)
		c.state = Asleep
		return c
	}
	due := func(c *cluster) time.Duration {
		c.compare()
		if c.debt.at.IsZero() {
			return 0
		}
		return time.Until(c.debt.at).Round(time.Second)
	}
	c := of(record{Seen: seen})
	if wait := due(c); wait != 0 {
		t.Errorf("without a change due in %s", wait)
	}
	state.Pods = "b" // another address after a restart of the host, which no event told
	if wait := due(c); wait != usualPace.debt {
		t.Errorf("due in %s", wait)
	}
	first := c.debt.at
	state.Ready = "b"
	if due(c); !c.debt.at.Equal(first) || c.untilDue() <= 0 {
		t.Error("a second change puts it off")
	}
	state = seen
	if wait := due(c); wait != 0 {
		t.Errorf("all is as before, and it is due in %s", wait)
	}
	state.Ready = ""
	for n, want := range []time.Duration{1, 2, 4, 8, 16, 16} { // it is ready and unready in turn
		c.debt.flaps, c.debt.flapped, c.debt.at = n, time.Now(), time.Time{}
		if wait := due(c); wait != want*usualPace.debt {
			t.Errorf("the %d. time due in %s", n+1, wait)
		}
	}
	c.debt.flapped = time.Now().Add(-2 * calm)
	if c.debt.at = (time.Time{}); due(c) != usualPace.debt {
		t.Error("what was long ago puts it off")
	}
	unknown := of(record{Due: time.Unix(1<<32, 0)})
	if due(unknown) != 0 || unknown.record().Seen != state || unknown.record().Due.Unix() != 1<<32 {
		t.Errorf("one of a version that wrote no state: due at %s, %+v", unknown.debt.at, unknown.record())
	}
	state.Ready = "c"
	if due(unknown) != usualPace.debt {
		t.Error("a change after that is not due")
	}
	paused, awake, failed := of(record{Paused: true}), of(record{}), of(record{})
	awake.proc, failed.state = &process{}, Failed
	if due(paused) != 0 || due(awake) != 0 || due(failed) != 0 {
		t.Error("one that is paused, awake, or does not start is due")
	}
	if got := awake.debt.seen(state, seen); got != state {
		t.Errorf("one that has missed nothing has seen %+v", got)
	}
	awake.debt.touch()
	for what, c := range map[string]struct {
		before offer.PodsState
		flaps  bool
	}{
		"readiness":              {seen, true},
		"readiness, and back":    {state, true},
		"something, before that": {offer.PodsState{}, true},
		"other pods":             {offer.PodsState{Pods: "z", Ready: "a"}, false},
	} {
		sleeps := of(record{Seen: awake.debt.seen(state, c.before)})
		sleeps.debt.flaps, sleeps.debt.flapped = 3, time.Now()
		want := usualPace.debt
		if c.flaps {
			want *= 8
		}
		if wait := due(sleeps); wait != want {
			t.Errorf("one that has missed %s is due in %s, want %s", what, wait, want)
		}
	}
	c.compare()
	c.debt.at, c.debt.flaps = time.Now(), 0
	if c.debt.begin(); c.debt.flaps != 1 {
		t.Error("a start for readiness alone is not counted")
	}
	past := of(record{Due: time.Now().Add(-time.Hour), Seen: state})
	if wait := past.untilDue(); wait != 0 {
		t.Errorf("what was due an hour ago is due in %s", wait)
	}
}

func TestParseQuota(t *testing.T) {
	for text, want := range map[string]string{
		"cpu=2,memory=4Gi, pods=20,storage=10Gi": "", "cpu=500m": "", "none": "", "pods=0": "",
		"": "is no amount", "cpu": "is no amount", "cpu=much": "is no amount", "gpu=1": "a quota has no", "cpu=-1": "less than nothing", "cpu=1,": "is no amount",
	} {
		got, err := ParseQuota(text)
		if want == "" && (err != nil || text != "none" && len(got) == 0) || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v %v, want %q", text, got, err, want)
		}
	}
}

func TestUse(t *testing.T) {
	now := time.Unix(0, 0)
	u := controlplane.NewUse(func() time.Time { return now })
	end := u.Begin()
	now = now.Add(time.Hour)
	if unused, used := u.Unused(); unused != 0 || !used {
		t.Error("a request is open")
	}
	end()
	end() // once
	now = now.Add(time.Minute)
	if unused, used := u.Unused(); unused != time.Minute || !used {
		t.Errorf("unused for %s, used %v", unused, used)
	}
}

func TestAGuaranteeIsWithinTheQuota(t *testing.T) {
	for text, want := range map[[2]string]string{
		{"none", "cpu=1"}: "", {"cpu=2", "cpu=2,memory=1Gi"}: "", {"cpu=1", "cpu=2"}: "more than the quota", {"none", "storage=1Gi"}: "a guarantee has no",
	} {
		s := Spec{Name: "ann"}
		for i, to := range []*corev1.ResourceList{&s.Quota, &s.Guarantee} {
			list, err := ParseQuota(text[i])
			must(t, err)
			*to = list
		}
		if err := s.Check(); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", text, err, want)
		}
	}
}

// Nobody is shown one as Awake that is paused, whatever its process still does.
func TestPausedIsShownAtOnce(t *testing.T) {
	for _, was := range []State{Starting, Awake, Asleep, Failed, Paused} {
		c := newCluster(New(Config{}), record{Spec: Spec{Name: "ann"}, Paused: true})
		c.state, c.want = was, true
		if v := c.brief(); v.State != Paused {
			t.Errorf("from %s: %s", was, v.State)
		}
	}
}

// Who uses a virtual cluster from elsewhere reads what such a person can do: no command of the device, but whom to ask.
func TestUsersReadWhatTheyCanDo(t *testing.T) {
	for state, want := range map[State]string{Paused: "ask whoever gave you this access to resume it", Deleting: "not there any more; ask", Failed: "does not start; ask", Starting: "try again in a minute"} {
		k := New(Config{State: t.TempDir(), Log: slog.New(slog.DiscardHandler)})
		c := newCluster(k, record{Spec: Spec{Name: "ann"}, ID: "x", Paused: state == Paused, Deleting: state == Deleting})
		k.all, k.ctx = map[string]*cluster{"ann": c}, t.Context()
		ctx, cancel := context.WithCancel(t.Context())
		if c.state = state; state == Starting {
			cancel()
		}
		if state == Failed { // it is asked for, and fails again
			go func() {
				for c.brief().State != Starting {
					runtime.Gosched()
				}
				c.failed(errors.New("secret of the host"))
			}()
		}
		err := k.Ready(ctx, "x", "ann", false)
		cancel()
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret of the host") {
			t.Errorf("%s: %v, want %q", state, err, want)
		}
	}
}

// Root's kubeconfig of a paused one would lead to a closed port.
func TestAPausedOneIsNotConnectedTo(t *testing.T) {
	k, mux := New(Config{State: t.TempDir()}), http.NewServeMux()
	k.Routes(mux)
	k.ctx = t.Context()
	for want, owner := range map[string]Owner{"rivulet vcluster resume ann": {}, "spec.paused of VirtualCluster lab/ann": {Namespace: "lab", Name: "ann"}} {
		k.all = map[string]*cluster{"ann": newCluster(k, record{Spec: Spec{Name: "ann"}, Owner: owner, Paused: true})}
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/v1/vclusters/ann/kubeconfig", nil))
		if w.Code < 400 || !strings.Contains(w.Body.String(), want) {
			t.Errorf("%d %s, want %q", w.Code, w.Body, want)
		}
	}
}

// TestAFullDatastore: who makes another object is told whose is full and what to do, deletions go on, and the owner sees it before.
func TestAFullDatastore(t *testing.T) {
	t.Parallel()
	d := newDevice(t, apiserver.Binary(t))
	if _, err := d.k.Create(Spec{Name: "gus", Datastore: 1 << 20}); err == nil {
		t.Error("a datastore of 1 MiB is taken")
	}
	d.create(Spec{Name: "gus", Datastore: minDatastore})
	client := d.client("gus").CoreV1().ConfigMaps("default")
	ctx := t.Context()
	must(t, d.client("gus").CoreV1().RESTClient().Delete().AbsPath("/apis/apiregistration.k8s.io/v1/apiservices/v1beta1.metrics.k8s.io").Do(ctx).Error())
	large := func(name string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"x": strings.Repeat("x", 900<<10)}}
	}
	var told error
	made := 0
	for ; told == nil && made < 100; made++ {
		_, told = client.Create(ctx, large(fmt.Sprint("large-", made)), metav1.CreateOptions{})
	}
	if told == nil || !strings.Contains(told.Error(), "the datastore of virtual cluster gus is full (16 MiB)") || !strings.Contains(told.Error(), "rivulet vcluster set gus --datastore 32Mi") {
		t.Fatalf("after %d objects of 900 KiB: %v", made, told)
	}
	if status, ok := told.(apierrors.APIStatus); !ok || status.Status().Code != http.StatusInsufficientStorage {
		t.Errorf("%#v", told)
	}
	small, err := client.Get(ctx, "large-0", metav1.GetOptions{})
	must(t, err)
	small.Data["y"] = strings.Repeat("y", 100<<10)
	if _, err := client.Update(ctx, small, metav1.UpdateOptions{}); err == nil || !strings.Contains(err.Error(), "is full (16 MiB)") {
		t.Errorf("an object grows: %v", err)
	}
	await.True(t, patience, "its owner sees it", func() bool {
		v, err := d.k.Get("gus")
		return err == nil && v.Stored > v.Datastore*nearlyFull/100 && v.Stored <= v.Datastore*5/4 && strings.Contains(v.Reason, "% full")
	})
	for size := 64 << 10; size > 0; size /= 64 { // to the brim
		for i := range 1000 {
			o := large(fmt.Sprintf("fills-%d-%d", size, i))
			o.Data["x"] = o.Data["x"][:size]
			if _, err := client.Create(ctx, o, metav1.CreateOptions{}); err != nil {
				break
			}
		}
	}
	sleep := time.Hour
	if _, err := d.k.Change(ctx, "gus", Change{Sleep: &sleep}); err != nil { // it starts again
		t.Error(err)
	}
	d.awake("gus") // full as it is, and without what is made at a start
	must(t, client.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
	await.Empty(t, patience, "there is room again", func(ctx context.Context) string {
		if _, err := client.Create(ctx, large("again"), metav1.CreateOptions{}); err != nil {
			return err.Error()
		}
		return ""
	})
	more := int64(2 * minDatastore)
	v, err := d.k.Change(ctx, "gus", Change{Datastore: &more})
	if err != nil || v.Datastore != more {
		t.Errorf("%+v %v", v, err)
	}
	d.awake("gus")
	for i := range 16 { // more than before
		_, err := client.Create(ctx, large(fmt.Sprint("more-", i)), metav1.CreateOptions{})
		must(t, err)
	}
}

// A followed log has its end, then what is added, also after it was truncated, until it is removed.
func TestFollowedLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	must(t, os.WriteFile(path, []byte(strings.Repeat("old\n", logTail)), 0o600))
	r, w := io.Pipe()
	go func() {
		followLog(t.Context(), path, w, func() error { return nil })
		w.Close()
	}()
	lines := bufio.NewScanner(r)
	for range logTail / len("old\n") {
		if !lines.Scan() || lines.Text() != "old" {
			t.Fatalf("%q", lines.Text())
		}
	}
	for _, news := range []string{"new\n", "anew\n"} {
		f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
		must(t, err)
		if news == "anew\n" {
			must(t, f.Truncate(0))
		}
		_, err = f.WriteString(news)
		must(t, err)
		must(t, f.Close())
		if !lines.Scan() || lines.Text()+"\n" != news {
			t.Fatalf("%q, want %q", lines.Text(), news)
		}
	}
	must(t, os.Remove(path))
	if lines.Scan() {
		t.Fatalf("%q after its end", lines.Text())
	}
}

func TestConsumed(t *testing.T) {
	var c Consumed
	use := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("500m"), corev1.ResourceMemory: resource.MustParse("2Gi"), corev1.ResourceStorage: resource.MustParse("10Gi")}
	c.add(use, true, 2)
	c.add(use, false, 1)
	c.add(nil, false, 5)
	if want := (Consumed{Awake: 2, CPU: 1.5, Memory: 6, Storage: 30}); c != want {
		t.Errorf("%+v, want %+v", c, want)
	}
}
