package labtest

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"

	"rivulet/appliance/api"
	"rivulet/appliance/health"
	"rivulet/fabric/peer"
	"rivulet/offload"
	"rivulet/offload/policy"
	"rivulet/test/harness/await"
	"rivulet/test/harness/lab"
	"rivulet/test/harness/mainjob"
)

const (
	kubeconfig = "/var/lib/rivulet/kubeconfig" // of a device, as the host sees it through lab.Device.Path
	echoes     = "lab-echo"                    // the namespace of the echo on each device, gone at the end
	quietLooks = 3                             // at what is in the API, a second apart, that show the same
)

// Settled waits until the lab is what tests begin from: each device knows each other one by its ID, is connected to
// it by a path, and has its virtual node; nothing is wrong with any, or it is told; and for two seconds nothing in their
// clusters has changed but leases and the nodes' own status.
func Settled(ctx context.Context, s *Suite) error {
	if err := s.each(ctx, s.known); err != nil {
		return err
	}
	if err := s.each(ctx, s.sound); err != nil {
		return err
	}
	return s.each(ctx, quiet)
}

// Echo has a pod on each device ask a pod on each other one, and be asked by it, by the name of a Service, over TCP
// and UDP. It needs the image of test/harness/mainjob on all devices, and leaves nothing.
func Echo(ctx context.Context, s *Suite) error { return s.each(ctx, s.echo) }

// each does something for all devices, one after the other.
func (s *Suite) each(ctx context.Context, f func(context.Context, *lab.Device) error) error {
	for _, d := range s.All() {
		if err := f(ctx, d); err != nil {
			return fmt.Errorf("device %s: %w", d.Name, err)
		}
	}
	return nil
}

// others are the names of all devices but one.
func (s *Suite) others(than *lab.Device) (names []string) {
	for _, d := range s.All() {
		if d.Name != than.Name {
			names = append(names, d.Name)
		}
	}
	return names
}

// known waits until a device has all others as peers, by their IDs: two may have one name.
func (s *Suite) known(ctx context.Context, d *lab.Device) error {
	return d.WaitStatus(ctx, func(ctx context.Context) (string, error) {
		var st api.Status
		if err := d.Ask(ctx, "/v1/status", &st); err != nil {
			return "", err
		}
		others := map[string]peer.ID{}
		for _, o := range s.All() {
			var of api.Status
			if o.Name == d.Name {
				continue
			}
			if err := o.Ask(ctx, "/v1/status", &of); err != nil {
				return "", err
			}
			others[o.Name] = of.ID
		}
		return unknown(st, others), nil
	})
}

// unknown says what a device's status lacks of a peering with each of the others, by name and cluster.
func unknown(st api.Status, others map[string]peer.ID) string {
	if !st.Ready {
		return "not ready: " + st.Waiting
	}
	var lacks []string
	for _, name := range slices.Sorted(maps.Keys(others)) {
		id := others[name]
		i := slices.IndexFunc(st.Peers, func(p peer.View) bool { return p.ID == id })
		switch {
		case i < 0:
			lacks = append(lacks, name+" is no peer")
		case st.Peers[i].State != peer.Connected:
			lacks = append(lacks, fmt.Sprintf("%s is %s: %s", name, st.Peers[i].State, st.Peers[i].Reason))
		case st.Peers[i].Path == "":
			lacks = append(lacks, "there is no path to "+name)
		case !slices.ContainsFunc(st.VirtualNodes, func(v offload.VirtualNode) bool { return v.ID == string(id) && v.Ready }):
			lacks = append(lacks, "the virtual node of "+name+" is not ready")
		}
	}
	return strings.Join(lacks, "; ")
}

// patience is how long a lab may take to be without problems.
const patience = 20 * time.Second

// sound waits until a device has no problem but those that the suite expects. One that stays is told, and is no reason
// for tests not to begin: some labs have one by what they are.
func (s *Suite) sound(ctx context.Context, d *lab.Device) error {
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	last := ""
	err := d.WaitStatus(limited, func(ctx context.Context) (string, error) {
		var got api.Health
		if err := d.Ask(ctx, "/v1/health", &got); err != nil {
			return "", err
		}
		last = unexpected(got.Problems, s.Expected)
		return last, nil
	})
	if err != nil && ctx.Err() == nil && last != "" {
		fmt.Fprintf(os.Stderr, "device %s begins with problems: %s\n", d.Name, last)
		return nil
	}
	return err
}

// unexpected lists the problems that are more than information, and not of the codes.
func unexpected(problems []health.Problem, codes []string) string {
	var list []string
	for _, p := range problems {
		if p.Severity != health.Info && !slices.Contains(codes, p.Code) {
			list = append(list, fmt.Sprintf("%s %s: %s", p.Code, p.Subject, p.Text))
		}
	}
	return strings.Join(list, "; ")
}

// Client speaks to a device's API server as its administrator; it does not survive a cluster made anew.
func Client(d *lab.Device) (kubernetes.Interface, error) {
	raw, err := os.ReadFile(d.Path(kubeconfig))
	if err != nil {
		return nil, err
	}
	cfg, err := clientcmd.RESTConfigFromKubeConfig(raw)
	if err != nil {
		return nil, err
	}
	cfg.Dial, cfg.QPS, cfg.Burst, cfg.Timeout = d.Dial, 500, 500, 10*time.Second
	return kubernetes.NewForConfig(cfg)
}

// quiet waits until nothing in a device's cluster changes.
func quiet(ctx context.Context, d *lab.Device) error {
	c, err := Client(d)
	if err != nil {
		return err
	}
	var last string
	same := 0
	pace := time.NewTicker(time.Second)
	defer pace.Stop()
	for {
		now, err := versions(ctx, c)
		if err != nil {
			return err
		}
		if same++; now != last {
			same, last = 1, now
		}
		if same >= quietLooks {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("its cluster is not quiet: %w", ctx.Err())
		case <-pace.C:
		}
	}
}

// versions tells of each object of the kinds that controllers write its version.
func versions(ctx context.Context, c kubernetes.Interface) (string, error) {
	var b strings.Builder
	cached := metav1.ListOptions{ResourceVersion: "0"}
	add := func(kind string, o metav1.Object) {
		fmt.Fprintf(&b, "%s %s/%s %s\n", kind, o.GetNamespace(), o.GetName(), o.GetResourceVersion())
	}
	namespaces, err := c.CoreV1().Namespaces().List(ctx, cached)
	if err != nil {
		return "", err
	}
	for i := range namespaces.Items {
		add("namespace", &namespaces.Items[i])
	}
	pods, err := c.CoreV1().Pods("").List(ctx, cached)
	if err != nil {
		return "", err
	}
	for i := range pods.Items {
		add("pod", &pods.Items[i])
	}
	services, err := c.CoreV1().Services("").List(ctx, cached)
	if err != nil {
		return "", err
	}
	for i := range services.Items {
		add("service", &services.Items[i])
	}
	slices, err := c.DiscoveryV1().EndpointSlices("").List(ctx, cached)
	if err != nil {
		return "", err
	}
	for i := range slices.Items {
		add("endpointslice", &slices.Items[i])
	}
	deployments, err := c.AppsV1().Deployments("").List(ctx, cached)
	if err != nil {
		return "", err
	}
	for i := range deployments.Items {
		add("deployment", &deployments.Items[i])
	}
	return b.String(), nil
}

// echo is Echo with the pods of one home: one there and one on each other device. Each is ready when those that it has
// to reach have answered.
func (s *Suite) echo(ctx context.Context, home *lab.Device) error {
	c, err := Client(home)
	if err != nil {
		return err
	}
	space := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: echoes, Labels: map[string]string{policy.NamespaceLabel: "any"}}}
	if _, err := c.CoreV1().Namespaces().Create(ctx, space, metav1.CreateOptions{}); err != nil {
		return err
	}
	others := s.others(home)
	for _, name := range s.names() {
		asks := []string{home.Name}
		if name == home.Name {
			asks = others
		}
		service, pod := echoOn(name, asks)
		if _, err := c.CoreV1().Services(echoes).Create(ctx, service, metav1.CreateOptions{}); err != nil {
			return err
		}
		if err := await.Until(ctx, func() error { // the policies of the namespace, and its service account, take a moment
			_, err := c.CoreV1().Pods(echoes).Create(ctx, pod, metav1.CreateOptions{})
			return err
		}); err != nil {
			return err
		}
	}
	if err := await.Until(ctx, func() error { return unready(ctx, c) }); err != nil {
		return fmt.Errorf("echo of pods: %w", err)
	}
	if err := c.CoreV1().Namespaces().Delete(ctx, echoes, metav1.DeleteOptions{}); err != nil {
		return err
	}
	return await.Until(ctx, func() error { return s.echoed(ctx, c) })
}

func (s *Suite) names() (names []string) {
	for _, d := range s.All() {
		names = append(names, d.Name)
	}
	return names
}

// echoOn is the pod on a device and its Service, which lead to it before it is ready: it is ready only when it has
// asked the others.
func echoOn(device string, asks []string) (*corev1.Service, *corev1.Pod) {
	name := func(device string) string { return "on-" + device }
	meta := metav1.ObjectMeta{Name: name(device), Labels: map[string]string{"echo": device}}
	service := &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{Selector: meta.Labels, PublishNotReadyAddresses: true}}
	for _, p := range []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP} {
		service.Spec.Ports = append(service.Spec.Ports, corev1.ServicePort{Name: strings.ToLower(string(p)), Protocol: p, Port: 8080, TargetPort: intstr.FromInt32(8080)})
	}
	var all []string
	for _, other := range asks {
		all = append(all, fmt.Sprintf("web get http://%s:8080/ && web udp %s:8080 echo", name(other), name(other)))
	}
	return service, &corev1.Pod{ObjectMeta: meta, Spec: corev1.PodSpec{
		NodeSelector: map[string]string{corev1.LabelHostname: device}, TerminationGracePeriodSeconds: ptr.To[int64](1),
		AutomountServiceAccountToken: ptr.To(false),
		Containers: []corev1.Container{{Name: "web", Image: mainjob.Image, ReadinessProbe: &corev1.Probe{
			PeriodSeconds: 1, TimeoutSeconds: 10, ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{
				Command: []string{"/bin/busybox", "sh", "-c", strings.Join(all, " && ")}}}}}},
	}}
}

// unready says which pods of the echo are not ready.
func unready(ctx context.Context, c kubernetes.Interface) error {
	pods, err := c.CoreV1().Pods(echoes).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return err
	}
	var list []string
	for i := range pods.Items {
		if p := &pods.Items[i]; !mainjob.Ready(p) {
			list = append(list, fmt.Sprintf("%s on %q is %s %s", p.Name, p.Spec.NodeName, p.Status.Phase, p.Status.Message))
		}
	}
	if len(list) > 0 || len(pods.Items) == 0 {
		return fmt.Errorf("of %d pods are not ready: %s", len(pods.Items), strings.Join(list, "; "))
	}
	return nil
}

// echoed says what of the echo of one home is still there, at home or as a twin elsewhere.
func (s *Suite) echoed(ctx context.Context, home kubernetes.Interface) error {
	switch _, err := home.CoreV1().Namespaces().Get(ctx, echoes, metav1.GetOptions{}); {
	case err == nil:
		return fmt.Errorf("namespace %s is still there", echoes)
	case !apierrors.IsNotFound(err):
		return err
	}
	for _, d := range s.All() {
		c, err := Client(d)
		if err != nil {
			return err
		}
		twins, err := c.CoreV1().Namespaces().List(ctx, metav1.ListOptions{LabelSelector: policy.OriginLabel})
		if err != nil {
			return err
		}
		for _, ns := range twins.Items {
			if ns.Annotations[policy.HomeNamespaceAnnotation] == echoes {
				return fmt.Errorf("%s has the twin %s of namespace %s", d.Name, ns.Name, echoes)
			}
		}
	}
	return nil
}
