package explain

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"rivulet/offload/consumer/volume"
	"rivulet/offload/policy"
)

// inManifest is the cure for what a pod's owner wrote.
const inManifest = "correct that in the manifest that it was made from"

// mismatch explains a node that the pod's nodeSelector or required affinity does not choose: the label that it lacks, and
// the command that sets it, if a user sets labels of that name.
func mismatch(p *corev1.Pod, n *corev1.Node) Reason {
	field, want := unmet(p, n)
	if field == "" {
		return Reason{Selector, n.Name + " is not what its affinity asks for", inManifest}
	}
	has := n.Name + " has no label " + want.Key
	if v, ok := n.Labels[want.Key]; ok {
		has = n.Name + " has " + want.Key + "=" + v
	}
	r := Reason{Selector, fmt.Sprintf("%s, and its %s asks for %s", has, field, phrase(want)), inManifest}
	domain, _, _ := strings.Cut(want.Key, "/")
	system := strings.HasSuffix(domain, "kubernetes.io") || strings.HasSuffix(domain, "k8s.io") || domain == "rivulet.dev"
	if system || want.Operator != corev1.NodeSelectorOpIn && want.Operator != corev1.NodeSelectorOpExists {
		return r
	}
	label := want.Key + "="
	if len(want.Values) > 0 {
		label += want.Values[0]
	}
	if n.Labels[policy.VirtualNodeLabel] != "" {
		r.Cure = "rivulet peer " + target(n) + " --label=" + label + "; or: " + inManifest
	} else {
		r.Cure = "rivulet kubectl label node " + n.Name + " --overwrite " + label + "; or: " + inManifest
	}
	return r
}

// unmet is the first label that a pod requires and a node has not, and the pod's field that says so; "" if it is none of
// labels.
func unmet(p *corev1.Pod, n *corev1.Node) (field string, want corev1.NodeSelectorRequirement) {
	for _, key := range slices.Sorted(maps.Keys(p.Spec.NodeSelector)) {
		if value := p.Spec.NodeSelector[key]; n.Labels[key] != value {
			return "nodeSelector", corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{value}}
		}
	}
	if p.Spec.Affinity == nil || p.Spec.Affinity.NodeAffinity == nil || p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return "", want
	}
	for _, term := range p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, want := range term.MatchExpressions {
			one, err := nodeaffinity.NewNodeSelector(&corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{want}}}})
			if err == nil && !one.Match(n) {
				return "affinity", want
			}
		}
	}
	return "", want
}

// phrase are the words for a requirement: room=B13, or "room in B12, B13".
func phrase(r corev1.NodeSelectorRequirement) string {
	values := strings.Join(r.Values, ", ")
	switch r.Operator {
	case corev1.NodeSelectorOpIn:
		if len(r.Values) == 1 {
			return r.Key + "=" + values
		}
		return r.Key + " in " + values
	case corev1.NodeSelectorOpNotIn:
		return r.Key + " not in " + values
	case corev1.NodeSelectorOpExists:
		return "the label " + r.Key
	case corev1.NodeSelectorOpDoesNotExist:
		return "no label " + r.Key
	case corev1.NodeSelectorOpGt:
		return r.Key + " > " + values
	}
	return r.Key + " < " + values
}

// strayed explains a claim whose volume is on a node that is not there. Of a volume that a user wrote the name may be
// mistyped, and its data are where they were.
func (f Facts) strayed(claim string) Reason {
	v := f.volume(f.claim(claim).Spec.VolumeName)
	names := strings.Join(nodesOf(v), ", ")
	if v.Annotations["pv.kubernetes.io/provisioned-by"] == "" && v.Labels[volume.AwayLabel] == "" {
		var there []string
		for i := range f.Nodes {
			there = append(there, f.Nodes[i].Name)
		}
		return Reason{Claim, fmt.Sprintf("its volume %s (claim %s) names no node of this cluster in its nodeAffinity (%s); there are: %s", v.Name, claim, names, strings.Join(there, ", ")),
			anew(f.Pod, v, claim)}
	}
	return Reason{Claim, "the node that has its volume (claim " + claim + ") is no more: " + names,
		"bring that device back; or: bring the data back from a backup into a new claim: rivulet kubectl describe pvc -n " + f.Pod.Namespace + " " + claim}
}

// anew is the cure for a volume whose manifest is wrong: what uses it goes first, since it is not deleted while it is used.
func anew(p *corev1.Pod, v *corev1.PersistentVolume, claim string) string {
	kubectl, keep := "rivulet kubectl ", ""
	if v.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete {
		keep = "its reclaimPolicy is Delete, which may delete its files; keep them, before anything: " + kubectl + "patch pv " + v.Name + ` -p '{"spec":{"persistentVolumeReclaimPolicy":"Retain"}}'; then: `
	}
	return fmt.Sprintf("%scorrect the name in its manifest, save the manifest of the claim, and delete the pod, the claim and the volume: %sdelete pod -n %s %s; %[2]sdelete pvc -n %[3]s %[5]s; %[2]sdelete pv %[6]s; then make them anew: %[2]sapply -f FILE",
		keep, kubectl, p.Namespace, p.Name, claim, v.Name)
}

// nodesOf are the values that a volume's nodeAffinity asks for.
func nodesOf(v *corev1.PersistentVolume) (out []string) {
	for _, term := range v.Spec.NodeAffinity.Required.NodeSelectorTerms {
		for _, e := range term.MatchExpressions {
			out = append(out, phrase(e))
		}
	}
	return out
}
