package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"

	"rivulet/appliance/vcluster"
	"rivulet/test/harness/await"
	"rivulet/test/harness/lab"
	"rivulet/test/harness/mainjob"
)

const (
	courseLimit   = 20 * time.Minute
	courseDevices = 3
	kubeconfigs   = "/root/course" // on each device
)

// courseFile is the teacher's, with a name and the number of members.
const courseFile = `apiVersion: rivulet.dev/v1alpha1
kind: Course
metadata: {name: %s}
spec:
  count: %d
  template: {quota: {cpu: 400m, memory: 512Mi, pods: 5}, sleep: 30m}
  cap: {cpu: 1, pods: 40}
`

// student has a virtual cluster of a course, and its kubeconfig.
type student struct {
	name, course string
	d            *lab.Device
	cfg          *rest.Config
	api          kubernetes.Interface
}

func (s *student) file() string { return kubeconfigs + "/" + s.name + ".kubeconfig" }

// class is all students, on all devices.
type class struct {
	students []*student
	devices  []*lab.Device
	tell     func(string, ...any)
}

// makeCourse makes a lab, which stays, and plays a course with that many students on it.
func makeCourse(ctx context.Context, dir, binary string, devices, students int, tell func(string, ...any)) error {
	l, err := lab.Up(ctx, lab.Options{Dir: dir, Binary: binary, Devices: devices, Tell: tell})
	if err != nil {
		return err
	}
	all, err := l.Devices()
	if err != nil {
		return err
	}
	tell("waiting for k3s on each device")
	for _, d := range all {
		if err := d.WaitReady(ctx); err != nil {
			return err
		}
	}
	if err := mainjob.ImportImage(ctx, all); err != nil {
		return err
	}
	return playCourse(ctx, all, students, tell)
}

// playCourse plays a course from its file to its end. The first device has two students at least.
func playCourse(ctx context.Context, devices []*lab.Device, students int, tell func(string, ...any)) error {
	c, err := enroll(ctx, devices, students, tell)
	if err != nil {
		return err
	}
	for _, part := range []func(context.Context) error{c.firstApplication, c.sleepAndWake, c.wreck, c.breakOut, c.end} {
		if err := part(ctx); err != nil {
			return err
		}
	}
	return nil
}

// enroll makes a course on each device, and a kubeconfig for each of its members.
func enroll(ctx context.Context, devices []*lab.Device, students int, tell func(string, ...any)) (*class, error) {
	each := (students + len(devices) - 1) / len(devices)
	if each < 2 {
		return nil, fmt.Errorf("demo: %d students are too few for %d devices; choose %d at least", students, len(devices), len(devices)+1)
	}
	c := &class{devices: devices, tell: tell}
	for i := range students {
		d := devices[i/each]
		course := "db-" + d.Name
		c.students = append(c.students, &student{name: fmt.Sprintf("%s-%02d", course, i%each+1), course: course, d: d})
	}
	tell("the teacher applies a file on each device: rivulet vcluster create -f course.yaml")
	fmt.Printf("\n%s\n", fmt.Sprintf(courseFile, "db-a", each))
	begun := time.Now()
	err := c.onEach(func(d *lab.Device, members int) error {
		file := fmt.Sprintf(courseFile, "db-"+d.Name, members)
		if _, err := d.Run(ctx, "sh", "-c", `printf %s "$1" | rivulet vcluster create -f -`, "sh", file); err != nil {
			return err
		}
		_, err := d.Run(ctx, "rivulet", "course", "kubeconfigs", "db-"+d.Name, "--dir", kubeconfigs)
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, s := range c.students {
		if s.cfg, err = clientcmd.BuildConfigFromFlags("", s.d.Path(s.file())); err != nil {
			return nil, err
		}
		s.cfg.Dial, s.cfg.Timeout = s.d.Dial, 3*time.Minute
		if s.api, err = kubernetes.NewForConfig(s.cfg); err != nil {
			return nil, err
		}
	}
	tell("%d clusters can be used, and their kubeconfigs are there: %s", students, since(begun))
	return c, nil
}

func since(begun time.Time) string { return fmt.Sprintf("%.1f s", time.Since(begun).Seconds()) }

// onEach calls f for all devices at once, with the number of students there.
func (c *class) onEach(f func(d *lab.Device, members int) error) error {
	var all errgroup.Group
	for _, d := range c.devices {
		n := 0
		for _, s := range c.students {
			if s.d == d {
				n++
			}
		}
		if n > 0 {
			all.Go(func() error { return f(d, n) })
		}
	}
	return all.Wait()
}

// together calls f for students at once, and returns how long the first, the middle and the last one took.
func together(students []*student, f func(s *student) error) (string, error) {
	took, errs := make([]time.Duration, len(students)), make([]error, len(students))
	begun := time.Now()
	var all errgroup.Group
	for i, s := range students {
		all.Go(func() error {
			if err := f(s); err != nil {
				errs[i] = fmt.Errorf("demo: %s: %w", s.name, err)
			}
			took[i] = time.Since(begun)
			return nil
		})
	}
	_ = all.Wait() // errs has them
	slices.Sort(took)
	return fmt.Sprintf("the first %.1f s, the middle one %.1f s, the last %.1f s", took[0].Seconds(), took[len(took)/2].Seconds(), took[len(took)-1].Seconds()), errors.Join(errs...)
}

// application is a student's first.
func application() *appsv1.Deployment {
	labels := map[string]string{"app": "web"}
	return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: appsv1.DeploymentSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: ptr.To[int64](1), Containers: []corev1.Container{container()}}},
	}}
}

func container() corev1.Container {
	return corev1.Container{Name: "web", Image: mainjob.Image, Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("20m"), corev1.ResourceMemory: resource.MustParse("16Mi")}}}
}

// deploy makes the application, and waits until it runs.
func (s *student) deploy(ctx context.Context) error {
	if _, err := s.api.AppsV1().Deployments("default").Create(ctx, application(), metav1.CreateOptions{}); err != nil {
		return err
	}
	return await.Until(ctx, func() error { return s.answers(ctx) })
}

// pod is the one of its application.
func (s *student) pod(ctx context.Context) (*corev1.Pod, error) {
	list, err := s.api.CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: "app=web"})
	if err != nil {
		return nil, err
	}
	for i := range list.Items {
		if p := &list.Items[i]; mainjob.Ready(p) && p.DeletionTimestamp == nil {
			return p, nil
		}
	}
	return nil, errors.New("no pod of its application is ready")
}

// answers asks its application by way of its API server.
func (s *student) answers(ctx context.Context) error {
	p, err := s.pod(ctx)
	if err != nil {
		return err
	}
	out, err := s.api.CoreV1().Pods("default").ProxyGet("http", p.Name, "8080", "/", nil).DoRaw(ctx)
	if err == nil && !strings.Contains(string(out), p.Name) {
		err = fmt.Errorf("its application answers %.60q", out)
	}
	return err
}

func (c *class) firstApplication(ctx context.Context) error {
	c.tell("all %d students deploy their first application, at the same moment", len(c.students))
	took, err := together(c.students, func(s *student) error { return s.deploy(ctx) })
	if err != nil {
		return err
	}
	c.tell("each application runs and answers: %s", took)
	return nil
}

// views are the virtual clusters of a device.
func views(ctx context.Context, d *lab.Device) (out []vcluster.View, err error) {
	raw, err := d.Run(ctx, "rivulet", "vcluster", "list", "-o", "json")
	if err != nil {
		return nil, err
	}
	return out, json.Unmarshal([]byte(raw), &out)
}

// state waits until all virtual clusters are in it, and returns the memory of their processes.
func (c *class) state(ctx context.Context, want vcluster.State) (mib int64, err error) {
	err = await.Until(ctx, func() error {
		mib = 0
		for _, d := range c.devices {
			all, err := views(ctx, d)
			if err != nil {
				return err
			}
			for _, v := range all {
				if mib += v.Private >> 20; v.State != want {
					return fmt.Errorf("demo: %s is %s", v.Name, v.State)
				}
			}
		}
		return nil
	})
	return mib, err
}

// running counts the applications' pods at the hosts.
func (c *class) running(ctx context.Context) (n int, err error) {
	for _, d := range c.devices {
		out, err := d.Kubectl(ctx, "get", "pods", "-A", "-l", "app=web", "--field-selector", "status.phase=Running", "-o", "name")
		if err != nil {
			return 0, err
		}
		n += len(strings.Fields(out))
	}
	return n, nil
}

func (c *class) sleepAndWake(ctx context.Context) error {
	awake, err := c.state(ctx, vcluster.Awake)
	if err != nil {
		return err
	}
	begun := time.Now()
	if err := c.onEach(func(d *lab.Device, _ int) error {
		_, err := d.Run(ctx, "rivulet", "course", "sleep", "db-"+d.Name)
		return err
	}); err != nil {
		return err
	}
	asleep, err := c.state(ctx, vcluster.Asleep)
	if err != nil {
		return err
	}
	pods, err := c.running(ctx)
	if err != nil {
		return err
	}
	if pods != len(c.students) {
		return fmt.Errorf("demo: %d applications run while all sleep, want %d", pods, len(c.students))
	}
	c.tell("rivulet course sleep: all sleep after %s; control planes had %d MiB and have %d MiB; %d applications go on", since(begun), awake, asleep, pods)
	took, err := together(c.students, func(s *student) error { _, err := s.pod(ctx); return err })
	if err != nil {
		return err
	}
	c.tell("the lesson begins, each sends one request (kubectl get pods): %s", took)
	_, err = c.state(ctx, vcluster.Awake)
	return err
}

// wreck has the first student delete what can be deleted.
func (c *class) wreck(ctx context.Context) error {
	s, all, opts := c.students[0], metav1.DeleteOptions{}, metav1.ListOptions{}
	for _, remove := range []func() error{
		func() error { return s.api.AppsV1().Deployments("default").DeleteCollection(ctx, all, opts) },
		func() error { return s.api.CoreV1().Services("default").Delete(ctx, "kubernetes", all) },
		func() error { return s.api.CoreV1().Nodes().DeleteCollection(ctx, all, opts) },
		func() error { return s.api.RbacV1().ClusterRoles().DeleteCollection(ctx, all, opts) },
	} {
		if err := remove(); err != nil {
			return fmt.Errorf("demo: %s: %w", s.name, err)
		}
	}
	if _, err := s.pod(ctx); !apierrors.IsForbidden(err) {
		return fmt.Errorf("demo: %s has deleted all roles, and reads pods: %w", s.name, err)
	}
	took, err := together(c.students[1:], func(s *student) error { return s.answers(ctx) })
	if err != nil {
		return err
	}
	c.tell("%s deletes applications, Services, nodes and roles, its own included; the others' applications answer: %s", s.name, took)
	if _, err := s.d.Run(ctx, "rivulet", "vcluster", "sleep", s.name); err != nil {
		return err
	}
	begun := time.Now()
	if err := await.Until(ctx, func() error { _, err := s.api.CoreV1().Pods("default").List(ctx, opts); return err }); err != nil {
		return err
	}
	if err := s.deploy(ctx); err != nil {
		return err
	}
	c.tell("rivulet vcluster sleep %s: roles are there again at its next start, and a new application runs: %s", s.name, since(begun))
	return nil
}

// end has the course expire, reports, and waits until it is deleted.
func (c *class) end(ctx context.Context) error {
	change := func(spec string) error {
		return c.onEach(func(d *lab.Device, _ int) error {
			_, err := d.Kubectl(ctx, "patch", "course", "db-"+d.Name, "--type=merge", "-p", `{"spec":{`+spec+`}}`)
			return err
		})
	}
	begun := time.Now()
	if err := change(fmt.Sprintf(`"expires":%q`, begun.UTC().Format(time.RFC3339))); err != nil {
		return err
	}
	if _, err := c.state(ctx, vcluster.Paused); err != nil {
		return err
	}
	_, err := c.students[0].pod(ctx)
	if err == nil {
		return errors.New("demo: the course has ended, and a request is answered")
	}
	pods, err2 := c.running(ctx)
	if err2 != nil {
		return err2
	}
	c.tell("the course expires: all are paused after %s, %d applications go on until it is deleted; a student is told: %v", since(begun), pods, err)
	for _, args := range [][]string{{"rivulet", "course", "report", "db-a"}, {"rivulet", "course", "list"}} {
		out, err := c.devices[0].Run(ctx, args...)
		if err != nil {
			return err
		}
		fmt.Printf("\na$ %s\n%s\n", strings.Join(args, " "), out)
	}
	begun = time.Now()
	// The mark of a time service: devices of the lab have none, and a clock that nothing confirms deletes nothing.
	if err := c.onEach(func(d *lab.Device, _ int) error {
		_, err := d.Run(ctx, "sh", "-c", "mkdir -p /run/systemd/timesync && touch /run/systemd/timesync/synchronized")
		return err
	}); err != nil {
		return err
	}
	if err := change(`"keep":"1s"`); err != nil {
		return err
	}
	if err := await.Until(ctx, func() error {
		for _, d := range c.devices {
			left, err := views(ctx, d)
			if err != nil || len(left) > 0 {
				return errors.Join(fmt.Errorf("demo: %d virtual clusters of %s are left", len(left), d.Name), err)
			}
		}
		if pods, err := c.running(ctx); err != nil || pods > 0 {
			return errors.Join(fmt.Errorf("demo: %d applications are left", pods), err)
		}
		return nil
	}); err != nil {
		return err
	}
	c.tell("the time it is kept is over: the courses, their clusters and applications are deleted: %s", since(begun))
	return nil
}

// breakOut has the second student try what is not its own.
func (c *class) breakOut(ctx context.Context) error {
	s, other := c.students[1], c.students[0]
	mine, err := s.pod(ctx)
	if err != nil {
		return err
	}
	theirs, err := other.pod(ctx)
	if err != nil {
		return err
	}
	all, err := views(ctx, s.d)
	if err != nil {
		return err
	}
	at := map[string]string{}
	for _, v := range all {
		at[v.Name] = v.Address.String()
	}
	node, _, err := net.SplitHostPort(at[s.name])
	if err != nil {
		return err
	}
	twin, err := s.d.Kubectl(ctx, "get", "pods", "-A", "-l", "app=web", "--field-selector", "status.podIP="+theirs.Status.PodIP, "-o", "jsonpath={.items[0].metadata.namespace}")
	if err != nil {
		return err
	}
	token, err := s.api.CoreV1().ServiceAccounts("default").CreateToken(ctx, "default", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		return err
	}

	fmt.Printf("\n%s tries to break out:\n\n", s.name)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	row := func(what, how string, err error) error {
		if err != nil {
			return fmt.Errorf("demo: %s: %s: %w", s.name, what, err)
		}
		_, err = fmt.Fprintf(w, "    %s\t%s\n", what, how)
		return err
	}
	pods := map[string]func(*corev1.PodSpec){
		"hostpath": func(p *corev1.PodSpec) {
			p.Volumes = []corev1.Volume{{Name: "root", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}}}
			p.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "root", MountPath: "/host"}}
		},
		"privileged": func(p *corev1.PodSpec) {
			p.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: ptr.To(true)}
		},
		"hostnetwork": func(p *corev1.PodSpec) { p.HostNetwork = true },
	}
	for _, name := range slices.Sorted(maps.Keys(pods)) {
		how, err := s.refusedPod(ctx, name, pods[name])
		if err := row("a pod that is "+name, how, err); err != nil {
			return err
		}
	}
	for _, to := range []struct {
		what, address string
		reached       bool
	}{
		{"its own API server (allowed)", at[s.name], true}, {"the API server of " + other.name, at[other.name], false}, {"the pod of " + other.name, net.JoinHostPort(theirs.Status.PodIP, "8080"), false},
		{"the device's API server", net.JoinHostPort(node, "6443"), false}, {"the device's kubelet", net.JoinHostPort(node, "10250"), false},
	} {
		how, err := s.connect(ctx, mine.Name, to.address, to.reached)
		if err := row("from its pod: "+to.what, how, err); err != nil {
			return err
		}
	}
	for what, cfg := range map[string]*rest.Config{
		"its token, for " + twin + " at the device's API server": {Host: "https://" + net.JoinHostPort(node, "6443"), BearerToken: token.Status.Token},
		"its certificate, at the API server of " + other.name:    {Host: "https://" + at[other.name], TLSClientConfig: rest.TLSClientConfig{CertData: s.cfg.CertData, KeyData: s.cfg.KeyData}},
	} {
		cfg.Dial, cfg.Timeout, cfg.Insecure = s.d.Dial, time.Minute, true
		how, err := unauthorized(ctx, cfg, twin)
		if err := row(what, how, err); err != nil {
			return err
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Println()
	return nil
}

// refusedPod creates a pod, and returns why it does not run.
func (s *student) refusedPod(ctx context.Context, name string, change func(*corev1.PodSpec)) (how string, err error) {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{Containers: []corev1.Container{container()}}}
	change(&p.Spec)
	if _, err := s.api.CoreV1().Pods("default").Create(ctx, p, metav1.CreateOptions{}); err != nil {
		return "", err
	}
	err = await.Until(ctx, func() error {
		now, err := s.api.CoreV1().Pods("default").Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if how = now.Status.Message; how == "" || now.Status.Phase == corev1.PodRunning {
			return fmt.Errorf("it is %s, without a reason", now.Status.Phase)
		}
		return nil
	})
	return how, err
}

// connect connects from a pod.
func (s *student) connect(ctx context.Context, pod, address string, reached bool) (string, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", err
	}
	out, err := s.d.Kubectl(ctx, "--kubeconfig", s.file(), "exec", pod, "--", "sh", "-c", "busybox nc -w 3 "+host+" "+port+" < /dev/null && echo reached || echo no connection")
	if err != nil {
		return "", err
	}
	if out = strings.TrimSpace(out); (out == "reached") != reached {
		return "", fmt.Errorf("%s: %s", address, out)
	}
	return address + ": " + out, nil
}

// unauthorized reads pods of a namespace, and returns how that is refused.
func unauthorized(ctx context.Context, cfg *rest.Config, namespace string) (string, error) {
	api, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return "", err
	}
	_, err = api.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if !apierrors.IsUnauthorized(err) {
		return "", fmt.Errorf("%s answers: %w", cfg.Host, err)
	}
	return cfg.Host + ": " + err.Error(), nil
}

const afterCourse = `Look around:
    bin/rivulet-lab exec a -- rivulet vcluster list
    bin/rivulet-lab kubectl a -- get events -A
Stop:
    make demo-down
`
