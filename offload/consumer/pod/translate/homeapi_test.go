package translate

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"rivulet/offload/consumer/pod/translate/translatetest"
	"rivulet/offload/homeapi"
)

func TestTheAPIServerOfAnAwayPodIsHomes(t *testing.T) {
	p := translatetest.Web()
	p.Spec.HostAliases = []corev1.HostAlias{{IP: "10.0.0.1", Hostnames: []string{"db"}}}
	p.Spec.InitContainers = []corev1.Container{{Name: "init", Env: []corev1.EnvVar{{Name: "KUBERNETES_SERVICE_HOST", Value: "mine"}, {Name: "X", Value: "$(KUBERNETES_SERVICE_HOST)"}}}}
	w, err := Wrap(p, "home-id", "10.43.7.7")
	if err != nil {
		t.Fatal(err)
	}
	s := w.Template().Spec
	if len(s.HostAliases) != 2 || s.HostAliases[0].IP != "10.0.0.1" || s.HostAliases[1].IP != "10.43.7.7" || s.HostAliases[1].Hostnames[0] != "kubernetes.default.svc" {
		t.Errorf("host aliases %v", s.HostAliases)
	}
	if slices.Contains(s.HostAliases[1].Hostnames, "kubernetes") {
		t.Error("kubernetes alone has a meaning in namespace default only")
	}
	for _, c := range slices.Concat(s.InitContainers, s.Containers) {
		if len(c.EnvFrom) == 0 || c.EnvFrom[0].ConfigMapRef == nil || c.EnvFrom[0].ConfigMapRef.Name != homeapi.Variables || c.EnvFrom[0].ConfigMapRef.Optional != nil {
			t.Errorf("%s takes its variables from %+v: the provider's would count", c.Name, c.EnvFrom)
		}
	}
	if got := s.InitContainers[0].Env; len(got) != 2 || got[0].Value != "mine" {
		t.Errorf("what the pod says itself: %v", got)
	}
	if got := homeapi.Env(); got["KUBERNETES_SERVICE_HOST"] != "kubernetes.default.svc" || got["KUBERNETES_SERVICE_PORT"] != "443" || got["KUBERNETES_PORT"] != "tcp://kubernetes.default.svc:443" {
		t.Errorf("variables %v", got)
	}
	p.Namespace = metav1.NamespaceDefault
	if w, err = Wrap(p, "home-id", "10.43.7.7"); err != nil || !slices.Contains(w.Template().Spec.HostAliases[1].Hostnames, "kubernetes") {
		t.Errorf("in namespace default: %v, %v", w.Template().Spec.HostAliases, err)
	}
}

func TestReferencesToTheRootCA(t *testing.T) {
	ref := corev1.LocalObjectReference{Name: "kube-root-ca.crt"}
	p := translatetest.Web()
	p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "ca", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: ref}}})
	p.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: ref}}}
	p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "CA", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: ref, Key: "ca.crt"}}}}
	w, err := Wrap(p, "home-id", "")
	if err != nil {
		t.Fatal(err)
	}
	s := w.Template().Spec
	for where, got := range map[string]string{"volume": s.Volumes[2].ConfigMap.Name, "envFrom": s.Containers[0].EnvFrom[0].ConfigMapRef.Name,
		"env": s.Containers[0].Env[0].ValueFrom.ConfigMapKeyRef.Name} {
		if got != "rivulet-home-ca.crt" {
			t.Errorf("%s refers to %s, the provider's", where, got)
		}
	}
}

// Whatever tokens the volumes ask for: each source finds a key, the same key means
// the same token, and none is asked for twice.
func TestTokensOfVolumes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var volumes []corev1.Volume
		type asked struct {
			audience string
			seconds  int64
		}
		var all []asked
		for range rapid.IntRange(0, 4).Draw(t, "volumes") {
			v := corev1.Volume{VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{}}}
			for range rapid.IntRange(0, 3).Draw(t, "sources") {
				a := asked{rapid.SampledFrom([]string{"", "vault", "s3"}).Draw(t, "audience"), rapid.SampledFrom([]int64{600, 3600}).Draw(t, "seconds")}
				all = append(all, a)
				v.Projected.Sources = append(v.Projected.Sources, corev1.VolumeProjection{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{
					Audience: a.audience, ExpirationSeconds: ptr.To(a.seconds), Path: "t"}})
			}
			volumes = append(volumes, v)
		}
		tokens := redirectTokens(&corev1.PodSpec{Volumes: volumes}, "s")
		byKey := map[string]asked{}
		for _, k := range tokens {
			a := asked{k.Audience, *k.Seconds}
			for other, b := range byKey {
				if a == b || other == k.Key {
					t.Fatalf("%v is asked for twice: %v", a, tokens)
				}
			}
			byKey[k.Key] = a
		}
		n := 0
		for _, v := range volumes {
			for _, s := range v.Projected.Sources {
				if s.ServiceAccountToken != nil || s.Secret == nil || s.Secret.Name != "s" || len(s.Secret.Items) != 1 || s.Secret.Items[0].Path != "t" {
					t.Fatalf("source %+v", s)
				}
				if got := byKey[s.Secret.Items[0].Key]; got != all[n] {
					t.Fatalf("source %d asked for %v and gets %v", n, all[n], got)
				}
				n++
			}
		}
	})
}

// A token is readable away for whom it is readable at home: a kubelet there gives the file to the one user of all
// containers, whatever the volume's mode.
func TestTokensAreReadableForThePodsUser(t *testing.T) {
	as := func(user int64) *corev1.SecurityContext { return &corev1.SecurityContext{RunAsUser: &user} }
	for what, c := range map[string]struct {
		mode  *int32
		pod   *corev1.PodSecurityContext
		two   *corev1.SecurityContext
		first *corev1.SecurityContext // of an init container
		want  *int32
	}{
		"root only, and one user":           {ptr.To[int32](0o400), &corev1.PodSecurityContext{RunAsUser: ptr.To[int64](1000)}, nil, nil, ptr.To[int32](0o444)},
		"group, and one user":               {ptr.To[int32](0o440), &corev1.PodSecurityContext{RunAsUser: ptr.To[int64](1000)}, as(1000), as(1000), ptr.To[int32](0o444)},
		"readable for all":                  {ptr.To[int32](0o644), &corev1.PodSecurityContext{RunAsUser: ptr.To[int64](1000)}, nil, nil, nil},
		"the default":                       {nil, &corev1.PodSecurityContext{RunAsUser: ptr.To[int64](1000)}, nil, nil, nil},
		"the group of the volume":           {ptr.To[int32](0o400), &corev1.PodSecurityContext{RunAsUser: ptr.To[int64](1000), FSGroup: ptr.To[int64](7)}, nil, nil, nil},
		"the image's user":                  {ptr.To[int32](0o400), nil, nil, nil, nil},
		"another user of one container":     {ptr.To[int32](0o400), &corev1.PodSecurityContext{RunAsUser: ptr.To[int64](1000)}, as(7), nil, nil},
		"another user of an init container": {ptr.To[int32](0o400), &corev1.PodSecurityContext{RunAsUser: ptr.To[int64](1000)}, nil, as(7), nil},
		"only one container says who it is": {ptr.To[int32](0o400), nil, as(1000), nil, nil},
	} {
		p := translatetest.Web()
		p.Spec.SecurityContext, p.Spec.Volumes[0].Projected.DefaultMode = c.pod, c.mode
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "two", SecurityContext: c.two})
		if c.first != nil {
			p.Spec.InitContainers = []corev1.Container{{Name: "first", SecurityContext: c.first}}
		}
		w, err := Wrap(p, "home-id", "")
		if err != nil {
			t.Fatal(err)
		}
		if got := w.Template().Spec.Volumes[0].Projected.Sources[0].Secret.Items[0].Mode; ptr.Deref(got, 0) != ptr.Deref(c.want, 0) {
			t.Errorf("%s: mode %o, want %o", what, ptr.Deref(got, 0), ptr.Deref(c.want, 0))
		}
	}
}

// Programs reach home's API server without the proxy that the pod names, as at home.
func TestTheAPIServerIsReachedWithoutAProxy(t *testing.T) {
	for value, want := range map[string]string{
		"10.0.0.0/8,127.0.0.1": "10.0.0.0/8,127.0.0.1,kubernetes.default.svc", "": "", "*": "*",
		"a, kubernetes.default.svc": "a, kubernetes.default.svc", ".svc": ".svc,kubernetes.default.svc",
	} {
		for _, name := range []string{"NO_PROXY", "no_proxy"} {
			p := translatetest.Web()
			p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "HTTPS_PROXY", Value: "http://proxy:3128"}, {Name: name, Value: value}}
			w, err := Wrap(p, "home-id", "10.43.7.7")
			if err != nil {
				t.Fatal(err)
			}
			if got := w.Template().Spec.Containers[0].Env; got[1].Value != want || got[0].Value != "http://proxy:3128" || p.Spec.Containers[0].Env[1].Value != value {
				t.Errorf("%s=%q became %+v", name, value, got)
			}
		}
	}
}
