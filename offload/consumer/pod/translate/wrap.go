package translate

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"math"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"rivulet/offload/policy"
	"rivulet/offload/replacement"
)

// HasRun reports whether a pod of the wrapper may have started; a wrapper that is a pod counts as its own.
func HasRun(w Wrapper) bool {
	switch {
	case w.Job != nil:
		st := &w.Job.Status
		return st.Active+st.Succeeded+st.Failed > 0 || len(st.Conditions) > 0 ||
			st.UncountedTerminatedPods != nil && len(st.UncountedTerminatedPods.Succeeded)+len(st.UncountedTerminatedPods.Failed) > 0
	case w.ReplicaSet != nil:
		return w.ReplicaSet.Status.Replicas > 0
	}
	return true
}

// Wrapper represents one pod on the provider: a Job, or for restartPolicy Always a ReplicaSet of one, or the away pod
// itself if the provider replaces it (package replacement). Exactly one of them is set.
type Wrapper struct {
	ReplicaSet *appsv1.ReplicaSet
	Job        *batchv1.Job
	Pod        *corev1.Pod
}

// Object returns the metadata of the one that is set.
func (w Wrapper) Object() metav1.Object {
	switch {
	case w.Job != nil:
		return w.Job
	case w.Pod != nil:
		return w.Pod
	}
	return w.ReplicaSet
}

// Template is the away pod's template inside the wrapper; a copy if the wrapper is a pod.
func (w Wrapper) Template() *corev1.PodTemplateSpec {
	switch {
	case w.Job != nil:
		return &w.Job.Spec.Template
	case w.Pod != nil:
		labels, annotations := replacement.Transferred(w.Pod)
		return &corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: annotations}, Spec: w.Pod.Spec}
	}
	return &w.ReplicaSet.Spec.Template
}

// IsOf reports whether the wrapper represents the pod of home with that UID.
func (w Wrapper) IsOf(uid types.UID) bool {
	return w.Object().GetLabels()[policy.HomeUIDLabel] == string(uid)
}

// Ending reports whether the wrapper is being deleted for good.
func (w Wrapper) Ending() bool {
	return w.Object().GetDeletionTimestamp() != nil && (w.Pod == nil || !replacement.Kept(w.Pod))
}

// Wrap translates a pod of home into what is created in the twin namespace. It is pure. cluster is home's ID, api the
// address in the twin of the Service that leads to home's API server, empty without one. The error is a *Refusal.
func Wrap(home *corev1.Pod, cluster, api string) (Wrapper, error) {
	if r := Refuse(home); r != nil {
		return Wrapper{}, r
	}
	if full := fullName(home); len(full) > longestName {
		return Wrapper{}, &Refusal{Fields: []RefusedField{{"spec.setHostnameAsFQDN", fmt.Sprintf("%s has %d characters, and a host name away %d at most", full, len(full), longestName)}}}
	}
	uid := string(home.UID)
	ties := map[string]string{policy.OriginLabel: cluster, policy.HomeUIDLabel: uid}
	notes := map[string]string{policy.HomeNamespaceAnnotation: home.Namespace, policy.HomePodAnnotation: home.Name}
	if home.Generation > 1 { // its spec has changed (alter)
		notes[policy.HomeGenerationAnnotation] = strconv.FormatInt(home.Generation, 10)
	}
	meta := metav1.ObjectMeta{Name: WrapperName(home.Name), Labels: ties, Annotations: notes}
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{policy.HomeUIDLabel: uid}}
	template := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: merged(home.Labels, ties), Annotations: merged(without(home.Annotations, policy.HomeAddressesAnnotation), notes)},
		Spec:       awaySpec(home, api),
	}
	if RestartPolicy(home) == corev1.RestartPolicyAlways {
		template.Spec.ActiveDeadlineSeconds = nil // enforced by home (expire)
		return Wrapper{ReplicaSet: &appsv1.ReplicaSet{
			ObjectMeta: meta,
			Spec:       appsv1.ReplicaSetSpec{Replicas: ptr.To[int32](1), Selector: selector, Template: template},
		}}, nil
	}
	// With Never the pod's own exit decides. With OnFailure the kubelet restarts it, and the Job replaces it if it is
	// lost, never beside a living one; then the deadline is also the Job's, since each of its pods begins a new one. The
	// pod keeps its own: quotas with the scopes Terminating and NotTerminating go by it.
	backoff, deadline, failure := int32(0), (*int64)(nil), endPolicy()
	if RestartPolicy(home) == corev1.RestartPolicyOnFailure {
		failure = nil // not allowed with it, and the Job makes another pod
		backoff, deadline = math.MaxInt32, template.Spec.ActiveDeadlineSeconds
	}
	return Wrapper{Job: &batchv1.Job{
		ObjectMeta: meta,
		Spec: batchv1.JobSpec{
			Parallelism: ptr.To[int32](1), Completions: ptr.To[int32](1), BackoffLimit: &backoff, ActiveDeadlineSeconds: deadline,
			PodReplacementPolicy: ptr.To(batchv1.Failed), PodFailurePolicy: failure,
			// Home's Job controller has set its own labels on the pod; the provider's must not require others of the
			// same names.
			ManualSelector: ptr.To(true), Selector: selector, Template: template,
		},
	}}, nil
}

// awaySpec starts from a copy, so that fields of newer Kubernetes versions are not lost: the provider accepts or
// refuses them.
func awaySpec(home *corev1.Pod, api string) corev1.PodSpec {
	s := *home.Spec.DeepCopy()
	s.RestartPolicy = RestartPolicy(home)

	// Placement at home is done, and starts afresh on the provider. The image's platform still applies.
	s.NodeName, s.Affinity, s.TopologySpreadConstraints = "", nil, nil
	s.NodeSelector = platform(s.NodeSelector)
	s.Tolerations = awayTolerations(s.Tolerations)
	s.SchedulerName, s.SchedulingGates, s.WorkloadRef = "", nil, nil
	s.PriorityClassName, s.Priority, s.PreemptionPolicy = "", nil, nil
	s.Overhead = nil // belongs to the provider's runtime class

	// The account is home's; the pod gets its tokens through volumes.
	s.ServiceAccountName, s.DeprecatedServiceAccount = "default", ""
	s.AutomountServiceAccountToken = ptr.To(false)
	redirectTokens(&s, TokenSecret(home.UID))
	homeAuthority(&s)

	// Gates are set by controllers of home, so they are evaluated there (Status).
	s.ReadinessGates = nil
	// Added to a running pod only (debug); a template may not have them.
	s.EphemeralContainers = nil

	if s.Hostname == "" && s.HostnameOverride == nil {
		s.Hostname = hostname(home.Name)
	}
	if full := fullName(home); full != "" { // the API server accepts one of the two
		s.HostnameOverride, s.SetHostnameAsFQDN = &full, nil
	}
	for _, list := range [][]corev1.Container{s.InitContainers, s.Containers} {
		for i := range list {
			redirectEnv(list[i].Env, home)
		}
	}
	redirectVolumes(s.Volumes)
	ownClaims(s.Volumes, home.Name)
	if api != "" {
		toHomeAPI(&s, home.Namespace, api)
	}
	return s
}

// platform keeps labels that restrict the pod's platform: a provider may have nodes of several.
func platform(in map[string]string) map[string]string {
	var out map[string]string
	for _, key := range []string{corev1.LabelArchStable, corev1.LabelOSStable} {
		if v, ok := in[key]; ok {
			out = merged(out, map[string]string{key: v})
		}
	}
	return out
}

// awayTolerations keeps those that can match a taint of the provider's nodes. A toleration of everything would also
// match the provider's own virtual nodes.
func awayTolerations(in []corev1.Toleration) []corev1.Toleration {
	var out []corev1.Toleration
	for _, t := range in {
		switch t.Key {
		case "", policy.VirtualTaint, policy.AwayTaint, corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable:
		default:
			out = append(out, t)
		}
	}
	return out
}

// WrapperName is the pod's name if it is valid for a Job (63 characters), otherwise a shortened one with a hash. It is
// never parsed: HomePodAnnotation is the way back.
func WrapperName(name string) string {
	if len(name) <= 63 {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return strings.TrimRight(name[:52], "-.") + "-" + hex.EncodeToString(sum[:5])
}

// longestName is the longest host name that a kubelet does not shorten.
const longestName = 63

// hostname is what a kubelet at home makes of the pod's name, as a single DNS label.
func hostname(name string) string { return cut(strings.ReplaceAll(name, ".", "-")) }

func cut(name string) string {
	if len(name) > longestName {
		name = strings.TrimRight(name[:longestName], "-.")
	}
	return name
}

// fullName is the full host name at home of a pod that is to have it, "" for others. A kubelet away would make it with
// the twin's name.
func fullName(home *corev1.Pod) string {
	s := &home.Spec
	if !ptr.Deref(s.SetHostnameAsFQDN, false) || s.Subdomain == "" {
		return ""
	}
	return strings.Join([]string{cut(cmp.Or(s.Hostname, home.Name)), s.Subdomain, home.Namespace, "svc.cluster.local"}, ".")
}

// RestartPolicy is the pod's, or the default.
func RestartPolicy(p *corev1.Pod) corev1.RestartPolicy {
	if p.Spec.RestartPolicy == "" {
		return corev1.RestartPolicyAlways
	}
	return p.Spec.RestartPolicy
}

func without(m map[string]string, key string) map[string]string {
	if _, there := m[key]; !there {
		return m
	}
	m = maps.Clone(m)
	delete(m, key)
	return m
}

func merged(base, over map[string]string) map[string]string {
	out := make(map[string]string, len(base)+len(over))
	maps.Copy(out, base)
	maps.Copy(out, over)
	return out
}
