package pod

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/ptr"

	"rivulet/offload/consumer/pod/translate"
	"rivulet/offload/consumer/pod/translate/translatetest"
	"rivulet/offload/homeapi"
	"rivulet/offload/policy"
)

func service(ns, name, ip string, ports ...corev1.ServicePort) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}, Spec: corev1.ServiceSpec{ClusterIP: ip, Ports: ports}}
}

// What a pod is told of Services when its provider translates: home's cluster IPs, as a
// kubelet at home would tell them.
func TestAddressesOfHome(t *testing.T) {
	home := fake.NewClientset(service("default", "kubernetes", "10.43.0.1", corev1.ServicePort{Name: "https", Port: 443}),
		service("lab", "my-db", "10.43.5.5", corev1.ServicePort{Name: "sql-port", Port: 5432}, corev1.ServicePort{Name: "gossip", Port: 7000, Protocol: corev1.ProtocolUDP}),
		service("lab", "headless", "None", corev1.ServicePort{Port: 1}), service("lab", "alias", ""), service("other", "far", "10.43.6.6", corev1.ServicePort{Port: 1}))
	events := record.NewFakeRecorder(10)
	there := fake.NewClientset()
	c, in := New(Config{Home: Home{Client: home, ID: "home-id", Recorder: events}}), newShown(there).twin
	theirs := func(name string) corev1.EnvFromSource {
		return corev1.EnvFromSource{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}}}
	}
	wrap := func(change func(*corev1.Pod)) (*corev1.Pod, *corev1.PodTemplateSpec) {
		t.Helper()
		p := translatetest.Web()
		p.Namespace = "lab"
		p.Annotations = map[string]string{policy.HomeAddressesAnnotation: "a user's", "note": "kept"}
		p.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{theirs("settings")}
		p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "URL", Value: "http://$(MY_DB_SERVICE_HOST)"}}
		change(p)
		w, err := translate.Wrap(p, "home-id", "10.43.7.7")
		if err != nil {
			t.Fatal(err)
		}
		return p, w.Template()
	}
	send := func(change func(*corev1.Pod)) *corev1.PodTemplateSpec {
		t.Helper()
		p, is := wrap(change)
		if notes := is.Annotations; notes[policy.HomeAddressesAnnotation] != "" || notes["note"] != "kept" {
			t.Fatalf("whoever makes the pod says what its provider does: %v", notes)
		}
		if err := c.withHomeAddresses(t.Context(), p, in, is, policy.HomeAddressesOfServices); err != nil {
			t.Fatal(err)
		}
		return is
	}
	told := func() map[string]string {
		t.Helper()
		m, err := there.CoreV1().ConfigMaps("lab-a").Get(t.Context(), translate.ServicesMap, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return m.Data
	}
	got := send(func(*corev1.Pod) {})
	want := map[string]string{
		"MY_DB_SERVICE_HOST": "10.43.5.5", "MY_DB_SERVICE_PORT": "5432", "MY_DB_SERVICE_PORT_SQL_PORT": "5432", "MY_DB_SERVICE_PORT_GOSSIP": "7000",
		"MY_DB_PORT":          "tcp://10.43.5.5:5432",
		"MY_DB_PORT_5432_TCP": "tcp://10.43.5.5:5432", "MY_DB_PORT_5432_TCP_PROTO": "tcp", "MY_DB_PORT_5432_TCP_PORT": "5432", "MY_DB_PORT_5432_TCP_ADDR": "10.43.5.5",
		"MY_DB_PORT_7000_UDP": "udp://10.43.5.5:7000", "MY_DB_PORT_7000_UDP_PROTO": "udp", "MY_DB_PORT_7000_UDP_PORT": "7000", "MY_DB_PORT_7000_UDP_ADDR": "10.43.5.5",
	}
	if env := told(); !maps.Equal(env, want) {
		t.Errorf("variables\n%v, want\n%v", env, want)
	}
	// The lowest precedence: any other source comes later, and no variable is the container's own.
	own := got.Spec.Containers[0]
	if !reflect.DeepEqual(own.EnvFrom, []corev1.EnvFromSource{theirs(translate.ServicesMap), theirs(homeapi.Variables), theirs("settings")}) || len(own.Env) != 1 {
		t.Errorf("sources %+v, variables %+v", own.EnvFrom, own.Env)
	}
	aliases := got.Spec.HostAliases
	if got.Annotations[policy.HomeAddressesAnnotation] == "" || ptr.Deref(got.Spec.EnableServiceLinks, true) || len(aliases) != 1 || aliases[0].IP != "10.43.0.1" {
		t.Errorf("annotations %v, links %v, aliases %v", got.Annotations, got.Spec.EnableServiceLinks, aliases)
	}
	// What it was told stays, whatever home would tell another one now.
	_, is := wrap(func(*corev1.Pod) {})
	translate.WithSameAddresses(is, got)
	if is.Annotations[policy.HomeAddressesAnnotation] == "" || is.Spec.HostAliases[0].IP != "10.43.0.1" {
		t.Errorf("a running pod would be changed: %v %v", is.Annotations, is.Spec.HostAliases)
	}

	// A Service that is made later is told to the next pod.
	if err := home.Tracker().Add(service("lab", "late", "10.43.5.6", corev1.ServicePort{Port: 1})); err != nil {
		t.Fatal(err)
	}
	send(func(*corev1.Pod) {})
	if told()["LATE_SERVICE_HOST"] != "10.43.5.6" {
		t.Errorf("a Service of before the pod is not told: %v", told())
	}
	// What somebody deleted comes back when a container waits for it.
	if err := there.CoreV1().ConfigMaps("lab-a").Delete(t.Context(), translate.ServicesMap, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	waits := &corev1.Pod{Spec: got.Spec, Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{
		State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CreateContainerConfigError"}}}}}}
	if err := c.keepServices(t.Context(), in, waits); err != nil || told()["LATE_SERVICE_HOST"] == "" {
		t.Errorf("%v (%v)", told(), err)
	}

	// No variables where the pod wants none, or where there are too many.
	none := send(func(p *corev1.Pod) { p.Spec.EnableServiceLinks = ptr.To(false) })
	var ports []corev1.ServicePort
	for i := range 100 {
		ports = append(ports, corev1.ServicePort{Name: fmt.Sprint("p", i), Port: int32(i + 1)})
	}
	for i := range 60 {
		if err := home.Tracker().Add(service("lab", fmt.Sprint("a-name-of-some-length-", i), "10.43.8.8", ports...)); err != nil {
			t.Fatal(err)
		}
	}
	many := send(func(*corev1.Pod) {})
	for _, got := range []*corev1.PodTemplateSpec{none, many} {
		if from := got.Spec.Containers[0].EnvFrom; !reflect.DeepEqual(from, []corev1.EnvFromSource{theirs(homeapi.Variables), theirs("settings")}) {
			t.Errorf("it takes %+v", from)
		}
	}
	select {
	case e := <-events.Events:
		if !strings.Contains(e, "OffloadNoServiceLinks") {
			t.Error(e)
		}
	default:
		t.Error("nobody says that there are too many")
	}
}

// What a pod is told of its own address when its provider gives it the one at home.
func TestAddressOfItsOwn(t *testing.T) {
	c := New(Config{Home: Home{Client: fake.NewClientset(service("default", "kubernetes", "10.43.0.1")), Recorder: record.NewFakeRecorder(10)}})
	p := translatetest.Web()
	field := func(name, path string) corev1.EnvVar {
		return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: path}}}
	}
	env := []corev1.EnvVar{field("IP", "status.podIP"), field("IPS", "status.podIPs"), field("HOST", "status.hostIP")}
	p.Spec.Containers[0].Env = env
	p.Spec.InitContainers = []corev1.Container{{Name: "own-hosts", Env: []corev1.EnvVar{env[0]}, VolumeMounts: []corev1.VolumeMount{{Name: "mine", MountPath: "/etc//hosts"}}}}
	w, err := translate.Wrap(p, "home-id", "10.43.7.7")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.withHomeAddresses(t.Context(), p, newShown(fake.NewClientset()).twin, w.Template(), policy.HomeAddressesOfPods); err != nil {
		t.Fatal(err)
	}
	s := w.Template().Spec
	if v := s.Volumes[len(s.Volumes)-1]; v.Name != policy.HomeVolume || v.EmptyDir == nil || w.Template().Annotations[policy.HomeAddressesAnnotation] != policy.HomeAddressesOfPods {
		t.Errorf("volume %v, annotations %v", v, w.Template().Annotations)
	}
	told := func(c corev1.Container) (n int) {
		for _, v := range c.Env {
			if v.ValueFrom != nil && v.ValueFrom.FileKeyRef != nil && *v.ValueFrom.FileKeyRef == (corev1.FileKeySelector{VolumeName: policy.HomeVolume, Path: "address", Key: "POD_IP"}) && v.ValueFrom.FieldRef == nil {
				n++
			}
		}
		return n
	}
	mounted := func(c corev1.Container) bool {
		return slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool {
			return m.Name == policy.HomeVolume && m.MountPath == "/etc/hosts" && m.SubPath == "hosts"
		})
	}
	if told(s.Containers[0]) != 2 || told(s.InitContainers[0]) != 1 || !mounted(s.Containers[0]) || mounted(s.InitContainers[0]) {
		t.Errorf("containers %+v, init containers %+v", s.Containers, s.InitContainers)
	}
	if p.Spec.Containers[0].Env[0].ValueFrom.FieldRef == nil {
		t.Error("home's pod was changed")
	}
}
