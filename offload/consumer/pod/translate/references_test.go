package translate

import (
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"rivulet/offload/policy"
)

// TestNoReferenceIsForgotten: wherever a pod may name a Secret or a ConfigMap, the object is one
// that it refers to, or the pod does not run away.
func TestNoReferenceIsForgotten(t *testing.T) {
	places := 0
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "lab"}}
	check := func(path, kind string) {
		places++
		if Refuse(pod) != nil {
			return
		}
		for _, r := range References(pod) {
			if r.Object == (policy.Object{Kind: kind, Namespace: "lab", Name: "needle"}) {
				return
			}
		}
		t.Errorf("%s: %s is not found: %v", path, kind, References(pod))
	}
	var walk func(v reflect.Value, path string)
	walk = func(v reflect.Value, path string) {
		switch v.Kind() {
		case reflect.Pointer:
			if v.Type() == reflect.TypeFor[metav1.LabelSelector]() || strings.Count(path, ".") > 9 {
				return
			}
			v.Set(reflect.New(v.Type().Elem()))
			walk(v.Elem(), path)
			v.SetZero()
		case reflect.Slice:
			if v.Type().Elem().Kind() != reflect.Struct {
				return
			}
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
			walk(v.Index(0), path+"[0]")
			v.SetZero()
		case reflect.Struct:
			kind := ""
			switch name := v.Type().Name(); {
			case strings.HasPrefix(name, "Secret"), name == "LocalObjectReference" && strings.Contains(strings.ToLower(path), "secret"):
				kind = policy.KindSecret
			case strings.HasPrefix(name, "ConfigMap"):
				kind = policy.KindConfigMap
			}
			if kind != "" {
				for _, field := range []string{"Name", "SecretName"} {
					if f := v.FieldByName(field); f.IsValid() {
						f.SetString("needle")
					}
				}
				check(path, kind)
				v.SetZero()
				return
			}
			for i := range v.NumField() {
				if f := v.Type().Field(i); f.IsExported() {
					walk(v.Field(i), path+"."+f.Name)
				}
			}
		}
	}
	walk(reflect.ValueOf(&pod.Spec).Elem(), "spec")
	if places < 20 {
		t.Errorf("%d places only", places)
	}
}

func TestReferences(t *testing.T) {
	mount := func(name string, optional *bool) corev1.Volume {
		return corev1.Volume{VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: name, Optional: optional}}}
	}
	from := func(name string, optional *bool) corev1.Container {
		return corev1.Container{EnvFrom: []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}, Optional: optional}}}}
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "lab"}, Spec: corev1.PodSpec{
		ImagePullSecrets: []corev1.LocalObjectReference{{Name: "pull"}},
		Volumes:          []corev1.Volume{mount("both", ptr.To(true)), mount("may", ptr.To(true)), mount("must", nil)},
		Containers:       []corev1.Container{from("both", nil)}, InitContainers: []corev1.Container{from("both", ptr.To(true))},
	}}
	optional := map[string]bool{"pull": true, "both": false, "may": true, "must": false}
	for _, r := range References(pod) {
		want, there := optional[r.Name]
		if !there || r.Optional != want {
			t.Errorf("%+v", r)
		}
		delete(optional, r.Name)
	}
	if len(optional) > 0 {
		t.Errorf("missing: %v", optional)
	}
	ended := pod.DeepCopy()
	ended.Status.Phase = corev1.PodSucceeded
	stays := pod.DeepCopy()
	stays.Spec.HostNetwork = true
	for _, p := range []*corev1.Pod{ended, stays} {
		if got := References(p); len(got) > 0 {
			t.Errorf("%s %v: %v", p.Status.Phase, p.Spec.HostNetwork, got)
		}
	}
}
