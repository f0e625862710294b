// Package mainjob is Rivulet's main job as a story: a web application that does
// not fit on one device runs on several, and is used from home as if it ran
// there. The demo prints it, the end-to-end test asserts it.
package mainjob

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"sort"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"rivulet/test/harness/await"
)

// What the story is played with.
const (
	Image     = "rivulet.dev/demo-web:1"
	Namespace = "lab"
	App       = "web"
	Replicas  = 10
	// CPU is what a replica asks for; with ReserveCPU kept from pods, a device has
	// room for five.
	CPU = "100m"
)

// ReserveCPU leaves half a core of this machine to the pods of a device.
func ReserveCPU() string { return fmt.Sprintf("%dm", runtime.NumCPU()*1000-500) }

// Device is what the story needs of a device.
type Device interface {
	// Run runs a program in the device and returns its standard output; the error
	// holds what it wrote to standard error.
	Run(ctx context.Context, args ...string) (string, error)
}

// Story is the main job on one home device.
type Story struct {
	Home Device
	// Tell is called with each step, for people; it may be nil.
	Tell func(format string, args ...any)
	// First is with how many replicas the application begins; 0 stands for Replicas.
	First int
	// User is who the application runs as; 0 stands for who the image says.
	User int64
}

func (s *Story) tell(format string, args ...any) {
	if s.Tell != nil {
		s.Tell(format, args...)
	}
}

// Kubectl runs kubectl at home.
func (s *Story) Kubectl(ctx context.Context, args ...string) (string, error) {
	return s.Home.Run(ctx, append([]string{"rivulet", "kubectl"}, args...)...)
}

func (s *Story) manifest() string {
	rules := "{}"
	if s.User != 0 {
		rules = fmt.Sprintf(`{"runAsUser":%d}`, s.User)
	}
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"List","items":[
{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":%[1]q,"namespace":%[2]q},"spec":{"replicas":%[3]d,
 "selector":{"matchLabels":{"app":%[1]q}},"template":{"metadata":{"labels":{"app":%[1]q}},"spec":{
 "terminationGracePeriodSeconds":1,
 "containers":[{"name":"web","image":%[4]q,"securityContext":%[6]s,"ports":[{"name":"http","containerPort":8080}],
  "resources":{"requests":{"cpu":%[5]q,"memory":"16Mi"}},
  "readinessProbe":{"httpGet":{"path":"/ready","port":"http"},"periodSeconds":1}}]}}}},
{"apiVersion":"v1","kind":"Service","metadata":{"name":%[1]q,"namespace":%[2]q},"spec":{
 "selector":{"app":%[1]q},"ports":[{"name":"http","port":80,"targetPort":"http"}]}}]}`, App, Namespace, s.first(), Image, CPU, rules)
}

func (s *Story) first() int {
	if s.First != 0 {
		return s.First
	}
	return Replicas
}

// Scale has n replicas from now on.
func (s *Story) Scale(ctx context.Context, n int) error {
	s.tell("kubectl scale: %d replicas", n)
	_, err := s.Kubectl(ctx, "scale", "deployment", App, "-n", Namespace, fmt.Sprintf("--replicas=%d", n))
	return err
}

// Deploy offloads the namespace and creates the application.
func (s *Story) Deploy(ctx context.Context) error {
	s.tell("rivulet offload %s --create", Namespace)
	if _, err := s.Home.Run(ctx, "rivulet", "offload", Namespace, "--create"); err != nil {
		return err
	}
	s.tell("kubectl apply: Deployment %s with %d replicas of %s CPU, and a Service", App, s.first(), CPU)
	_, err := s.Home.Run(ctx, "sh", "-c", `printf %s "$1" | rivulet kubectl apply -f -`, "apply", s.manifest())
	return err
}

// Pods lists the application's pods as home sees them, by name.
func (s *Story) Pods(ctx context.Context) ([]corev1.Pod, error) {
	out, err := s.Kubectl(ctx, "get", "pods", "-n", Namespace, "-l", "app="+App, "-o", "json")
	if err != nil {
		return nil, err
	}
	var list corev1.PodList
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		return nil, fmt.Errorf("mainjob: kubectl's answer: %w", err)
	}
	sort.Slice(list.Items, func(i, j int) bool { return list.Items[i].Name < list.Items[j].Name })
	return list.Items, nil
}

// Ready reports a pod's Ready condition.
func Ready(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// Where counts ready pods by node.
func Where(pods []corev1.Pod) map[string]int {
	n := map[string]int{}
	for i := range pods {
		if Ready(&pods[i]) && pods[i].DeletionTimestamp == nil {
			n[pods[i].Spec.NodeName]++
		}
	}
	return n
}

// WaitReady waits until n pods exist and all are ready.
func (s *Story) WaitReady(ctx context.Context, n int) ([]corev1.Pod, error) {
	var pods []corev1.Pod
	last := -1
	err := await.Until(ctx, func() error {
		var err error
		if pods, err = s.Pods(ctx); err != nil {
			return err
		}
		ready := 0
		for _, c := range Where(pods) {
			ready += c
		}
		if ready != last {
			s.tell("%d of %d replicas ready", ready, n)
			last = ready
		}
		if ready != n || len(pods) != n {
			return fmt.Errorf("%d of %d pods are ready: %s", ready, n, describe(pods))
		}
		return nil
	})
	return pods, err
}

func describe(pods []corev1.Pod) string {
	var b strings.Builder
	for i := range pods {
		p := &pods[i]
		if !Ready(p) {
			fmt.Fprintf(&b, "%s on %q %s %s; ", p.Name, p.Spec.NodeName, p.Status.Phase, p.Status.Message)
		}
	}
	return b.String()
}

// Ask sends n requests to url from inside a pod and returns who answered how often.
func (s *Story) Ask(ctx context.Context, pod, url string, n int) (map[string]int, error) {
	out, err := s.Kubectl(ctx, "exec", "-n", Namespace, pod, "--", "web", "get", "-n", fmt.Sprint(n), url)
	if err != nil {
		return nil, err
	}
	var got map[string]int
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		return nil, fmt.Errorf("mainjob: answer %q: %w", out, err)
	}
	return got, nil
}

// AskAll asks the Service by name from inside a pod until each of want answered
// at least once.
func (s *Story) AskAll(ctx context.Context, pod, name string, want []corev1.Pod) (map[string]int, error) {
	total := map[string]int{}
	err := await.Until(ctx, func() error {
		got, err := s.Ask(ctx, pod, "http://"+name+"/", 50)
		if err != nil {
			return err
		}
		for who, n := range got {
			total[who] += n
		}
		var silent []string
		for _, p := range want {
			if total[p.Name] == 0 {
				silent = append(silent, p.Name)
			}
		}
		if len(silent) > 0 {
			return fmt.Errorf("mainjob: through %s nobody heard of %s", name, strings.Join(silent, ", "))
		}
		return nil
	})
	return total, err
}

// Endpoints returns the addresses behind the Service as home sees them.
func (s *Story) Endpoints(ctx context.Context) ([]string, error) {
	out, err := s.Kubectl(ctx, "get", "endpointslices", "-n", Namespace, "-l", "kubernetes.io/service-name="+App, "-o", "json")
	if err != nil {
		return nil, err
	}
	var list discoveryv1.EndpointSliceList
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		return nil, fmt.Errorf("mainjob: kubectl's answer: %w", err)
	}
	var addrs []string
	for _, slice := range list.Items {
		for _, e := range slice.Endpoints {
			addrs = append(addrs, e.Addresses...)
		}
	}
	return addrs, nil
}

// ImageFile is where devices find the application's image: beside the binary.
const ImageFile = "/opt/rivulet/demo-web.tar"

// ImportImage puts the application's image into every device, for pods of peers, too.
func ImportImage[D Device](ctx context.Context, devices []D) error {
	for _, d := range devices {
		if _, err := d.Run(ctx, "rivulet", "ctr", "images", "import", "--label", "rivulet.dev/share=true", ImageFile); err != nil {
			return err
		}
	}
	return nil
}

// Ends returns one pod that runs at home and one that runs away.
func Ends(pods []corev1.Pod) (home, away *corev1.Pod, err error) {
	for i := range pods {
		if p := &pods[i]; p.Spec.NodeName == "a" {
			home = p
		} else {
			away = p
		}
	}
	if home == nil || away == nil {
		return nil, nil, fmt.Errorf("mainjob: the pods run on %v; some should run on a and some elsewhere", Where(pods))
	}
	return home, away, nil
}
