// Package explain finds out why a pod, what makes pods or what leads to them does not work, with a cure.
//
// Causes are checked in a fixed order, and all that apply are reported in it:
//
//	pod on no node   gate, made too early, claim; then node by node, the nearest first: its state
//	                 (pressure, cordoned, lost, withdrawn), a namespace that stays at home, capacity and
//	                 ports, the pod's selectors, taints of others
//	pod on a node    its link, refused, platform, containers (image, config, crash), quota, the provider's
//	                 reports, volumes, sandbox, readiness, what slows it down
//	workload         deleted; suspended, paused, no replicas; pods that cannot be made (quota, admission); a
//	                 Job that failed; missed schedules; the worst of its pods; no progress
//	Service          alias; no selector, no pod, no ready pod, wrong port; no address; endpoints left out
//	claim            deleted; lost; class; first pod; provisioning; where its volume is, and whether it is reachable
//	Ingress          its controller's report; class; backends
//	namespace        being deleted; label; where its pods may go; quota; the worst of its pods
//	peer, node       link, approval, roles; ready, pressure, cordoned
//
// It is pure: its input is what the caller has read from home's API server and the states of links, and it writes
// nothing. A provider's findings are in it only as conditions and events of the pod at home.
package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"rivulet/fabric/peer"
	"rivulet/offload/consumer/pod/translate"
	"rivulet/offload/consumer/reflect"
	"rivulet/offload/policy"
)

// Codes of reasons.
const (
	Refused      = "refused"       // fields without a meaning on another cluster
	NoRoom       = "no-room"       // no node has the requested resources
	Port         = "port"          // a host port that is taken
	Pressure     = "pressure"      // a node short of disk or memory
	Taint        = "taint"         // a taint that it does not tolerate
	Selector     = "node-selector" // its selector or affinity chooses no node
	Claim        = "claim"         // a missing volume
	Image        = "image"         // no image, on a device
	Platform     = "platform"      // the image is for other platforms
	Quota        = "quota"         // a quota, here or at the provider
	Link         = "link"          // the peer is unreachable
	Configured   = "config"        // a missing ConfigMap or Secret, a wrong name
	Crash        = "crash"         // it ends by itself
	Probe        = "probe"         // it runs and is not ready
	Slow         = "slow"          // it runs, and something slows it down
	TooLate      = "too-late"      // made before its namespace was offloaded
	Deleting     = "deleting"      // deleted, but still there
	Ended        = "ended"         // it ran to its end
	Starting     = "starting"      // starting
	LeftOut      = "left-out"      // parts of a Service are unreachable from the pod's node
	Gated        = "gated"         // a scheduling gate holds it, at home or at its peer
	NotScheduled = "not-scheduled" // the scheduler has reported no reason
	Stopped      = "stopped"       // paused, suspended, or without replicas
	Unmade       = "unmade"        // its pods cannot be made
	Failed       = "failed"        // a Job that was given up
	Schedule     = "schedule"      // a CronJob that was not started
	Stuck        = "stuck"         // no progress
	Endpoints    = "endpoints"     // a Service without endpoints
	Address      = "address"       // a Service or Ingress that is unreachable from outside
	Class        = "class"         // a missing class
	Label        = "label"         // an invalid label
	Approval     = "approval"      // a peer that waits for an operator
	Role         = "role"          // a peer with which one direction is off
	Fine         = "fine"
)

// Answer are the reasons for the state of an object. The first of Reasons is the one to begin with.
type Answer struct {
	Kind      string   `json:"kind"`
	Namespace string   `json:"namespace,omitempty"`
	Name      string   `json:"name"`
	Pod       string   `json:"pod,omitempty"`    // the name, of a pod
	Origin    string   `json:"origin,omitempty"` // of a pod of a virtual cluster: whose, and its names there
	Node      string   `json:"node,omitempty"`
	Away      bool     `json:"away"`
	State     string   `json:"state"`
	Reasons   []Reason `json:"reasons"`
}

// Reason is one finding with its cure.
type Reason struct {
	Code string `json:"code"`
	What string `json:"what"`
	Cure string `json:"cure,omitempty"`
}

// LinkState is the state of the link to a peer's node.
type LinkState struct {
	Name      string // the peer's
	Connected bool
	Why       string        // not connected
	Path      string        // such as lan, relay
	RTT       time.Duration // 0: not measured
	// LendsNothing: it is reachable and offers nothing.
	LendsNothing bool
	// Unchosen: it gets no virtual node here.
	Unchosen bool
}

// Facts are the input of an answer. All objects are home's.
type Facts struct {
	// Pod is explained, or Object if it is set: a Deployment, StatefulSet, DaemonSet, ReplicaSet, Job, CronJob,
	// Service, PersistentVolumeClaim, Ingress, Namespace, Node or peer.View.
	Pod    *corev1.Pod
	Object any

	// Of the namespace of Pod or Object.
	Namespace   *corev1.Namespace
	Events      []corev1.Event
	ReplicaSets []appsv1.ReplicaSet
	Jobs        []batchv1.Job
	Services    []corev1.Service
	Slices      []discoveryv1.EndpointSlice
	Claims      []corev1.PersistentVolumeClaim
	Quotas      []corev1.ResourceQuota

	// Of the cluster.
	Nodes          []corev1.Node
	Pods           []corev1.Pod
	Volumes        []corev1.PersistentVolume
	Classes        []storagev1.StorageClass
	IngressClasses []networkingv1.IngressClass

	Links     map[string]LinkState // by the target's ID
	Running   bool                 // the supervisor has answered, with Links, Problems and Here
	Here      string               // this cluster's name, as peers know it
	Problems  []Problem            // of this device
	LeftOut   []reflect.LeftOut    // of Services, unreachable from the pod's node; or of the Service
	LastLines map[string]string    // the last lines, by container, of those that ended with an error
	UsedCPU   int64                // by the pod, in thousandths of a core; below 0: unknown
	Now       time.Time
}

// Explain explains a pod, or Object.
func Explain(f Facts) Answer {
	if f.Object != nil {
		return f.object()
	}
	p := f.Pod
	a := Answer{Kind: "Pod", Namespace: p.Namespace, Name: p.Name, Pod: p.Name, Node: p.Spec.NodeName, State: State(p)}
	node := f.node(p.Spec.NodeName)
	a.Away = node != nil && node.Labels[policy.VirtualNodeLabel] != ""
	var found []Reason
	switch {
	case p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed && p.Status.Reason != translate.ReasonRefused:
		found = f.ended()
	case p.DeletionTimestamp != nil:
		if found = f.link(node); len(found) == 0 {
			found = f.deleting()
		} else {
			found[0].What += "; the pod was deleted, and is gone when its node has answered"
		}
	case p.Spec.NodeName == "":
		found = f.unscheduled()
	default:
		if found = f.link(node); len(found) == 0 {
			found = f.placed(node) // otherwise its state is outdated
		}
	}
	a.Reasons = found
	if len(found) == 0 {
		a.Reasons = []Reason{{Code: Fine, What: "it runs on " + p.Spec.NodeName + " and is ready"}}
	}
	return f.withLeftOut(a)
}

func (f Facts) withLeftOut(a Answer) Answer {
	for _, l := range f.LeftOut {
		a.Reasons = append(a.Reasons, Reason{LeftOut, l.What, l.Cure})
	}
	return a
}

// of are the facts of another pod.
func (f Facts) of(p *corev1.Pod) Facts {
	f.Pod, f.Object, f.LeftOut, f.UsedCPU = p, nil, nil, -1
	return f
}

// State is a pod's state in one word, as in kubectl get pods.
func State(p *corev1.Pod) string {
	if p.DeletionTimestamp != nil {
		return "Terminating"
	}
	if c := condition(p, corev1.PodReady); c != nil && c.Reason == translate.ReasonLost {
		return string(corev1.PodUnknown)
	}
	for _, list := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
		for i := range list {
			if w := list[i].State.Waiting; w != nil && w.Reason != "" && w.Reason != "PodInitializing" {
				return short(w.Reason)
			}
		}
	}
	return cmp.Or(short(p.Status.Reason), string(p.Status.Phase), "Pending")
}

func (f Facts) node(name string) *corev1.Node {
	return named(f.Nodes, name)
}

func condition(p *corev1.Pod, kind corev1.PodConditionType) *corev1.PodCondition {
	for i := range p.Status.Conditions {
		if p.Status.Conditions[i].Type == kind {
			return &p.Status.Conditions[i]
		}
	}
	return nil
}

// event is the message of the pod's last event with one of the reasons; empty without one.
func (f Facts) event(reasons ...string) string {
	return f.eventOf([]types.UID{f.Pod.UID}, reasons...)
}

// own is event without a provider's events, whose texts may contain no cure for home.
func (f Facts) own(reasons ...string) string {
	f.Events = slices.DeleteFunc(slices.Clone(f.Events), func(e corev1.Event) bool { return e.ReportingController == translate.EventReporter })
	return f.event(reasons...)
}

// eventOf is event of other objects.
func (f Facts) eventOf(of []types.UID, reasons ...string) string {
	last := -1
	for i := range f.Events {
		e := &f.Events[i]
		if slices.Contains(of, e.InvolvedObject.UID) && slices.Contains(reasons, e.Reason) && (last < 0 || !when(e).Before(when(&f.Events[last]))) {
			last = i
		}
	}
	if last < 0 {
		return ""
	}
	return short(f.Events[last].Message)
}

func when(e *corev1.Event) time.Time {
	switch {
	case e.Series != nil:
		return e.Series.LastObservedTime.Time
	case !e.LastTimestamp.IsZero():
		return e.LastTimestamp.Time
	case !e.EventTime.IsZero():
		return e.EventTime.Time
	}
	return e.CreationTimestamp.Time
}

// short makes a text from another writer one line that a terminal only shows.
func short(s string) string { return peer.Line(s, 400) }

func (f Facts) logs(container string) string {
	if container != "" {
		container = " -c " + container
	}
	return "rivulet kubectl logs -n " + f.Pod.Namespace + " " + f.Pod.Name + container
}

func (f Facts) deleting() []Reason {
	p := f.Pod
	if len(p.Finalizers) > 0 {
		return []Reason{{Code: Deleting, What: "it was deleted and waits for " + strings.Join(p.Finalizers, ", "), Cure: "look at what set that finalizer"}}
	}
	if why := f.event(translate.ReasonNotEnded); why != "" {
		return []Reason{{Code: Deleting, What: "it was deleted; " + why}}
	}
	if over := f.Now.Sub(p.DeletionTimestamp.Time); over > 0 {
		return []Reason{{Code: Deleting, What: fmt.Sprintf("it was deleted; its time to end was over %s ago", over.Round(time.Second)), Cure: "if its device is gone for good: rivulet kubectl delete pod -n " + p.Namespace + " " + p.Name + " --force"}}
	}
	return []Reason{{Code: Deleting, What: "it was deleted and has until " + p.DeletionTimestamp.Local().Format(time.TimeOnly) + " to end"}}
}

// link explains an unreachable peer that holds the pod.
func (f Facts) link(node *corev1.Node) []Reason {
	if node == nil {
		if nothing := f.lendNothing(func(name string) bool { return name == f.Pod.Spec.NodeName }); len(nothing) > 0 {
			return nothing
		}
		if f.Pod.Spec.NodeName != "" && len(f.Nodes) > 0 {
			return []Reason{{Code: Link, What: "its node " + f.Pod.Spec.NodeName + " is no more", Cure: "delete the pod; its controller makes another: rivulet kubectl delete pod -n " + f.Pod.Namespace + " " + f.Pod.Name}}
		}
		return nil
	}
	id := node.Labels[policy.VirtualNodeLabel]
	if l, known := f.Links[id]; id != "" && known && !l.Connected {
		why, _, _ := strings.Cut(cmp.Or(short(l.Why), "no answer"), "; ")
		return []Reason{{Link, "peer " + target(node) + " is not reached: " + why, comesBack(target(node))}}
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
			cure := "rivulet doctor"
			if l, known := f.Links[id]; id != "" && known && l.Connected {
				return []Reason{{Link, target(node) + " lends nothing now: " + cmp.Or(short(c.Message), c.Reason), lendAgain(target(node))}}
			} else if id != "" {
				cure = comesBackTo(node)
			}
			return []Reason{{Code: Link, What: "its node " + node.Name + " is not ready: " + cmp.Or(short(c.Message), c.Reason), Cure: cure}}
		}
	}
	return nil
}

// comesBack is the cure for a peer that does not answer.
func comesBack(name string) string {
	return "is it on, is rivulet running there, is it on the network? To find out: rivulet doctor peer " + name + "; or: if it is gone for good: rivulet unpeer " + name + " --force"
}

// comesBackTo is comesBack for the target of a virtual node, which may be a campus.
func comesBackTo(n *corev1.Node) string {
	if name, ok := campus(n); ok {
		return "is this device online, and that cluster up? To find out: rivulet burst status " + name + "; or: if it is gone for good: rivulet burst remove " + name + " --force"
	}
	return comesBack(target(n))
}

// examine is the command that shows the state of a virtual node's target.
func examine(n *corev1.Node) string {
	if name, ok := campus(n); ok {
		return "rivulet burst status " + name
	}
	return "rivulet doctor peer " + target(n)
}

// campus returns the name of the burst target of a virtual node; ok is false for peers.
func campus(n *corev1.Node) (name string, ok bool) {
	return strings.TrimPrefix(target(n), "burst-"), n.Labels[policy.KindLabel] == "burst"
}

func target(node *corev1.Node) string { return cmp.Or(node.Labels[policy.TargetLabel], node.Name) }

// placed explains a pod that has a node.
func (f Facts) placed(node *corev1.Node) (out []Reason) {
	p := f.Pod
	if c := condition(p, translate.OffloadedCondition); c != nil && c.Reason == translate.ReasonRefused { // not the provider's
		what, cure, _ := strings.Cut(strings.TrimPrefix(short(c.Message), "offload: "), "; ")
		return []Reason{{Code: Refused, What: what, Cure: cmp.Or(cure, "keep the namespace at home: rivulet unoffload "+p.Namespace)}}
	}
	if say := f.own(translate.ReasonMisfit); say != "" && !isReady(p) {
		what, cure, _ := strings.Cut(say, "; ")
		out = append(out, Reason{Platform, what, cmp.Or(cure, "it goes to another machine by itself; or choose one: nodeSelector kubernetes.io/arch")})
	}
	out = append(out, f.containers(node)...)
	if len(out) > 0 {
		return out
	}
	if say := f.event("FailedCreate"); say != "" && strings.Contains(say, "quota") && p.Status.Phase == corev1.PodPending {
		return []Reason{{Quota, say, "what " + p.Spec.NodeName + " lends is used up; free room there, or send it elsewhere: rivulet cordon " + p.Spec.NodeName}}
	}
	switch p.Status.Reason {
	case translate.ReasonUnschedulable:
		return []Reason{{NoRoom, p.Spec.NodeName + " took it and has no device for it: " + short(p.Status.Message), f.another("wait for room there")}}
	case translate.ReasonGated:
		return []Reason{{Gated, short(p.Status.Message), f.another("ask the owner of " + p.Spec.NodeName + ": nothing at home removes the gate")}}
	case translate.ReasonPending:
		cure := "rivulet doctor peer " + p.Spec.NodeName
		if node != nil {
			cure = examine(node)
		}
		return []Reason{{Starting, p.Spec.NodeName + " has not made it yet" + colon(short(p.Status.Message)), cure}}
	case translate.ReasonGone:
		return []Reason{{Ended, "it ran on " + p.Spec.NodeName + " and is no more" + colon(short(p.Status.Message)), "delete the pod; its controller makes another"}}
	}
	if say := f.event("FailedMount", "FailedAttachVolume"); say != "" && p.Status.Phase == corev1.PodPending {
		return []Reason{{Claim, say, "make the object that it names: rivulet kubectl describe pod -n " + p.Namespace + " " + p.Name}}
	}
	if say := f.event("FailedCreatePodSandBox"); say != "" && p.Status.Phase == corev1.PodPending {
		return []Reason{{Starting, "no network or sandbox: " + say, "rivulet doctor, on " + p.Spec.NodeName}}
	}
	if p.Status.Phase == corev1.PodPending {
		return []Reason{{Starting, "it is being started on " + p.Spec.NodeName + colon(f.event("Pulling", "Pulled")), ""}}
	}
	if !isReady(p) {
		return []Reason{f.notReady()}
	}
	return f.slow(node)
}

// another is the cure of a pod that its node has taken and does not start: it stays there until it is deleted.
func (f Facts) another(first string) string {
	p := f.Pod
	return fmt.Sprintf("%s; or have it made elsewhere: rivulet cordon %s; and then: rivulet kubectl delete pod -n %s %s", first, p.Spec.NodeName, p.Namespace, p.Name)
}

func colon(s string) string {
	if s == "" {
		return ""
	}
	return ": " + s
}

func isReady(p *corev1.Pod) bool {
	c := condition(p, corev1.PodReady)
	return c != nil && c.Status == corev1.ConditionTrue
}

// containers explains those that cannot start, and those that end.
func (f Facts) containers(node *corev1.Node) (out []Reason) {
	p := f.Pod
	images := map[string]string{}
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			images[list[i].Name] = peer.Line(list[i].Image, 200) // the API server takes any text
		}
	}
	for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		w := c.State.Waiting
		if w == nil {
			continue
		}
		switch w.Reason {
		case "ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "ImageInspectError":
			if strings.Contains(w.Message, "no space left on device") && node != nil {
				r := f.pressed(node, corev1.NodeDiskPressure)
				r.What = fmt.Sprintf("image %s does not fit on the disk of %s", images[c.Name], p.Spec.NodeName)
				out = append(out, r)
				continue
			}
			cure := "bring it here, if its name is right: rivulet image push FILE.tar"
			switch {
			case p.Labels[policy.OriginLabel] != "":
				cure = "what is pushed here is for pods of this cluster; for those of others, too, if its name is right: rivulet image push --share FILE.tar"
			case node != nil && node.Labels[policy.VirtualNodeLabel] != "":
				cure = "bring it here, and " + target(node) + " gets it: rivulet image push --to " + target(node) + " FILE.tar; or: keep pods off that peer: rivulet cordon " + target(node)
			}
			if NotYetValid(w.Message) {
				cure = "set the clock of " + p.Spec.NodeName + ", which is behind; see there: rivulet doctor --only clock"
			}
			out = append(out, Reason{Image, fmt.Sprintf("image %s is not on %s and cannot be got%s", images[c.Name], p.Spec.NodeName, colon(short(w.Message))), cure})
		case "CreateContainerConfigError", "CreateContainerError", "RunContainerError":
			out = append(out, Reason{Configured, fmt.Sprintf("container %s cannot be made: %s", c.Name, short(w.Message)), "make what it names, or correct the name"})
		case "CrashLoopBackOff":
			why, cure, _ := f.last(&c)
			if why != "" {
				why = ", last with " + why
			}
			out = append(out, Reason{Crash, fmt.Sprintf("container %s ended %d times%s, and waits to be started again", c.Name, c.RestartCount, why), cure})
		}
	}
	return out
}

// NotYetValid reports whether a pull has failed because a certificate begins later than the clock of the node says: the
// words of Go's x509, by which no other cause is called.
func NotYetValid(message string) bool {
	_, why, found := strings.Cut(message, "certificate has expired or is not yet valid: current time ")
	return found && strings.Contains(why, " is before ")
}

// lately is how long the end of a container may be the reason for an unready pod.
const lately = 5 * time.Minute

func (f Facts) notReady() Reason {
	for _, name := range claimsOf(f.Pod) {
		if c := f.claim(name); c != nil && c.Status.Phase == corev1.ClaimLost {
			return f.lostClaim(c)[0]
		}
	}
	for _, c := range slices.Concat(f.Pod.Status.InitContainerStatuses, f.Pod.Status.ContainerStatuses) {
		t := cmp.Or(c.State.Terminated, c.LastTerminationState.Terminated)
		if !c.Ready && t != nil && t.ExitCode != 0 && f.Now.Sub(t.FinishedAt.Time) < lately {
			what, cure, byOthers := f.ending(c.Name, cmp.Or(t.Reason, "Error"), t.Message)
			if byOthers {
				return Reason{Crash, fmt.Sprintf("container %s ended: %s, and is started again", c.Name, what), cure}
			}
			return Reason{Crash, fmt.Sprintf("container %s ended with %d (%s), and is started again", c.Name, t.ExitCode, cmp.Or(short(t.Reason), "Error")), cure}
		}
	}
	if say := f.event("Unhealthy"); say != "" {
		return Reason{Probe, "it runs and is not ready: " + say, f.logs("")}
	}
	if c := condition(f.Pod, corev1.PodReady); c != nil && c.Message != "" {
		return Reason{Probe, "it runs and is not ready: " + short(c.Message), f.logs("")}
	}
	return Reason{Starting, "it runs and is not ready yet", f.logs("")}
}

// Bounds above which something counts as slow.
const (
	farAway  = 20 * time.Millisecond
	restarts = 3
)

// slow explains what may slow down a pod that runs and is ready.
func (f Facts) slow(node *corev1.Node) (out []Reason) {
	p := f.Pod
	limit := int64(0)
	for i := range p.Spec.Containers {
		c := &p.Spec.Containers[i]
		if l, ok := c.Resources.Limits[corev1.ResourceCPU]; ok {
			limit += l.MilliValue()
		} else {
			limit = 0
			break
		}
	}
	if limit > 0 && f.UsedCPU*10 >= limit*9 {
		out = append(out, Reason{Slow, fmt.Sprintf("it uses %dm of the %dm of CPU that its limit allows", f.UsedCPU, limit), "raise limits.cpu, or make more replicas"})
	}
	for _, c := range p.Status.ContainerStatuses {
		if why, cure, byOthers := f.last(&c); c.RestartCount >= restarts || byOthers {
			if why != "" {
				why = ", last after " + why
			}
			out = append(out, Reason{Slow, fmt.Sprintf("container %s was started again %d times%s", c.Name, c.RestartCount, why), cure})
		}
	}
	if node == nil {
		return out
	}
	if l, ok := f.Links[node.Labels[policy.VirtualNodeLabel]]; ok && l.RTT > farAway {
		out = append(out, Reason{Slow, fmt.Sprintf("peer %s is %s away (path: %s)", target(node), l.RTT.Round(time.Millisecond), cmp.Or(l.Path, "not known")), "rivulet doctor peer " + target(node) + "; what talks much belongs together: rivulet offload NAMESPACE --to PEER"})
	} else if ok && strings.Contains(l.Path, "relay") {
		out = append(out, Reason{Slow, "peer " + target(node) + " is reached through another peer only", "rivulet doctor peer " + target(node)})
	}
	for _, c := range node.Status.Conditions {
		if c.Type != corev1.NodeReady && c.Type != corev1.NodeNetworkUnavailable && c.Status == corev1.ConditionTrue {
			out = append(out, f.pressed(node, c.Type))
		}
	}
	return out
}

// Controller returns the controller of the pod, "" for a bare pod.
func Controller(p *corev1.Pod) string {
	if c := metav1.GetControllerOf(p); c != nil {
		return c.Kind + "/" + c.Name
	}
	return ""
}
