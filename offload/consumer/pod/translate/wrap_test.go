package translate

import (
	"errors"
	"math"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"rivulet/offload/consumer/pod/translate/translatetest"
	"rivulet/offload/policy"
)

func TestWrapKeepsWhatWorksAwayAndDropsWhatIsHomes(t *testing.T) {
	w, err := Wrap(translatetest.Web(), "home-id", "")
	if err != nil {
		t.Fatal(err)
	}
	if w.Job != nil || *w.ReplicaSet.Spec.Replicas != 1 || w.ReplicaSet.Name != "web-7d9-x2x" {
		t.Fatalf("restartPolicy Always makes a ReplicaSet of one of the pod's name, not %+v", w)
	}
	tpl := w.ReplicaSet.Spec.Template
	if got := w.ReplicaSet.Spec.Selector.MatchLabels; len(got) != 1 || got[policy.HomeUIDLabel] != "u-1" {
		t.Errorf("selector %v does not select by the home pod's UID alone", got)
	}
	for key, want := range map[string]string{"app": "web", "pod-template-hash": "7d9", policy.OriginLabel: "home-id", policy.HomeUIDLabel: "u-1"} {
		if tpl.Labels[key] != want {
			t.Errorf("label %s=%q, want %q", key, tpl.Labels[key], want)
		}
	}
	for key, want := range map[string]string{"note": "n", policy.HomeNamespaceAnnotation: "lab", policy.HomePodAnnotation: "web-7d9-x2x"} {
		if tpl.Annotations[key] != want {
			t.Errorf("annotation %s=%q, want %q", key, tpl.Annotations[key], want)
		}
	}
	want := corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyAlways, ServiceAccountName: "default", AutomountServiceAccountToken: ptr.To(false),
		Hostname: "web-7d9-x2x", Tolerations: []corev1.Toleration{{Key: "gpu", Operator: corev1.TolerationOpExists}},
		Containers: []corev1.Container{{Name: "web", Image: "web:1", VolumeMounts: translatetest.Web().Spec.Containers[0].VolumeMounts,
			Env: []corev1.EnvVar{
				{Name: "POD", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.annotations['rivulet.dev/home-pod']"}}},
				{Name: "NODE", Value: "b"},
				{Name: "IP", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "status.podIP"}}}}}},
		Volumes: []corev1.Volume{
			{Name: "kube-api-access-abc", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
				Sources: []corev1.VolumeProjection{
					{Secret: &corev1.SecretProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "rivulet-token-u-1"},
						Items: []corev1.KeyToPath{{Key: "token-0", Path: "token"}}}},
					{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "rivulet-home-ca.crt"}}}}}}},
			translatetest.Web().Spec.Volumes[1]},
	}
	if !equality.Semantic.DeepEqual(tpl.Spec, want) {
		t.Errorf("away spec is\n%+v\nwant\n%+v", tpl.Spec, want)
	}
}

func TestWrapMakesJobsOfPodsThatEnd(t *testing.T) {
	for policy, backoff := range map[corev1.RestartPolicy]int32{corev1.RestartPolicyNever: 0, corev1.RestartPolicyOnFailure: math.MaxInt32} {
		p := translatetest.Web()
		p.Spec.RestartPolicy, p.Spec.ActiveDeadlineSeconds = policy, ptr.To[int64](60)
		w, err := Wrap(p, "home-id", "")
		if err != nil {
			t.Fatal(err)
		}
		if w.Job == nil || *w.Job.Spec.BackoffLimit != backoff || w.Job.Spec.TTLSecondsAfterFinished != nil || !*w.Job.Spec.ManualSelector {
			t.Errorf("%s: job %+v", policy, w.Job)
		}
		// A Job that makes another pod has the deadline, too: it is one for all of them.
		ofPod, ofJob := w.Job.Spec.Template.Spec.ActiveDeadlineSeconds, w.Job.Spec.ActiveDeadlineSeconds
		if ptr.Deref(ofPod, 0) != 60 {
			t.Errorf("%s: the pod has deadline %v", policy, ofPod)
		}
		if want := policy == corev1.RestartPolicyOnFailure; want != (ptr.Deref(ofJob, 0) == 60) || !want && ofJob != nil {
			t.Errorf("%s: the Job has deadline %v", policy, ofJob)
		}
	}
}

func TestRefusalNamesTheField(t *testing.T) {
	volume := func(s corev1.VolumeSource) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "v", VolumeSource: s})
		}
	}
	for path, change := range map[string]func(*corev1.Pod){
		"spec.hostNetwork":                func(p *corev1.Pod) { p.Spec.HostNetwork = true },
		"spec.containers":                 func(p *corev1.Pod) { p.Spec.InitContainers = make([]corev1.Container, policy.MostContainers) },
		"spec.containers[0].image":        func(p *corev1.Pod) { p.Spec.Containers[0].Image = strings.Repeat("i", policy.MostImage+1) },
		"spec.volumes[2].image.reference": volume(corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: strings.Repeat("i", policy.MostImage+1)}}),
		"spec.hostPID":                    func(p *corev1.Pod) { p.Spec.HostPID = true },
		"spec.hostIPC":                    func(p *corev1.Pod) { p.Spec.HostIPC = true },
		"spec.os":                         func(p *corev1.Pod) { p.Spec.OS = &corev1.PodOS{Name: corev1.Windows} },
		"spec.resourceClaims":             func(p *corev1.Pod) { p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu"}} },
		"spec.containers[0].securityContext.privileged": func(p *corev1.Pod) {
			p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: ptr.To(true)}
		},
		"spec.containers[0].ports[0].hostPort": func(p *corev1.Pod) { p.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: 80}} },
		"spec.containers[0].livenessProbe.httpGet.host": func(p *corev1.Pod) {
			p.Spec.Containers[0].LivenessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Host: "10.0.0.1"}}}
		},
		"spec.containers[0].readinessProbe.tcpSocket.host": func(p *corev1.Pod) {
			p.Spec.Containers[0].ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Host: "127.0.0.1"}}}
		},
		"spec.initContainers[0].startupProbe.httpGet.host": func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: "i", StartupProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Host: "h"}}}}}
		},
		"spec.containers[0].lifecycle.postStart.httpGet.host": func(p *corev1.Pod) {
			p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{HTTPGet: &corev1.HTTPGetAction{Host: "h"}}, PreStop: &corev1.LifecycleHandler{HTTPGet: &corev1.HTTPGetAction{}}}
		},
		"spec.containers[0].lifecycle.preStop.tcpSocket.host": func(p *corev1.Pod) {
			p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{TCPSocket: &corev1.TCPSocketAction{Host: "h"}}}
		},
		"spec.volumes[2].hostPath": volume(corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}),
		"spec.volumes[2].csi":      volume(corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{}}),
		"spec.volumes[2]":          volume(corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{}}),
		"spec.volumes[2].projected.sources[0]": volume(corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
			Sources: []corev1.VolumeProjection{{PodCertificate: &corev1.PodCertificateProjection{}}}}}),
	} {
		p := translatetest.Web()
		change(p)
		_, err := Wrap(p, "home-id", "")
		var refusal *Refusal
		if !errors.As(err, &refusal) || len(refusal.Fields) != 1 || refusal.Fields[0].Path != path {
			t.Errorf("refused for %v, want %s alone", err, path)
			continue
		}
		if !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "; ") {
			t.Errorf("message without field or cure: %v", err)
		}
	}
}

func TestNamesAreValidWhateverThePodIsCalled(t *testing.T) {
	label := `[a-z0-9]([-a-z0-9]{0,40}[a-z0-9])?`
	rapid.Check(t, func(t *rapid.T) {
		parts := rapid.SliceOfN(rapid.StringMatching(label), 1, 5).Draw(t, "labels")
		name := strings.Join(parts, ".")
		p := translatetest.Web()
		p.Name = name
		w, err := Wrap(p, "home-id", "")
		if err != nil {
			t.Fatal(err)
		}
		if got := w.ReplicaSet.Name; len(got) > 63 || len(name) <= 63 && got != name {
			t.Fatalf("wrapper of %q is called %q", name, got)
		}
		h := w.ReplicaSet.Spec.Template.Spec.Hostname
		if len(h) == 0 || len(h) > 63 || strings.ContainsAny(h, ".") || strings.HasSuffix(h, "-") {
			t.Fatalf("hostname of %q is %q", name, h)
		}
	})
}

func TestWrapLeavesThePodAlone(t *testing.T) {
	p := translatetest.Web()
	if _, err := Wrap(p, "home-id", ""); err != nil {
		t.Fatal(err)
	}
	if !equality.Semantic.DeepEqual(p, translatetest.Web()) {
		t.Fatal("the pod of home, which lives in a cache, was changed")
	}
}

// The host name of a pod that is to have its full one: that of home, however the twin is called.
func TestHostNameIsHomes(t *testing.T) {
	p := translatetest.Web()
	p.Namespace, p.Name, p.Spec.Hostname = "lab", "db-0", ""
	p.Spec.Subdomain, p.Spec.SetHostnameAsFQDN = "db", ptr.To(true)
	wrap := func() corev1.PodSpec {
		t.Helper()
		w, err := Wrap(p, "home-id", "")
		if err != nil {
			t.Fatal(err)
		}
		return w.Template().Spec
	}
	if s := wrap(); ptr.Deref(s.HostnameOverride, "") != "db-0.db.lab.svc.cluster.local" || s.SetHostnameAsFQDN != nil || s.Hostname != "db-0" || s.Subdomain != "db" {
		t.Errorf("override %q, full %v, host name %s, subdomain %s", ptr.Deref(s.HostnameOverride, ""), s.SetHostnameAsFQDN, s.Hostname, s.Subdomain)
	}
	p.Spec.Hostname = "own"
	if s := wrap(); ptr.Deref(s.HostnameOverride, "") != "own.db.lab.svc.cluster.local" {
		t.Errorf("override %v", s.HostnameOverride)
	}
	// A kubelet cuts what is longer, and home's would not start it at 65.
	p.Spec.Hostname = strings.Repeat("h", 64-len(".db.lab.svc.cluster.local"))
	if _, err := Wrap(p, "home-id", ""); err == nil || !strings.Contains(err.Error(), "spec.setHostnameAsFQDN (h") || !strings.Contains(err.Error(), "64 characters") {
		t.Errorf("a name that is cut: %v", err)
	}
	p.Spec.Subdomain = ""
	if s := wrap(); s.HostnameOverride != nil {
		t.Errorf("it has no full name: %v", *s.HostnameOverride)
	}
}
