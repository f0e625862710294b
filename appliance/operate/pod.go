package operate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"rivulet/appliance/diagnose/why"
)

// Bounds of a pod's page.
const (
	maxEvents   = 50
	eventsRead  = 500
	logLines    = 500
	maxLog      = 1 << 20 // bytes
	maxFollowed = 8 << 20 // bytes, of a log that is followed
)

// PodDetails is all of one pod.
type PodDetails struct {
	Pod
	// Containers are those that prepare the pod, then its own, then those added for debugging.
	Containers []Container
	// Events are the newest of the pod, the newest first; MoreEvents counts the others.
	Events     []Event
	MoreEvents int
}

// Container is one of a pod.
type Container struct {
	Name, Image string
	Kind        string // init or debug; empty: one of the pod's own
	State       string // Running, or why it does not run: Waiting, CrashLoopBackOff, Completed, Error
	Detail      string // the runtime's message, and the exit code of one that ended
	Ready       bool
	Restarts    int32
	Since       time.Time // of the state; zero: unknown
	Previous    bool      // it ran before, and has a log of that
}

// Event is one of a pod.
type Event struct {
	Warning                 bool
	Reason, Message, Source string
	Count                   int32
	At                      time.Time // the last time
}

// PodDetails reads a pod of home, at home or away.
func (c Cluster) PodDetails(ctx context.Context, namespace, name string) (d PodDetails, err error) {
	client, p, err := c.pod(ctx, namespace, name)
	if err != nil {
		return d, err
	}
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return d, fmt.Errorf("nodes: %w; see: rivulet status", err)
	}
	events, err := client.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{Limit: eventsRead,
		FieldSelector: fields.Set{"involvedObject.kind": "Pod", "involvedObject.name": name}.String()})
	if err != nil {
		return d, fmt.Errorf("events of %s: %w; see: rivulet status", name, err)
	}
	st, _ := c.Status(ctx)
	d.Pod, d.Containers = PodsByPlace([]corev1.Pod{*p}, nodes.Items, why.VClustersOf(st.Consumers))[0], containersOf(p)
	d.Events, d.MoreEvents = bound(eventsOf(p, events.Items), maxEvents)
	return d, nil
}

func (c Cluster) pod(ctx context.Context, namespace, name string) (kubernetes.Interface, *corev1.Pod, error) {
	client, err := c.Client()
	if err != nil {
		return nil, nil, err
	}
	p, err := client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil, fmt.Errorf("there is no pod %s in namespace %s; see: rivulet pods -n %s", name, namespace, namespace)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("pod %s: %w; see: rivulet status", name, err)
	}
	return client, p, nil
}

func containersOf(p *corev1.Pod) (out []Container) {
	add := func(kind, name, image string, all []corev1.ContainerStatus) {
		c := Container{Name: name, Image: image, Kind: kind, State: "Waiting"}
		if i := slices.IndexFunc(all, func(s corev1.ContainerStatus) bool { return s.Name == name }); i >= 0 {
			c.fill(&all[i])
		}
		out = append(out, c)
	}
	for i := range p.Spec.InitContainers {
		add("init", p.Spec.InitContainers[i].Name, p.Spec.InitContainers[i].Image, p.Status.InitContainerStatuses)
	}
	for i := range p.Spec.Containers {
		add("", p.Spec.Containers[i].Name, p.Spec.Containers[i].Image, p.Status.ContainerStatuses)
	}
	for i := range p.Spec.EphemeralContainers {
		add("debug", p.Spec.EphemeralContainers[i].Name, p.Spec.EphemeralContainers[i].Image, p.Status.EphemeralContainerStatuses)
	}
	return out
}

func (c *Container) fill(s *corev1.ContainerStatus) {
	c.Ready, c.Restarts, c.Previous = s.Ready, s.RestartCount, s.RestartCount > 0 || s.LastTerminationState.Terminated != nil
	switch now := s.State; {
	case now.Running != nil:
		c.State, c.Since = "Running", now.Running.StartedAt.Time
	case now.Terminated != nil:
		c.State, c.Since = cmp.Or(now.Terminated.Reason, "Terminated"), now.Terminated.FinishedAt.Time
		c.Detail = ended(now.Terminated)
	case now.Waiting != nil:
		c.State, c.Detail = cmp.Or(now.Waiting.Reason, "Waiting"), now.Waiting.Message
		if before := s.LastTerminationState.Terminated; before != nil {
			c.Detail, c.Since = cmp.Or(c.Detail, ended(before)), before.FinishedAt.Time
		}
	}
}

func ended(t *corev1.ContainerStateTerminated) string {
	text := fmt.Sprintf("exit code %d", t.ExitCode)
	if t.Signal != 0 {
		text = fmt.Sprintf("signal %d", t.Signal)
	}
	if t.Message != "" {
		text += ": " + t.Message
	}
	return text
}

// eventsOf are those of this pod, and not of an earlier one of its name, the newest first.
func eventsOf(p *corev1.Pod, all []corev1.Event) (out []Event) {
	for i := range all {
		e := &all[i]
		if e.InvolvedObject.UID != "" && e.InvolvedObject.UID != p.UID {
			continue
		}
		one := Event{Warning: e.Type == corev1.EventTypeWarning, Reason: e.Reason, Message: e.Message, Source: cmp.Or(e.Source.Component, e.ReportingController), Count: max(e.Count, 1), At: e.LastTimestamp.Time}
		if e.Series != nil {
			one.Count, one.At = max(one.Count, e.Series.Count), e.Series.LastObservedTime.Time
		}
		for _, at := range []time.Time{e.EventTime.Time, e.FirstTimestamp.Time, e.CreationTimestamp.Time} {
			if one.At.IsZero() {
				one.At = at
			}
		}
		out = append(out, one)
	}
	slices.SortStableFunc(out, func(x, y Event) int { return y.At.Compare(x.At) })
	return out
}

// LogRequest is for the log of a container; the empty Container is the pod's default one.
type LogRequest struct {
	Namespace, Pod, Container string
	Previous                  bool // of the container that ran before
	Follow                    bool // go on with new lines
	// Since leaves out lines that are older, in whole seconds; 0 is no bound.
	Since time.Duration
}

// ErrLogLimit ends a log that is followed for too long: whoever reads it may go on with Since.
var ErrLogLimit = errors.New("much was written; this is a part of the log")

// bounded passes most bytes, then ErrLogLimit.
type bounded struct {
	io.ReadCloser
	left int64
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, ErrLogLimit
	}
	n, err := b.ReadCloser.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}

// Log is the last logLines lines of a container's log. It ends with ErrLogLimit after a bound of bytes, also while it is
// followed; the end of ctx ends it. The caller closes it.
func (c Cluster) Log(ctx context.Context, q LogRequest) (io.ReadCloser, error) {
	client, p, err := c.pod(ctx, q.Namespace, q.Pod)
	if err != nil {
		return nil, err
	}
	container, err := containerOf(p, q.Container)
	if err != nil {
		return nil, err
	}
	most := int64(maxLog)
	if q.Follow {
		most = maxFollowed
	}
	options := &corev1.PodLogOptions{Container: container, Previous: q.Previous, Follow: q.Follow, TailLines: ptr.To(int64(logLines))}
	if q.Since > 0 {
		options.SinceSeconds = ptr.To(int64(max(q.Since/time.Second, 1)))
	}
	log, err := client.CoreV1().Pods(q.Namespace).GetLogs(q.Pod, options).Stream(ctx)
	if err != nil {
		return nil, fmt.Errorf("the log of %s in pod %s: %w; see: rivulet why %s/%s", container, q.Pod, err, q.Namespace, q.Pod)
	}
	return &bounded{log, most}, nil
}

// containerOf is the container of that name; the empty one is the default of the pod, as kubectl has it.
func containerOf(p *corev1.Pod, name string) (string, error) {
	all := containersOf(p)
	if own := p.Spec.Containers; name == "" && len(own) > 0 {
		name = cmp.Or(p.Annotations["kubectl.kubernetes.io/default-container"], own[0].Name)
	}
	if slices.ContainsFunc(all, func(c Container) bool { return c.Name == name }) {
		return name, nil
	}
	var names []string
	for _, c := range all {
		names = append(names, c.Name)
	}
	return "", errors.New("pod " + p.Name + " has no container " + name + fmt.Sprintf("; it has: %v", names))
}
