package explain

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"rivulet/offload/consumer/pod/translate"
	"rivulet/offload/consumer/reflect"
	"rivulet/offload/policy"
)

var now = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

func node(name, cpu string, change func(*corev1.Node)) corev1.Node {
	n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelArchStable: "amd64"}}}
	n.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourcePods: resource.MustParse("10")}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	if change != nil {
		change(&n)
	}
	return n
}

func virtual(n *corev1.Node) {
	n.Labels[policy.VirtualNodeLabel], n.Labels[policy.TargetLabel] = "id-of-"+n.Name, n.Name
	n.Spec.Taints = []corev1.Taint{{Key: policy.VirtualTaint, Effect: corev1.TaintEffectNoSchedule}, {Key: policy.AwayTaint, Effect: corev1.TaintEffectPreferNoSchedule}}
}

func asks(cpu string, change func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "web", UID: "u"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "web:1",
		Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}}}}}}
	p.Status.Phase = corev1.PodPending
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "0/2 nodes are available"}}
	if change != nil {
		change(p)
	}
	return p
}

func offloaded(p *corev1.Pod) {
	p.Spec.Tolerations = []corev1.Toleration{{Key: policy.VirtualTaint, Operator: corev1.TolerationOpExists}}
}

func on(name string, change func(*corev1.Pod)) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.NodeName = name
		p.Status.Conditions[0].Status = corev1.ConditionTrue
		if change != nil {
			change(p)
		}
	}
}

func running(p *corev1.Pod) {
	p.Status.Phase = corev1.PodRunning
	p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue})
}

func waits(reason, message string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}}}
		if reason == "CrashLoopBackOff" {
			p.Status.ContainerStatuses[0].RestartCount = 1
		}
	}
}

func event(reason, message string) []corev1.Event {
	return []corev1.Event{{InvolvedObject: corev1.ObjectReference{UID: "u"}, Reason: reason, Message: message, LastTimestamp: metav1.NewTime(now)}}
}

// tainted has the system close a node.
func tainted(key string, kind corev1.NodeConditionType) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule})
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: kind, Status: corev1.ConditionTrue})
	}
}

func withClaim(p *corev1.Pod) {
	p.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
}

func claim(phase corev1.PersistentVolumeClaimPhase, class, volume string) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "data", UID: "u"}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: volume}}
	if c.Status.Phase = phase; class != "" {
		c.Spec.StorageClassName = &class
	}
	return c
}

func volumeOn(node string) []corev1.PersistentVolume {
	return []corev1.PersistentVolume{{ObjectMeta: metav1.ObjectMeta{Name: "pv"}, Spec: corev1.PersistentVolumeSpec{NodeAffinity: &corev1.VolumeNodeAffinity{
		Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}}}}}}}}}
}

func made(volumes []corev1.PersistentVolume) []corev1.PersistentVolume {
	volumes[0].Annotations = map[string]string{"pv.kubernetes.io/provisioned-by": "rivulet.dev/local-path"}
	return volumes
}

func room(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"room": "B13"} }

func floors(p *corev1.Pod) {
	p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
		{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "floor", Operator: corev1.NodeSelectorOpIn, Values: []string{"3", "4"}}}}}}}}
}

func labelled(nodes []corev1.Node, key, value string) []corev1.Node {
	n := nodes[0].DeepCopy()
	n.Labels[key] = value
	return []corev1.Node{*n}
}

func port(n int32) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: n, HostPort: n, Protocol: corev1.ProtocolTCP}}
	}
}

func all[T any](of ...func(*T)) func(*T) {
	return func(p *T) {
		for _, f := range of {
			f(p)
		}
	}
}

func called(name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Name, p.UID = name, types.UID(name) }
}

func TestWhy(t *testing.T) {
	two := []corev1.Node{node("home", "1", nil), node("lab-2", "4", virtual)}
	full := []corev1.Node{node("home", "1", tainted(corev1.TaintNodeDiskPressure, corev1.NodeDiskPressure)), two[1]}
	cordoned := []corev1.Node{two[0], node("lab-2", "4", all(virtual, func(n *corev1.Node) { n.Spec.Unschedulable = true }))}
	bound := []corev1.PersistentVolumeClaim{*claim(corev1.ClaimBound, "", "pv")}
	lost := map[string]LinkState{"id-of-lab-2": {Why: "silent for 40s; see that it is on"}}
	disk := []Problem{{Code: "disk-space", Text: "1 % are free", Cure: "remove images that nothing uses: rivulet image rm --unused; or: delete files"}}
	away := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "lab", Labels: map[string]string{policy.NamespaceLabel: "burst"}}}
	evicted := func(message string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Status.Phase, p.Status.Reason, p.Status.Message = corev1.PodFailed, "Evicted", message
		}
	}
	for i := range two {
		two[i].Labels[corev1.LabelHostname] = two[i].Name
	}
	cordoned[1].Labels[corev1.LabelHostname] = "lab-2"
	for name, c := range map[string]struct {
		facts            Facts
		code, what, cure string
	}{
		"no room at home, and the namespace stays there": {Facts{Pod: asks("2", nil), Nodes: two}, NoRoom, "home has no room for 2 cpu, and lab-2 has, but its namespace may not go there", "rivulet offload lab"},
		"no room anywhere": {Facts{Pod: asks("9", offloaded), Nodes: two}, NoRoom, "home has 1 of cpu free, it requests 9", "request less"},
		"it runs again after it had too little memory": {Facts{Pod: asks("1", on("home", func(p *corev1.Pod) {
			p.Status.Phase = corev1.PodRunning
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", RestartCount: 1, LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "OOMKilled", FinishedAt: metav1.NewTime(now.Add(-time.Minute))}}}}
		})), Nodes: two, Now: now}, Crash, "container c ended with 137 (OOMKilled)", "raise its memory limit"},
		"room that others have": {Facts{Pod: asks("2", offloaded), Nodes: two, Pods: []corev1.Pod{*asks("3", on("lab-2", nil))}}, NoRoom, "home has 1", "add a device"},
		"a taint": {Facts{Pod: asks("100m", nil), Nodes: []corev1.Node{node("home", "1", func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "maintenance", Value: "yes", Effect: corev1.TaintEffectNoSchedule}}
		})}}, Taint, "home has taint maintenance=yes:NoSchedule", "rivulet kubectl taint node home maintenance-"},
		"not chosen": {Facts{Pod: asks("2", offloaded), Nodes: []corev1.Node{two[0], node("lab-2", "4", all(virtual, func(n *corev1.Node) {
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: policy.UnchosenTaint, Effect: corev1.TaintEffectNoSchedule})
		}))}}, Taint, "gets no new pods: the configuration does not choose it", "rivulet config explain virtualNodes"},
		"cordoned":                            {Facts{Pod: asks("100m", nil), Nodes: []corev1.Node{node("home", "1", func(n *corev1.Node) { n.Spec.Unschedulable = true })}}, Taint, "cordoned", "rivulet kubectl uncordon home"},
		"a full disk":                         {Facts{Pod: asks("100m", nil), Nodes: full[:1], Running: true, Problems: disk}, Pressure, "home has DiskPressure: its disk is nearly full, and it takes no new pods (1 % are free)", "rivulet image rm --unused"},
		"a full disk, and room away":          {Facts{Pod: asks("100m", nil), Nodes: full, Running: true, Problems: disk}, Pressure, "DiskPressure", "rivulet image rm --unused"},
		"a disk that was full":                {Facts{Pod: asks("100m", nil), Nodes: full[:1], Running: true}, Pressure, "within 5 minutes", ""},
		"a full disk, without a supervisor":   {Facts{Pod: asks("100m", nil), Nodes: full[:1]}, Pressure, "DiskPressure", "rivulet doctor --only disk-space"},
		"little memory":                       {Facts{Pod: asks("100m", nil), Nodes: []corev1.Node{node("home", "1", tainted(corev1.TaintNodeMemoryPressure, corev1.NodeMemoryPressure))}}, Pressure, "MemoryPressure", "stop pods"},
		"many processes":                      {Facts{Pod: asks("100m", nil), Nodes: []corev1.Node{node("home", "1", tainted(corev1.TaintNodePIDPressure, corev1.NodePIDPressure))}}, Pressure, "PIDPressure", "many processes"},
		"a taint of the system":               {Facts{Pod: asks("100m", nil), Nodes: []corev1.Node{node("home", "1", tainted("node.kubernetes.io/network-unavailable", corev1.NodeNetworkUnavailable))}}, Taint, "which the system sets and takes off", "rivulet doctor"},
		"runs where the disk is full":         {Facts{Pod: asks("100m", on("home", running)), Nodes: full[:1], UsedCPU: -1, Running: true, Problems: disk}, Pressure, "DiskPressure", "rivulet image rm --unused"},
		"evicted for the disk":                {Facts{Pod: asks("1", on("home", evicted("The node was low on resource: ephemeral-storage. Threshold quantity: 1."))), Nodes: full, Running: true, Problems: disk}, Ended, "low on resource: ephemeral-storage", "rivulet image rm --unused"},
		"not let in for the disk":             {Facts{Pod: asks("1", on("home", evicted("Pod was rejected: The node had condition: [DiskPressure]."))), Nodes: full, Running: true, Problems: disk}, Ended, "DiskPressure", "rivulet image rm --unused"},
		"an image that does not fit":          {Facts{Pod: asks("1", on("home", waits("ErrImagePull", "write: no space left on device"))), Nodes: two, Running: true, Problems: disk}, Pressure, "does not fit on the disk of home", "rivulet image rm --unused"},
		"a peer is cordoned":                  {Facts{Pod: asks("2", offloaded), Nodes: cordoned}, Taint, "lab-2 takes no new pods (cordoned)", "rivulet uncordon lab-2"},
		"its volume is on a cordoned peer":    {Facts{Pod: asks("100m", all(offloaded, withClaim)), Nodes: cordoned, Claims: bound, Volumes: volumeOn("lab-2")}, Taint, "its volume (claim data) is on lab-2: lab-2 takes no new pods (cordoned)", "rivulet uncordon lab-2; or: rivulet move volume lab/data home"},
		"its volume is on a lost peer":        {Facts{Pod: asks("100m", all(offloaded, withClaim)), Nodes: two, Claims: bound, Volumes: volumeOn("lab-2"), Links: lost}, Link, "its volume (claim data) is on lab-2: peer lab-2 is not reached: silent for 40s", "rivulet doctor peer lab-2; or: "},
		"its volume is on no node":            {Facts{Pod: asks("100m", all(offloaded, withClaim)), Nodes: two, Claims: bound, Volumes: made(volumeOn("gone"))}, Claim, "the node that has its volume (claim data) is no more: kubernetes.io/hostname=gone", "rivulet kubectl describe pvc -n lab data"},
		"its volume names a node wrongly":     {Facts{Pod: asks("100m", all(offloaded, withClaim)), Nodes: two, Claims: bound, Volumes: volumeOn("hmoe")}, Claim, "names no node of this cluster in its nodeAffinity (kubernetes.io/hostname=hmoe); there are: home, lab-2", "rivulet kubectl delete pod -n lab web; rivulet kubectl delete pvc -n lab data; rivulet kubectl delete pv "},
		"a label that no node has":            {Facts{Pod: asks("100m", room), Nodes: two[:1]}, Selector, "home has no label room, and its nodeSelector asks for room=B13", "rivulet kubectl label node home --overwrite room=B13; or: "},
		"another value at a peer":             {Facts{Pod: asks("100m", all(offloaded, room)), Nodes: labelled(two[1:], "room", "B12")}, Selector, "lab-2 has room=B12, and its nodeSelector asks for room=B13", "rivulet peer lab-2 --label=room=B13; or: "},
		"a label in its affinity":             {Facts{Pod: asks("100m", floors), Nodes: labelled(two[:1], "floor", "1")}, Selector, "home has floor=1, and its affinity asks for floor in 3, 4", "rivulet kubectl label node home --overwrite floor=3; or: "},
		"a label, and it stays at home":       {Facts{Pod: asks("100m", room), Nodes: two}, Selector, "home has no label room", "rivulet kubectl label node home"},
		"no room at home, and a peer is lost": {Facts{Pod: asks("2", offloaded), Nodes: two, Links: lost}, Link, "peer lab-2 is not reached", "rivulet doctor peer lab-2; or: if it is gone for good: rivulet unpeer lab-2 --force"},
		"deleted on a lost peer": {Facts{Now: now, Nodes: two, Links: lost, Pod: asks("1", on("lab-2", func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: now.Add(-time.Minute)} }))},
			Link, "the pod was deleted, and is gone when its node has answered", "rivulet doctor peer lab-2"},
		"a port that is taken":                    {Facts{Pod: asks("100m", port(80)), Nodes: two[:1], Pods: []corev1.Pod{*asks("100m", on("home", all(port(80), called("other"))))}}, Port, "port TCP 80 of home is taken by pod lab/other", "another hostPort"},
		"the host's network, and no room at home": {Facts{Pod: asks("2", func(p *corev1.Pod) { p.Spec.HostNetwork = true }), Nodes: two, Namespace: away}, NoRoom, "home has 1 of cpu free", "request less"},
		"a namespace of the cluster":              {Facts{Pod: asks("2", func(p *corev1.Pod) { p.Namespace = "kube-system" }), Nodes: two}, NoRoom, "stays at home", "request less"},
		"a namespace that goes elsewhere": {Facts{Pod: asks("2", func(p *corev1.Pod) {
			offloaded(p)
			p.Spec.NodeSelector = map[string]string{policy.TargetLabel: "lab-3"}
		}), Nodes: two[1:], Namespace: &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "lab", Labels: map[string]string{policy.NamespaceLabel: "remote", policy.NamespaceToLabel: "lab-3"}}}}, Selector, "goes to lab-3 only", "rivulet offload lab"},
		"its peer lends nothing": {Facts{Pod: asks("1", func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: "lab-3"} }), Nodes: two, Links: map[string]LinkState{"id-of-lab-3": {Name: "lab-3", Connected: true, LendsNothing: true}}},
			Link, "lab-3 lends nothing now", "ask its owner"},
		"its peer lends nothing any more": {Facts{Pod: asks("1", on("lab-3", running)), Nodes: two, Links: map[string]LinkState{"id-of-lab-3": {Name: "lab-3", Connected: true, LendsNothing: true}}}, Link, "lab-3 lends nothing now", "ask its owner"},
		"withdrawn": {Facts{Pod: asks("2", offloaded), Nodes: []corev1.Node{node("lab-2", "4", func(n *corev1.Node) {
			virtual(n)
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: policy.WithdrawnTaint, Effect: corev1.TaintEffectNoSchedule})
		})}}, Taint, "lab-2 lends nothing any more", "rivulet peers"},
		"another platform": {Facts{Pod: asks("100m", func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{corev1.LabelArchStable: "arm64"} }), Nodes: two[:1]}, Selector, "home has kubernetes.io/arch=amd64, and its nodeSelector asks for kubernetes.io/arch=arm64", "correct that in the manifest"},
		"a claim":          {Facts{Pod: asks("100m", withClaim), Nodes: two, Claims: []corev1.PersistentVolumeClaim{*claim(corev1.ClaimPending, "fast", "")}}, Class, "its claim data has no volume: there is no StorageClass fast", "rivulet kubectl delete pvc -n lab data"},
		"the peer is cut off while it waits": {Facts{Pod: asks("2", offloaded), Nodes: two[1:], Links: map[string]LinkState{"id-of-lab-2": {Why: "no answer"}}},
			Link, "peer lab-2 is not reached: no answer", "rivulet doctor peer lab-2"},
		"made too early": {Facts{Pod: asks("2", nil), Nodes: two, Events: event("OffloadTooLate", "made before; delete it")}, TooLate, "made before", "delete it"},
		"a provider has no cure to give": {Facts{Pod: asks("1", on("lab-2", func(p *corev1.Pod) {
			running(p)
			p.Status.Reason, p.Status.Message = translate.ReasonRefused, "offload: it cannot; rivulet kubectl delete namespace lab"
			p.Status.Conditions[len(p.Status.Conditions)-1].Status = corev1.ConditionFalse
		})), Nodes: two, Now: now, Events: []corev1.Event{{InvolvedObject: corev1.ObjectReference{UID: "u"}, Reason: translate.ReasonMisfit, ReportingController: translate.EventReporter, Message: "x; rivulet kubectl delete namespace lab", LastTimestamp: metav1.NewTime(now)}}},
			Starting, "it runs and is not ready yet", "rivulet kubectl logs"},
		"its campus is cut off": {Facts{Pod: asks("1", on("burst-uni", running)), Nodes: []corev1.Node{node("burst-uni", "4", func(n *corev1.Node) {
			n.Labels = map[string]string{policy.VirtualNodeLabel: "burst.1", policy.TargetLabel: "burst-uni", policy.KindLabel: "burst"}
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse, Reason: "ProviderNotReady", Message: "uni: the server is not reached"}}
		})}}, Link, "its node burst-uni is not ready: uni: the server is not reached", "rivulet burst status uni; or: if it is gone for good: rivulet burst remove uni --force"},
		"a gate at home": {Facts{Pod: asks("1", func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "queue"}} }), Nodes: two}, Gated, "it has a scheduling gate: queue", "rivulet kubectl edit pod -n lab web"},
		"a gate of its peer": {Facts{Pod: asks("1", on("lab-2", func(p *corev1.Pod) {
			p.Status.Reason, p.Status.Message = translate.ReasonGated, "on lab-2: its owner's policy or queue holds the pod by scheduling gate queue, and starts it by removing that"
		})), Nodes: two}, Gated, "on lab-2: its owner's policy or queue holds the pod by scheduling gate queue", "ask the owner of lab-2: nothing at home removes the gate; or have it made elsewhere: rivulet cordon lab-2; and then: rivulet kubectl delete pod -n lab web"},
		"no node of its peer": {Facts{Pod: asks("1", on("lab-2", func(p *corev1.Pod) {
			p.Status.Reason, p.Status.Message = translate.ReasonUnschedulable, "on lab-2: 0/1 nodes are available"
		})), Nodes: two}, NoRoom, "lab-2 took it and has no device for it: on lab-2: 0/1 nodes", "wait for room there; or have it made elsewhere: rivulet cordon lab-2; and then: rivulet kubectl delete pod -n lab web"},
		"refused": {Facts{Pod: asks("2", on("lab-2", func(p *corev1.Pod) {
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: translate.OffloadedCondition, Status: corev1.ConditionFalse, Reason: translate.ReasonRefused, Message: "offload: this pod cannot run on another cluster because of spec.hostNetwork (the host's network is home's); remove the field"})
		})), Nodes: two}, Refused, "spec.hostNetwork", "remove the field"},
		"no image away":         {Facts{Pod: asks("1", on("lab-2", waits("ImagePullBackOff", "not found"))), Nodes: two}, Image, "image web:1 is not on lab-2", "rivulet image push --to lab-2 FILE.tar; or: "},
		"no image by the clock": {Facts{Pod: asks("1", on("home", waits("ErrImagePull", "tls: failed to verify certificate: x509: certificate has expired or is not yet valid: current time 2026-12-01T10:00:00Z is before 2027-02-01T00:00:00Z"))), Nodes: two}, Image, "image web:1 is not on home", "set the clock of home"},
		"an old certificate":    {Facts{Pod: asks("1", on("home", waits("ErrImagePull", "tls: failed to verify certificate: x509: certificate has expired or is not yet valid: current time 2026-12-01T10:00:00Z is after 2026-02-01T00:00:00Z"))), Nodes: two}, Image, "image web:1 is not on home", "rivulet image push FILE.tar"},
		"no image at home":      {Facts{Pod: asks("1", on("home", waits("ErrImagePull", "not found"))), Nodes: two}, Image, "image web:1 is not on home", "rivulet image push FILE.tar"},
		"no image for a tenant": {Facts{Pod: asks("1", on("home", func(p *corev1.Pod) {
			p.Labels = map[string]string{policy.OriginLabel: "someone"}
			waits("ImagePullBackOff", "the image cannot be had here")(p)
		})), Nodes: two}, Image, "image web:1 is not on home", "rivulet image push --share FILE.tar"},
		"an image for others":      {Facts{Pod: asks("1", on("lab-2", nil)), Nodes: two, Events: event(translate.ReasonMisfit, "image web:1 does not run on lab-2 (linux/amd64): exec format error")}, Platform, "does not run on lab-2", "kubernetes.io/arch"},
		"the peer's quota is full": {Facts{Pod: asks("1", on("lab-2", nil)), Nodes: two, Events: event("FailedCreate", "exceeded quota: rivulet")}, Quota, "exceeded quota", "rivulet cordon lab-2"},
		"a secret that is missing": {Facts{Pod: asks("1", on("home", waits("CreateContainerConfigError", `secret "x" not found`))), Nodes: two}, Configured, `secret "x" not found`, "make what it names"},
		"it crashes":               {Facts{Pod: asks("1", on("home", waits("CrashLoopBackOff", "back-off"))), Nodes: two}, Crash, "container c ended", "logs -n lab web -c c --previous"},
		"it looks for a private address": {Facts{Pod: asks("1", on("lab-2", func(p *corev1.Pod) {
			waits("CrashLoopBackOff", "back-off")(p)
			p.Status.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: 1, Reason: "Error"}
		})), Nodes: two, LastLines: map[string]string{"c": "x\nmember: Failed to get interface addresses: no private IP address found, and explicit IP not provided\n"}}, Crash, "addresses of tunnel.peerCIDR", "10.128.0.0/9"},
		"at home that is another cause": {Facts{Pod: asks("1", on("home", func(p *corev1.Pod) {
			waits("CrashLoopBackOff", "back-off")(p)
			p.Status.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: 1, Reason: "Error"}
		})), Nodes: two, LastLines: map[string]string{"c": "no private IP address found"}}, Crash, "last with 1 (Error)", "--previous"},
		"its program has capabilities in its file": {Facts{Pod: asks("1", on("lab-2", func(p *corev1.Pod) {
			waits("CrashLoopBackOff", "back-off")(p)
			p.Status.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: 126, Reason: "Error", Message: "sh: ping: Operation not permitted"}
		})), Nodes: two}, Crash, "no NET_RAW", "rivulet.dev/offload=off"},
		"it looks for a Service that is not away": {Facts{Pod: asks("1", on("lab-2", func(p *corev1.Pod) {
			waits("CrashLoopBackOff", "back-off")(p)
			p.Status.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: 1, Reason: "Error"}
		})), Nodes: two, LastLines: map[string]string{"c": "dial tcp: lookup postgres.db.svc on 10.43.0.10:53: no such host"}}, Crash, "only Services of namespaces that are offloaded exist", "rivulet offload NAMESPACE"},
		"at home no name is missing by that": {Facts{Pod: asks("1", on("home", func(p *corev1.Pod) {
			waits("CrashLoopBackOff", "back-off")(p)
			p.Status.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: 1, Reason: "Error"}
		})), Nodes: two, LastLines: map[string]string{"c": "lookup postgres.db.svc: no such host"}}, Crash, "last with 1 (Error)", "--previous"},
		"its pods are evicted": {Facts{Nodes: two, Pod: asks("1", on("lab-2", func(p *corev1.Pod) {
			waits("CrashLoopBackOff", "back-off")(p)
			p.Status.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "Evicted", Message: `Usage of EmptyDir volume "x" exceeds the limit "64Mi".`}
		}))}, Crash, `last with Evicted: Usage of EmptyDir volume "x"`, "raise that volume's sizeLimit"},
		"it runs again, and was evicted": {Facts{Nodes: two, UsedCPU: -1, Pod: asks("1", on("lab-2", func(p *corev1.Pod) {
			running(p)
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", RestartCount: 1, LastTerminationState: corev1.ContainerState{
				Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "Evicted", Message: "The node was low on resource: memory."}}}}
		}))}, Slow, "low on resource: memory", "request the memory"},
		"evicted at home": {Facts{Nodes: two, Pod: asks("1", on("home", func(p *corev1.Pod) {
			p.Status.Phase, p.Status.Reason, p.Status.Message = corev1.PodFailed, "Evicted", "Pod ephemeral local storage usage exceeds the total limit of containers 64Mi."
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "ContainerStatusUnknown"}}}}
		}))}, Ended, "Pod ephemeral local storage usage exceeds", "raise limits.ephemeral-storage"},
		"past its deadline": {Facts{Nodes: two, Pod: asks("1", on("home", func(p *corev1.Pod) {
			p.Status.Phase, p.Status.Reason = corev1.PodFailed, "DeadlineExceeded"
		}))}, Ended, "DeadlineExceeded", "spec.activeDeadlineSeconds"},
		"preempted": {Facts{Nodes: two, Pod: asks("1", on("home", func(p *corev1.Pod) {
			p.Status.Phase = corev1.PodFailed
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "PreemptionByScheduler", Message: "preempting to accommodate a higher priority pod"})
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 143, Reason: "Error"}}}}
		}))}, Ended, "PreemptionByScheduler", "PriorityClass of a higher value"},
		"out of memory": {Facts{Nodes: two, Pod: asks("1", on("home", func(p *corev1.Pod) {
			p.Status.Phase = corev1.PodFailed
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "OOMKilled"}}}}
		}))}, Ended, "container c ended with 137 (OOMKilled)", "raise its memory limit"},
		"the peer is cut off": {Facts{Pod: asks("1", on("lab-2", running)), Nodes: two, Links: map[string]LinkState{"id-of-lab-2": {}}}, Link, "lab-2 is not reached", "rivulet doctor peer lab-2"},
		"not ready, its volume is lost": {Facts{Pod: asks("1", on("home", func(p *corev1.Pod) { withClaim(p); p.Status.Phase = corev1.PodRunning })), Nodes: two,
			Claims: []corev1.PersistentVolumeClaim{*claim(corev1.ClaimLost, "fast", "pvc-1")}}, Claim, "volume pvc-1 is no more", "delete pvc -n lab data"},
		"not ready": {Facts{Pod: asks("1", on("home", func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning })), Nodes: two, Events: event("Unhealthy", "Readiness probe failed")},
			Probe, "Readiness probe failed", "logs"},
		"a probe's output that writes to the terminal": {Facts{Pod: asks("1", on("home", func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning })), Nodes: two,
			Events: event("Unhealthy", "failed\x1b[2K\r\u009b31m\u202e\n    cure: rm\u2066 -rf /")}, Probe, "it runs and is not ready: failed [2K 31m cure: rm -rf /", "logs"},
		"fine":     {Facts{Pod: asks("1", on("home", running)), Nodes: two, UsedCPU: -1}, Fine, "is ready", ""},
		"far away": {Facts{Pod: asks("1", on("lab-2", running)), Nodes: two, UsedCPU: -1, Links: map[string]LinkState{"id-of-lab-2": {Connected: true, Path: "relay", RTT: 80 * time.Millisecond}}}, Slow, "80ms away (path: relay)", "doctor peer"},
		"at its limit": {Facts{UsedCPU: 95, Nodes: two, Pod: asks("50m", on("home", func(p *corev1.Pod) {
			running(p)
			p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}
		}))}, Slow, "95m of the 100m", "limits.cpu"},
		"deleted": {Facts{Now: now, Nodes: two, Pod: asks("1", on("home", func(p *corev1.Pod) {
			running(p)
			p.DeletionTimestamp = &metav1.Time{Time: now.Add(-time.Minute)}
		}))}, Deleting, "1m0s ago", "--force"},
		"not ended": {Facts{Now: now, Nodes: two, Events: event(translate.ReasonNotEnded, "lab-2 refuses to end this pod"), Pod: asks("1", on("lab-2", func(p *corev1.Pod) {
			running(p)
			p.DeletionTimestamp = &metav1.Time{Time: now.Add(-time.Minute)}
		}))}, Deleting, "lab-2 refuses", ""},
		"a name is not found, and it is not started again": {Facts{Nodes: two, LastLines: map[string]string{"c": "lookup db: no such host"}, Pod: asks("1", on("lab-2", func(p *corev1.Pod) {
			p.Status.Phase = corev1.PodFailed
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 3, Reason: "Error"}}}, {Name: "d", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Reason: "Error"}}}}
		}))}, Ended, "container c ended with 3 (Error): a name was not found", "if it is a Service's name: have its namespace's Services there, too: rivulet offload NAMESPACE --when services"},
		"failed": {Facts{Nodes: two, Pod: asks("1", on("home", func(p *corev1.Pod) {
			p.Status.Phase = corev1.PodFailed
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 3, Reason: "Error"}}}}
		}))}, Ended, "container c ended with 3", "rivulet kubectl logs"},
	} {
		t.Run(name, func(t *testing.T) {
			a := Explain(c.facts)
			if len(a.Reasons) == 0 {
				t.Fatal("no reason")
			}
			if r := a.Reasons[0]; r.Code != c.code || !strings.Contains(r.What, c.what) || !strings.Contains(r.Cure, c.cure) {
				t.Errorf("%+v\nwant %s, %q, %q", a.Reasons, c.code, c.what, c.cure)
			}
			for _, r := range a.Reasons {
				if c.facts.Pod.Status.Phase == corev1.PodFailed && strings.Contains(r.Cure, "--previous") {
					t.Errorf("it was not started again, and has no previous run: %s", r.Cure)
				}
				if strings.Contains(r.Cure, "ctr images") || strings.Contains(r.Cure, "--prune") || strings.Contains(r.Cure, "kubernetes.io/") && strings.Contains(r.Cure, "kubectl taint") {
					t.Errorf("a cure that does harm: %s", r.Cure)
				}
			}
		})
	}
}

// A pod that runs well away is told what its Services do not reach from there, after how it is itself.
func TestWhyNamesWhatIsLeftOut(t *testing.T) {
	a := Explain(Facts{Pod: asks("1", on("lab-2", running)), Nodes: []corev1.Node{node("lab-2", "4", virtual)}, UsedCPU: -1,
		LeftOut: []reflect.LeftOut{{Service: "nas", What: "Service nas leads to 192.168.1.20", Cure: "forward to it"}}})
	if len(a.Reasons) != 2 || a.Reasons[0].Code != Fine || a.Reasons[1] != (Reason{LeftOut, "Service nas leads to 192.168.1.20", "forward to it"}) {
		t.Errorf("%+v", a.Reasons)
	}
}

// A pod that cannot go away has that named after what it lacks at home.
func TestWhyItCannotGoEither(t *testing.T) {
	a := Explain(Facts{Pod: asks("2", func(p *corev1.Pod) { p.Spec.HostNetwork = true; port(80)(p) }), Nodes: []corev1.Node{node("home", "1", nil), node("lab-2", "4", virtual)}})
	if len(a.Reasons) != 2 || a.Reasons[1].Code != Refused || !strings.Contains(a.Reasons[1].What, "spec.hostNetwork") || !strings.HasSuffix(a.Reasons[1].What, "hostPort (the port would open on another cluster's host: use a Service)") {
		t.Errorf("%+v", a.Reasons)
	}
}

// A pod that its own label keeps at home is told so, and not to offload its namespace.
func TestWhyItStaysByItsLabel(t *testing.T) {
	kept := asks("2", func(p *corev1.Pod) { p.Labels = map[string]string{policy.NamespaceLabel: "off"} })
	a := Explain(Facts{Pod: kept, Nodes: []corev1.Node{node("home", "1", nil), node("lab-2", "4", virtual)}})
	if len(a.Reasons) != 2 || a.Reasons[0].Code != NoRoom || a.Reasons[1].Code != Selector || !strings.Contains(a.Reasons[1].What, "its label rivulet.dev/offload=off keeps it at home") {
		t.Errorf("%+v", a.Reasons)
	}
}

// An image's name is any text for the API server, and whoever made the pod wrote it.
func TestAnImageIsNoControlSequence(t *testing.T) {
	for _, message := range []string{"", "no space left on device"} {
		p := asks("1", on("home", waits("InvalidImageName", message)))
		p.Spec.Containers[0].Image = "a\x1b[2J\nERROR all is well"
		what := Explain(Facts{Pod: p, Nodes: []corev1.Node{node("home", "1", nil)}}).Reasons[0].What
		if strings.ContainsAny(what, "\x1b\n") || !strings.Contains(what, "image a") {
			t.Errorf("%q", what)
		}
	}
}

// What somebody else wrote does not fill the screen.
func TestOthersWordsAreBounded(t *testing.T) {
	a := Explain(Facts{Pod: asks("1", on("home", waits("ErrImagePull", strings.Repeat("word ", 10000)))), Nodes: []corev1.Node{node("home", "1", nil)}})
	if n := len(a.Reasons[0].What); n > 600 {
		t.Errorf("%d bytes", n)
	}
}
