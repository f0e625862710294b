package device

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"rivulet/appliance/api"
	"rivulet/appliance/engine"
	"rivulet/appliance/state/paths"
	"rivulet/offload/policy"
	"rivulet/test/harness/await"
	"rivulet/test/harness/lab"
	"rivulet/test/programs/bench/internal/procs"
	"rivulet/test/programs/bench/internal/wire"
)

// Device is a device of the lab, seen from outside.
type Device struct {
	*lab.Device
	init   int // PID of its init, as we see it
	ns     *wire.Namespace
	client kubernetes.Interface
}

// Lab makes a lab of n devices, calls f with them, and ends the lab whatever f
// returns; options change how it is made. early is called as soon as the devices were started, before they can
// have done anything; it may be nil.
func (s *Stage) Lab(ctx context.Context, binary string, n int, early func(*lab.Lab) error, f func(*lab.Lab, []*Device) error, options ...func(*lab.Options)) (err error) {
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		if derr := lab.Down(ctx, s.LabDir()); !errors.Is(derr, lab.ErrNoLab) {
			err = errors.Join(err, derr)
		}
	}()
	if err := roomForInotify(ctx, n); err != nil {
		return err
	}
	o := lab.Options{Dir: s.LabDir(), Binary: binary, Devices: n}
	for _, change := range options {
		change(&o)
	}
	l, err := lab.Up(ctx, o)
	if err != nil {
		return err
	}
	if early != nil {
		if err := early(l); err != nil {
			return err
		}
	}
	list, err := l.Devices()
	if err != nil {
		return err
	}
	var devices []*Device
	for _, d := range list {
		o := &Device{Device: d}
		defer o.close()
		if err := o.Find(s.LabDir()); err != nil {
			return err
		}
		devices = append(devices, o)
	}
	return f(l, devices)
}

// Find learns who the device's init is. Call it again after the device was switched
// on anew; a device that is off is no error.
func (d *Device) Find(labDir string) error {
	d.close()
	raw, err := os.ReadFile(filepath.Join(labDir, "lab.json"))
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	var state struct {
		Devices []struct {
			Name string   `json:"name"`
			Init lab.Proc `json:"init"`
		} `json:"devices"`
	}
	if err := json.Unmarshal(raw, &state); err != nil {
		return fmt.Errorf("bench: the lab's state: %w", err)
	}
	for _, s := range state.Devices {
		if s.Name == d.Name && s.Init.PID != 0 {
			d.init = s.Init.PID
			d.ns, err = wire.OfProcess(d.init)
			return err
		}
	}
	return nil
}

func (d *Device) close() {
	if d.ns != nil {
		d.ns.Close()
	}
	d.init, d.ns, d.client = 0, nil, nil
}

// Status asks the supervisor.
func (d *Device) Status(ctx context.Context) (api.Status, error) {
	return api.Get(ctx, fmt.Sprintf("/proc/%d/root/run/rivulet", d.init))
}

// Describe says what the device itself knows, for errors.
func (d *Device) Describe() string {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	st, err := d.Status(ctx)
	if err != nil {
		return err.Error()
	}
	text := fmt.Sprintf("%s waits for %q", d.Name, st.Waiting)
	for _, p := range st.Peers {
		text += fmt.Sprintf("; peer %s is %s %s", p.Name, p.State, p.Reason)
	}
	for _, v := range st.VirtualNodes {
		text += fmt.Sprintf("; virtual node %s: ready %v %s", v.Name, v.Ready, v.Reason)
	}
	for _, f := range st.Health {
		text += "; " + f.String()
	}
	return text
}

// Client speaks with the device's API server. Call it when the API is up.
func (d *Device) Client() (kubernetes.Interface, error) {
	if d.client != nil {
		return d.client, nil
	}
	cfg, err := d.config()
	if err != nil {
		return nil, err
	}
	d.client, err = kubernetes.NewForConfig(cfg)
	return d.client, err
}

// FastClient is another one, whose requests never wait for their turn.
func (d *Device) FastClient() (kubernetes.Interface, error) {
	cfg, err := d.config()
	if err != nil {
		return nil, err
	}
	cfg.QPS = -1
	return kubernetes.NewForConfig(cfg)
}

// ClientOf is one as a kubeconfig of the device says, whose requests never wait for their turn.
func (d *Device) ClientOf(file string) (kubernetes.Interface, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", file)
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	cfg.QPS = -1
	cfg.Dial = d.dial
	return kubernetes.NewForConfig(cfg)
}

func (d *Device) config() (*rest.Config, error) {
	cfg, err := engine.RESTConfig(paths.Kubeconfig(d.Path("/var/lib/rivulet")))
	if err != nil {
		return nil, err
	}
	cfg.UserAgent = "rivulet-bench"
	cfg.Dial = d.dial
	return cfg, nil
}

// dial connects from where the device is.
func (d *Device) dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	err = d.ns.Do(func() error {
		conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// WaitAPI waits for the API server to say that it is ready, and returns when it did.
func (d *Device) WaitAPI(ctx context.Context) (time.Time, error) {
	return d.until(ctx, func() error {
		c, err := d.Client()
		if err == nil {
			_, err = c.Discovery().RESTClient().Get().AbsPath("/readyz").Timeout(time.Second).DoRaw(ctx)
		}
		return err
	})
}

// until asks until there is no error, and returns when that was.
func (d *Device) until(ctx context.Context, f func() error) (time.Time, error) {
	if err := await.Until(ctx, f); err != nil {
		return time.Time{}, fmt.Errorf("bench: %s does not come up: %w; %s", d.Name, err, d.Describe())
	}
	return time.Now(), nil
}

// WaitReady waits for `rivulet status` to say ready, and returns when it did.
func (d *Device) WaitReady(ctx context.Context) (time.Time, error) {
	return d.until(ctx, func() error {
		st, err := d.Status(ctx)
		if err == nil && !st.Ready {
			err = errors.New(st.Waiting)
		}
		return err
	})
}

// WaitPodsAllowed waits for what the API server wants before it takes a pod: the
// default service account of the default namespace.
func (d *Device) WaitPodsAllowed(ctx context.Context) (time.Time, error) {
	return d.until(ctx, func() error {
		c, err := d.Client()
		if err == nil {
			_, err = c.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{})
		}
		return err
	})
}

// WaitNode watches until n nodes that match are Ready, and returns when the last
// of them was seen so.
func (d *Device) WaitNode(ctx context.Context, n int, match func(*corev1.Node) bool) (time.Time, error) {
	return d.waitNode(ctx, n, func(node *corev1.Node) bool {
		ready, _ := engine.NodeReady(node)
		return ready && match(node)
	})
}

// WaitGone watches until n virtual nodes are not Ready.
func (d *Device) WaitGone(ctx context.Context, n int) (time.Time, error) {
	return d.waitNode(ctx, n, func(node *corev1.Node) bool {
		ready, _ := engine.NodeReady(node)
		return !ready && Virtual(node)
	})
}

func (d *Device) waitNode(ctx context.Context, n int, is func(*corev1.Node) bool) (time.Time, error) {
	c, err := d.Client()
	if err != nil {
		return time.Time{}, err
	}
	for {
		w, err := c.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err == nil {
			at, ok := count(w, n, is)
			w.Stop()
			if ok {
				return at, nil
			}
		}
		select { // the API server closed the watch
		case <-ctx.Done():
			return time.Time{}, fmt.Errorf("bench: nodes of %s are not as they should be: %w; %s", d.Name, errors.Join(err, ctx.Err()), d.Describe())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// count follows nodes until n of them are so at once.
func count(w watch.Interface, n int, is func(*corev1.Node) bool) (time.Time, bool) {
	so := map[string]bool{}
	for e := range w.ResultChan() {
		node, ok := e.Object.(*corev1.Node)
		if !ok {
			continue
		}
		delete(so, node.Name)
		if e.Type != watch.Deleted && is(node) {
			so[node.Name] = true
		}
		if len(so) >= n {
			return time.Now(), true
		}
	}
	return time.Time{}, false
}

// Home matches the device's own node, Virtual those that stand for peers.
func Home(n *corev1.Node) bool    { return n.Labels[policy.VirtualNodeLabel] == "" }
func Virtual(n *corev1.Node) bool { return !Home(n) }

// Processes returns the device's processes by what they are: supervisor, engine,
// tunnel, containerd, shim, tenant.
func (d *Device) Processes() (map[string][]procs.Process, error) {
	tree, err := procs.Tree(d.init)
	if err != nil {
		return nil, err
	}
	out := map[string][]procs.Process{}
	for _, p := range tree {
		// The init runs nothing called rivulet but the supervisor.
		if kind := kindOf(p.Args); kind != "" && (kind != "supervisor" || p.Parent == d.init) {
			out[kind] = append(out[kind], p)
		}
	}
	return out, nil
}

// PodNamespace is the network namespace of the device's only pod of Image.
func (d *Device) PodNamespace() (*wire.Namespace, error) {
	tree, err := procs.Tree(d.init)
	if err != nil {
		return nil, err
	}
	tree = slices.DeleteFunc(tree, func(p procs.Process) bool { return filepath.Base(p.Args[0]) != "web" })
	if len(tree) != 1 {
		return nil, fmt.Errorf("bench: %d pods run on %s, not one", len(tree), d.Name)
	}
	return wire.OfProcess(tree[0].PID)
}

// kindOf goes by the name alone: k3s rewrites the titles of its processes, the
// supervisor's too, and arguments are lost.
func kindOf(args []string) string {
	title := strings.Fields(args[0])
	if len(title) == 0 {
		return ""
	}
	switch name := filepath.Base(title[0]); {
	case name == "rivulet-engine":
		return "engine"
	case name == "rivulet-tunnel":
		return "tunnel"
	case strings.HasPrefix(name, "containerd-shim"):
		return "shim"
	case name == "rivulet-tenant":
		return "tenant"
	case name == "containerd":
		return "containerd"
	case name == "rivulet":
		return "supervisor"
	}
	return ""
}

// PoweredOn is when the device's first process was started: what the init ran.
func (d *Device) PoweredOn() (time.Time, error) {
	tree, err := procs.Tree(d.init)
	if err != nil {
		return time.Time{}, err
	}
	tree = slices.DeleteFunc(tree, func(p procs.Process) bool { return p.Parent != d.init })
	if len(tree) == 0 {
		return time.Time{}, fmt.Errorf("bench: nothing runs on %s; its log is %s", d.Name, d.Log())
	}
	first := slices.MinFunc(tree, func(a, b procs.Process) int { return int(a.Started - b.Started) })
	return first.StartTime(), nil
}
