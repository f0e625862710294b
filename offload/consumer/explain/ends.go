package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"rivulet/offload/consumer/pod/translate"
	"rivulet/offload/policy"
)

// cures of pods that a kubelet or a scheduler has ended, by words of the reason or the message. Such a pod has no logs.
var cures = []struct{ word, cure string }{
	{"EmptyDir volume", "raise that volume's sizeLimit, or have the program write less to it"},
	{"local ephemeral storage", "raise limits.ephemeral-storage, or have the program write less to its own files, logs and emptyDir volumes"},
	{"ephemeral local storage", "raise limits.ephemeral-storage, or have the program write less to its own files, logs and emptyDir volumes"},
	{"low on resource: memory", "request the memory that it uses (pods above their request go first), or free some on its device"},
	{"low on resource", "free some on its device, or request what it uses: pods above their request go first"},
	{"DeadlineExceeded", "raise spec.activeDeadlineSeconds, or have the program do less"},
	{"Preempt", "give it a PriorityClass of a higher value, or add a device"},
	{"Evict", again}, {"DeletionBy", again}, {"TerminationByKubelet", again}, {translate.ReasonGone, again}, {"ContainerStatusUnknown", again},
}

// unfound are the words of resolvers of libraries for a name that does not exist: Go, glibc, musl, curl, busybox, Java,
// Node.js, PostgreSQL, Redis.
var unfound = []string{"no such host", "Name or service not known", "Name does not resolve", "ould not resolve host", "bad address", "UnknownHostException", "ENOTFOUND", "could not translate host name", "nodename nor servname"}

const again = "its controller makes another; a bare pod has to be made again"

// sayings are last words of programs which run at home and end away, with what keeps them from running there.
var sayings = []struct{ words, what, cure string }{
	// github.com/hashicorp/memberlist: Loki, Mimir, Tempo, Alertmanager with replicas, Serf, Weaviate
	{"no private IP address found", "its program looks for a private address of its own, and pods on peers have addresses of tunnel.peerCIDR, by default 240.0.0.0/5",
		"have it announce env POD_IP (fieldRef: status.podIP); or set tunnel.peerCIDR to a block that programs take for private and no network here or there has, such as 10.128.0.0/9: write tunnel: {peerCIDR: 10.128.0.0/9} into /etc/rivulet/config.yaml, then: sudo rivulet config reload"},
	// the kernel, of a program with capabilities in its file that a pod may not have (capabilities(7))
	{"peration not permitted", "the kernel refused its program something (Operation not permitted): pods on peers have no NET_RAW, which ping and others have in their file (getcap)",
		"if that is it, keep it at home with the label rivulet.dev/offload=off in its template; its last words: LOGS"},
}

// ending is how a pod or a container ended, with a cure. byOthers: the program itself is not the cause.
func (f Facts) ending(container, reason, message string) (what, cure string, byOthers bool) {
	what = short(strings.TrimSpace(reason + ": " + message))
	what = strings.TrimSuffix(strings.TrimPrefix(what, ": "), ":")
	if strings.Contains(what, "low on resource: ephemeral-storage") || strings.Contains(what, "low on resource: inodes") || strings.Contains(what, "DiskPressure") {
		if node := f.node(f.Pod.Spec.NodeName); node != nil {
			return what, cmp.Or(f.pressed(node, corev1.NodeDiskPressure).Cure, again), true
		}
	}
	for _, c := range cures {
		if strings.Contains(what, c.word) {
			return what, c.cure, true
		}
	}
	if node := f.node(f.Pod.Spec.NodeName); node != nil && node.Labels[policy.VirtualNodeLabel] != "" {
		for _, words := range unfound {
			if strings.Contains(message+"\n"+f.LastLines[container], words) {
				return "a name was not found: away only Services of namespaces that are offloaded exist; " + what,
					"if it is a Service's name: have its namespace's Services there, too: rivulet offload NAMESPACE --when services; or keep the pod at home with the label rivulet.dev/offload=off in its template; its last words: " + lastLogs(f, container), true
			}
		}
		for _, s := range sayings {
			if strings.Contains(message+"\n"+f.LastLines[container], s.words) {
				return fmt.Sprintf("%s; %s", s.what, what), strings.Replace(s.cure, "LOGS", lastLogs(f, container), 1), true
			}
		}
	}
	cure = lastLogs(f, container)
	if reason == "OOMKilled" {
		cure = "raise its memory limit; " + cure
	}
	return what, cure, false
}

// ended explains a pod that has ended.
func (f Facts) ended() []Reason {
	p := f.Pod
	if p.Status.Phase == corev1.PodSucceeded {
		return []Reason{{Code: Ended, What: "it ran to its end, without an error"}}
	}
	reason, message := p.Status.Reason, p.Status.Message
	if c := condition(p, corev1.DisruptionTarget); reason == "" && c != nil && c.Status == corev1.ConditionTrue {
		reason, message = c.Reason, c.Message
	}
	what, cure, byOthers := f.ending("", reason, message)
	if !byOthers {
		for _, c := range p.Status.ContainerStatuses {
			if t := c.State.Terminated; t != nil && t.ExitCode != 0 {
				say, itsCure, known := f.ending(c.Name, cmp.Or(t.Reason, "Error"), t.Message)
				what, cure = fmt.Sprintf("container %s ended with %d (%s)", c.Name, t.ExitCode, cmp.Or(short(t.Reason), "Error")), itsCure
				if known { // the cure is of what is said
					what += ": " + say
					break
				}
			}
		}
	}
	return []Reason{{Code: Ended, What: "it failed: " + cmp.Or(what, "see its containers"), Cure: cure}}
}

// lastLogs is the command that shows what a container said before it ended: of the run before, if it was started again.
func lastLogs(f Facts, container string) string {
	for _, c := range slices.Concat(f.Pod.Status.InitContainerStatuses, f.Pod.Status.ContainerStatuses) {
		if c.Name == container && c.RestartCount > 0 && c.State.Terminated == nil {
			return f.logs(container) + " --previous"
		}
	}
	return f.logs(container)
}

// last is the previous end of a container, with a cure; "" without one.
func (f Facts) last(c *corev1.ContainerStatus) (why, cure string, byOthers bool) {
	t := c.LastTerminationState.Terminated
	if t == nil {
		return "", lastLogs(f, c.Name), false
	}
	what, cure, byOthers := f.ending(c.Name, cmp.Or(t.Reason, "Error"), t.Message)
	if byOthers {
		return what, cure, true
	}
	return fmt.Sprintf("%d (%s)", t.ExitCode, cmp.Or(short(t.Reason), "Error")), cure, false
}
