package vcluster

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"

	"rivulet/appliance/engine/controlplane"
	"rivulet/fabric/changes"
	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
	"rivulet/offload/policy"
	"rivulet/offload/provider"
	"rivulet/offload/provider/tenancy"
	"rivulet/test/harness/apiserver"
	"rivulet/test/harness/await"
)

// nobody is a fabric without peers.
type nobody struct{ changes.Signal }

func (*nobody) Links() []peer.Link                  { return nil }
func (*nobody) Link(peer.ID) (l peer.Link, ok bool) { return l, ok }
func (*nobody) Peerings() (l []peer.Link, u []peer.Unlinked) {
	return l, u
}
func (*nobody) Departed() []peer.ID         { return nil }
func (*nobody) Handle(string, http.Handler) {}

// connect opens a connection to a virtual cluster's host as a user.
func connect(path string, uid int) (net.Conn, error) {
	dir, err := os.Open(filepath.Dir(path)) // the user may not walk there
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	type result struct {
		conn net.Conn
		err  error
	}
	done := make(chan result)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine, and its user with it
		if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); e != 0 {
			done <- result{err: e}
			return
		}
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			done <- result{err: err}
			return
		}
		if err := unix.Connect(fd, &unix.SockaddrUnix{Name: fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path))}); err != nil {
			unix.Close(fd)
			done <- result{err: err}
			return
		}
		f := os.NewFile(uintptr(fd), "host")
		defer f.Close()
		c, err := net.FileConn(f)
		done <- result{c, err}
	}()
	r := <-done
	return r.conn, r.err
}

// TestPods is the story of pods of a virtual cluster: they run at the host, go on while it sleeps, and go with it.
func TestPods(t *testing.T) {
	t.Parallel()
	host := apiserver.Start(t) // it ends after the device
	apiserver.StartKubelet(t, host, "host-node")
	d := newDevice(t, apiserver.Binary(t))
	var lan changes.Signal
	var ports atomic.Pointer[tenancy.Ports]
	ports.Store(&tenancy.Ports{})
	lent, err := provider.New(provider.Config{Peers: &nobody{}, Hosted: d.k, Config: tenancy.Config{Local: host.Config, PeerID: rpc.PeerID, Log: d.cfg.Log,
		LAN: &tenancy.LAN{Ports: func() tenancy.Ports { return *ports.Load() }, Address: func() netip.Addr { return netip.MustParseAddr("192.0.2.7") }, Changed: lan.Changed}}})
	must(t, err)
	ctx, stop := context.WithCancel(t.Context())
	lending := make(chan struct{})
	go func() { defer close(lending); _ = lent.Run(ctx) }()
	defer func() { stop(); <-lending }()
	d.k.Attach(lent.Twins(), tenancy.Room(lent.Twins()))

	v := d.create(Spec{Name: "dan", Sleep: shortSleep})
	client := d.client("dan")
	id := func() peer.ID {
		c, err := d.k.get("dan")
		must(t, err)
		return c.record().ID
	}()
	twinOf := func(home string) string { return home + "-dan-" + id.Short() }
	began := time.Now()
	_, err = client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "lab"}}, metav1.CreateOptions{})
	must(t, err)
	one := int32(1)
	labels := map[string]string{"app": "web"}
	_, err = client.AppsV1().Deployments("lab").Create(ctx, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: appsv1.DeploymentSpec{
		Replicas: &one, Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "web:1", Ports: []corev1.ContainerPort{{ContainerPort: 80}}}}}}}}, metav1.CreateOptions{})
	must(t, err)
	_, err = client.CoreV1().Services("lab").Create(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: corev1.ServiceSpec{Selector: labels, Ports: []corev1.ServicePort{{Port: 80}}}}, metav1.CreateOptions{})
	must(t, err)

	var pod corev1.Pod
	running := func(ctx context.Context) string {
		list, err := client.CoreV1().Pods("lab").List(ctx, metav1.ListOptions{})
		if err != nil {
			return err.Error()
		}
		if len(list.Items) != 1 || list.Items[0].Status.Phase != corev1.PodRunning || list.Items[0].DeletionTimestamp != nil {
			for _, p := range list.Items {
				err = fmt.Errorf("%s on %q: %s %v", p.Name, p.Spec.NodeName, p.Status.Phase, p.Status.Conditions)
			}
			return fmt.Sprintf("%d pods, %v", len(list.Items), err)
		}
		pod = list.Items[0]
		return ""
	}
	await.Empty(d.t, patience, "the pod runs", running)
	t.Logf("namespace made to pod Running: %s; %d MB private", time.Since(began).Round(time.Millisecond), d.is("dan", Awake).Private>>20)
	away := func(ctx context.Context) []corev1.Pod {
		list, err := host.Client.CoreV1().Pods("").List(ctx, metav1.ListOptions{LabelSelector: policy.OriginLabel + "=" + string(id)})
		must(t, err)
		return list.Items
	}
	if pods := away(ctx); len(pods) != 1 || pods[0].Namespace != twinOf("lab") || pods[0].Spec.NodeName != "host-node" || pods[0].Status.PodIP != pod.Status.PodIP {
		t.Errorf("at the host are %d pods: %+v; at home it has %s", len(pods), pods, pod.Status.PodIP)
	}
	if nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{}); err != nil || len(nodes.Items) != 1 || pod.Spec.NodeName != nodes.Items[0].Name {
		t.Errorf("the pod is on %q, nodes are %v (%v)", pod.Spec.NodeName, nodes, err)
	}

	t.Run("logs", func(t *testing.T) {
		text, err := client.CoreV1().Pods("lab").GetLogs(pod.Name, &corev1.PodLogOptions{}).DoRaw(ctx)
		if err != nil || !strings.HasPrefix(string(text), "log of "+pod.Name+"/web") {
			t.Errorf("%q %v", text, err)
		}
	})
	t.Run("exec", func(t *testing.T) {
		r := client.CoreV1().RESTClient().Post().Resource("pods").Namespace("lab").Name(pod.Name).SubResource("exec").
			VersionedParams(&corev1.PodExecOptions{Command: []string{"x", "0"}, Stdin: true, Stdout: true}, scheme.ParameterCodec)
		e, err := remotecommand.NewWebSocketExecutor(d.config("dan"), "GET", r.URL().String())
		must(t, err)
		var out bytes.Buffer
		if err := e.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: strings.NewReader("hello"), Stdout: &out}); err != nil || out.String() != "HELLO" {
			t.Errorf("%q %v", out.String(), err)
		}
	})
	t.Run("Service", func(t *testing.T) {
		await.Empty(d.t, patience, "the Service and its endpoint are at the host", func(ctx context.Context) string {
			if _, err := host.Client.CoreV1().Services(twinOf("lab")).Get(ctx, "web", metav1.GetOptions{}); err != nil {
				return err.Error()
			}
			slices, err := host.Client.DiscoveryV1().EndpointSlices(twinOf("lab")).List(ctx, metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=web"})
			if err != nil || len(slices.Items) != 1 || len(slices.Items[0].Endpoints) != 1 || slices.Items[0].Endpoints[0].Addresses[0] != pod.Status.PodIP {
				return fmt.Sprintf("%v %v", slices, err)
			}
			return ""
		})
	})
	t.Run("what opens nothing on the LAN is told so, and an Ingress follows once a class is lent", func(t *testing.T) {
		event := func(object, reason, words string) {
			t.Helper()
			await.Empty(d.t, patience, "the event of "+object, func(ctx context.Context) string {
				list, err := client.CoreV1().Events("lab").List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + object})
				if err != nil {
					return err.Error()
				}
				for _, e := range list.Items {
					if e.Reason == reason && strings.Contains(e.Message, words) {
						return ""
					}
				}
				return fmt.Sprintf("%+v", list.Items)
			})
		}
		for name, kind := range map[string]corev1.ServiceType{"lan": corev1.ServiceTypeLoadBalancer, "port": corev1.ServiceTypeNodePort} {
			_, err := client.CoreV1().Services("lab").Create(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name},
				Spec: corev1.ServiceSpec{Type: kind, Selector: labels, Ports: []corev1.ServicePort{{Port: 80}}}}, metav1.CreateOptions{})
			must(t, err)
			event(name, "NotOpened", "kubectl port-forward service/"+name)
		}
		// From here on the owner opens ports.
		opens := func(p tenancy.Ports) { ports.Store(&p); lan.Notify() }
		inside := func(open bool) func(context.Context) string {
			return func(ctx context.Context) string {
				for _, name := range []string{"lan", "port"} {
					s, err := client.CoreV1().Services("lab").Get(ctx, name, metav1.GetOptions{})
					if err != nil {
						return err.Error()
					}
					at, err := host.Client.CoreV1().Services(twinOf("lab")).Get(ctx, policy.LANServicePrefix+name, metav1.GetOptions{})
					if err != nil {
						return err.Error()
					}
					given := len(s.Status.LoadBalancer.Ingress) == 1 && s.Status.LoadBalancer.Ingress[0].IP == "192.0.2.7"
					port := at.Spec.Ports[0].NodePort
					if open != (port >= 31000 && port <= 31001 && port == s.Spec.Ports[0].NodePort && at.Spec.Selector["app"] == "web") || (open && name == "lan") != given {
						return fmt.Sprintf("%s: inside %+v %+v, at the host %+v %v", name, s.Spec, s.Status, at.Spec, at.Annotations)
					}
				}
				return ""
			}
		}
		opens(tenancy.Ports{First: 31000, Last: 31001})
		await.Empty(d.t, patience, "both Services are open", inside(true))
		event("lan", "Opened", "http://192.0.2.7:3100")
		changed, err := client.CoreV1().Services("lab").Get(ctx, "port", metav1.GetOptions{})
		must(t, err)
		changed.Spec.Ports = append(changed.Spec.Ports, corev1.ServicePort{Name: "more", Port: 81})
		changed.Spec.Ports[0].Name = "web"
		_, err = client.CoreV1().Services("lab").Update(ctx, changed, metav1.UpdateOptions{})
		must(t, err)
		event("port", "NotOpened", "all ports from 31000 to 31001 are in use")
		changed, err = client.CoreV1().Services("lab").Get(ctx, "port", metav1.GetOptions{})
		must(t, err)
		changed.Spec.Ports = changed.Spec.Ports[:1]
		_, err = client.CoreV1().Services("lab").Update(ctx, changed, metav1.UpdateOptions{})
		must(t, err)
		await.Empty(d.t, patience, "both Services are open again", inside(true))
		opens(tenancy.Ports{})
		await.Empty(d.t, patience, "both Services are closed", inside(false))
		event("port", "NotOpened", "vclusters.ports")
		opens(tenancy.Ports{First: 31000, Last: 31001})
		await.Empty(d.t, patience, "both Services are open once more", inside(true))
		must(t, client.CoreV1().Services("lab").Delete(ctx, "lan", metav1.DeleteOptions{}))
		await.Empty(d.t, patience, "the port ends with its Service", func(ctx context.Context) string {
			_, err := host.Client.CoreV1().Services(twinOf("lab")).Get(ctx, policy.LANServicePrefix+"lan", metav1.GetOptions{})
			if !apierrors.IsNotFound(err) {
				return fmt.Sprint(err)
			}
			return ""
		})
		exact := networkingv1.PathTypePrefix
		_, err = client.NetworkingV1().Ingresses("lab").Create(ctx, &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Name: "site"}, Spec: networkingv1.IngressSpec{Rules: []networkingv1.IngressRule{{
			Host: "dan.lab.example", IngressRuleValue: networkingv1.IngressRuleValue{HTTP: &networkingv1.HTTPIngressRuleValue{Paths: []networkingv1.HTTPIngressPath{{
				Path: "/", PathType: &exact, Backend: networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{Name: "web", Port: networkingv1.ServiceBackendPort{Number: 80}}},
			}}}}}}}}, metav1.CreateOptions{})
		must(t, err)
		event("site", "ReflectionFailed", policy.LentLabel)
		_, err = host.Client.NetworkingV1().IngressClasses().Create(ctx, &networkingv1.IngressClass{ObjectMeta: metav1.ObjectMeta{Name: "lan", Labels: map[string]string{policy.LentLabel: "kube-system"},
			Annotations: map[string]string{networkingv1.AnnotationIsDefaultIngressClass: "true"}}, Spec: networkingv1.IngressClassSpec{Controller: "example.com/lan"}}, metav1.CreateOptions{})
		must(t, err)
		await.Empty(d.t, patience, "the Ingress and its backend are at the host", func(ctx context.Context) string {
			i, err := host.Client.NetworkingV1().Ingresses(twinOf("lab")).Get(ctx, "site", metav1.GetOptions{})
			if err != nil {
				return err.Error()
			}
			i.Status.LoadBalancer.Ingress = []networkingv1.IngressLoadBalancerIngress{{IP: "192.0.2.7"}}
			if _, err = host.Client.NetworkingV1().Ingresses(i.Namespace).UpdateStatus(ctx, i, metav1.UpdateOptions{}); err != nil {
				return err.Error()
			}
			_, err = host.Client.CoreV1().Services(i.Namespace).Get(ctx, i.Spec.Rules[0].HTTP.Paths[0].Backend.Service.Name, metav1.GetOptions{})
			if err != nil {
				return err.Error()
			}
			return ""
		})
		await.Empty(d.t, patience, "its address is known inside", func(ctx context.Context) string {
			i, err := client.NetworkingV1().Ingresses("lab").Get(ctx, "site", metav1.GetOptions{})
			if err != nil || len(i.Status.LoadBalancer.Ingress) != 1 || i.Status.LoadBalancer.Ingress[0].IP != "192.0.2.7" {
				return fmt.Sprintf("%v %+v", err, i.Status)
			}
			return ""
		})
	})
	t.Run("its socket gives what a peer gets", func(t *testing.T) {
		path := filepath.Join(d.k.folder(), "dan", "root", controlplane.Host)
		as := func(uid int) *http.Client {
			return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) { return connect(path, uid) }}, Timeout: patience}
		}
		own := firstUID + int(v.Address.Port()) - firstPort
		for _, c := range []struct {
			path string
			want int
		}{
			{"/v1/namespaces", http.StatusOK},
			{"/k8s/api/v1/namespaces/" + twinOf("lab") + "/pods", http.StatusOK},
			{"/k8s/api/v1/pods", http.StatusForbidden},
			{"/k8s/api/v1/nodes", http.StatusForbidden},
			{"/k8s/api/v1/namespaces/kube-system/secrets", http.StatusForbidden},
			{"/k8s/metrics", http.StatusForbidden},
			{"/v1/vclusters", http.StatusNotFound},
			{"/v1/peers", http.StatusNotFound},
			{"/", http.StatusNotFound},
		} {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://host", nil)
			must(t, err)
			req.URL.Path = c.path
			resp, err := as(own).Do(req)
			if err != nil {
				t.Errorf("%s: %v", c.path, err)
				continue
			}
			resp.Body.Close()
			if resp.StatusCode != c.want {
				t.Errorf("%s is answered %d, want %d", c.path, resp.StatusCode, c.want)
			}
		}
		for _, uid := range []int{0, own + 1} {
			if resp, err := as(uid).Get("http://host/v1/namespaces"); err == nil {
				resp.Body.Close()
				t.Errorf("user %d is answered %d", uid, resp.StatusCode)
			}
		}
	})
	t.Run("a namespace of the cluster's own runs none, and what is too big waits", func(t *testing.T) {
		for ns, want := range map[string]string{"kube-system": "use another namespace", "lab": "too little cpu"} {
			p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "waits"}, Spec: corev1.PodSpec{AutomountServiceAccountToken: new(bool), Containers: []corev1.Container{{Name: "c", Image: "web:1"}}}}
			p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1000")}
			_, err := client.CoreV1().Pods(ns).Create(ctx, p, metav1.CreateOptions{})
			must(t, err)
			await.Empty(d.t, patience, "the pod in "+ns+" is told why it waits", func(ctx context.Context) string {
				p, err := client.CoreV1().Pods(ns).Get(ctx, "waits", metav1.GetOptions{})
				if err != nil || len(p.Status.Conditions) != 1 || !strings.Contains(p.Status.Conditions[0].Message, want) {
					return fmt.Sprintf("%v %v", err, p.Status.Conditions)
				}
				return ""
			})
			must(t, client.CoreV1().Pods(ns).Delete(ctx, "waits", metav1.DeleteOptions{}))
		}
	})
	t.Run("asleep, its pods go on", func(t *testing.T) {
		uid := away(ctx)[0].UID
		d.is("dan", Asleep)
		pods := away(ctx)
		if len(pods) != 1 || pods[0].UID != uid || pods[0].Status.Phase != corev1.PodRunning {
			t.Fatalf("at the host are %+v", pods)
		}
		// What happens meanwhile is known after the wake: the host makes another in the pod's place.
		must(t, host.Client.CoreV1().Pods(pods[0].Namespace).Delete(ctx, pods[0].Name, metav1.DeleteOptions{}))
		await.Empty(d.t, patience, "the host has another pod", func(ctx context.Context) string {
			if pods := away(ctx); len(pods) != 1 || pods[0].UID == uid || pods[0].Status.Phase != corev1.PodRunning {
				return fmt.Sprint(len(pods))
			}
			return ""
		})
		if v := d.is("dan", Asleep); v.PID != 0 {
			t.Errorf("%+v", v)
		}
		name, restarts := pod.Name, int32(-1)
		await.Empty(d.t, patience, "home knows", func(ctx context.Context) string {
			if missing := running(ctx); missing != "" {
				return missing
			}
			if pods := away(ctx); len(pods) != 1 || pod.Status.PodIP != pods[0].Status.PodIP {
				return pod.Status.PodIP
			}
			restarts = pod.Status.ContainerStatuses[0].RestartCount
			return ""
		})
		t.Logf("%s is now %s, with %d restarts", name, pod.Name, restarts)
	})
	t.Run("paused, its pods go on", func(t *testing.T) {
		must(t, d.k.Pause("dan"))
		d.is("dan", Paused)
		if _, err := os.Stat(filepath.Join(d.k.folder(), "dan", "root", controlplane.Host)); err == nil {
			t.Error("its socket is there")
		}
		if n, v := len(away(ctx)), d.is("dan", Paused); n != 1 || v.Pods != 1 {
			t.Errorf("%d pods, and %d are shown", n, v.Pods)
		}
		must(t, d.k.Resume("dan"))
		d.awake("dan")
	})
	t.Run("a pod that is deleted goes", func(t *testing.T) {
		must(t, client.AppsV1().Deployments("lab").Delete(ctx, "web", metav1.DeleteOptions{}))
		await.Empty(d.t, patience, "it is gone", func(ctx context.Context) string {
			list, err := client.CoreV1().Pods("lab").List(ctx, metav1.ListOptions{})
			if n := len(away(ctx)); err != nil || n+len(list.Items) != 0 {
				return fmt.Sprintf("%d at home, %d at the host, %v", len(list.Items), n, err)
			}
			return ""
		})
	})
	t.Run("deleted, nothing is left at the host", func(t *testing.T) {
		_, err := client.CoreV1().Pods("lab").Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "last"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "web:1"}}}}, metav1.CreateOptions{})
		must(t, err)
		await.Empty(d.t, patience, "another pod runs", running)
		must(t, d.k.Delete(ctx, "dan"))
		left, err := host.Client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{LabelSelector: policy.OriginLabel})
		must(t, err)
		if n := len(away(ctx)); n+len(left.Items) != 0 {
			t.Errorf("%d pods, %d namespaces", n, len(left.Items))
		}
		if _, err := host.Client.CoreV1().Namespaces().Get(ctx, twinOf("lab"), metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("%v", err)
		}
	})
}
