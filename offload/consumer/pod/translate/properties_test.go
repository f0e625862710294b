package translate

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"rivulet/offload/consumer/pod/translate/translatetest"
)

const (
	homeNode    = "home-virtual-node"
	homeAccount = "home-account"
)

// anyPod draws a pod of home with any of what is home's: its node, its account and their tokens.
func anyPod(t *rapid.T) *corev1.Pod {
	p := translatetest.Web()
	p.Name = rapid.StringMatching(`[a-z][a-z0-9.-]{0,70}[a-z0-9]`).Draw(t, "name")
	p.UID = types.UID(rapid.StringMatching(`[0-9a-f]{8}`).Draw(t, "uid"))
	p.Generation = rapid.Int64Range(0, 3).Draw(t, "generation")
	s := &p.Spec
	s.NodeName, s.ServiceAccountName, s.DeprecatedServiceAccount = homeNode, homeAccount, homeAccount
	s.NodeSelector = map[string]string{corev1.LabelHostname: homeNode, corev1.LabelArchStable: "arm64"}
	s.RestartPolicy = rapid.SampledFrom([]corev1.RestartPolicy{"", corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever}).Draw(t, "restarts")
	fields := rapid.SliceOfN(rapid.SampledFrom([]string{"metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName", "status.podIP"}), 0, 4)
	env := func(what string) (out []corev1.EnvVar) {
		for i, f := range fields.Draw(t, what) {
			out = append(out, corev1.EnvVar{Name: fmt.Sprint("V", i), ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: f}}})
		}
		return out
	}
	s.Containers[0].Env = env("env")
	if rapid.Bool().Draw(t, "init") {
		s.InitContainers = []corev1.Container{{Name: "first", Image: "first:1", Env: env("env of init")}}
	}
	if rapid.Bool().Draw(t, "affinity") {
		s.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{homeNode}}}}}}}}
		s.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: &metav1.LabelSelector{}}}
	}
	for i := range rapid.IntRange(0, 3).Draw(t, "tokens") {
		s.Volumes = append(s.Volumes, corev1.Volume{Name: fmt.Sprint("token-", i), VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Audience: rapid.SampledFrom([]string{"", "vault"}).Draw(t, "audience"),
				ExpirationSeconds: rapid.SampledFrom([]*int64{nil, ptr.To[int64](600), ptr.To[int64](3607)}).Draw(t, "seconds"), Path: "token"}}}}}})
	}
	return p
}

// What is sent is the same each time, and is not made in home's pod. It has no node of home, except as a value of a
// variable that has it at home, and no account of home: neither its name, nor a volume by which the provider would make
// a token.
func TestWhatIsSentHasNothingOfHomesNodeAndAccount(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		home := anyPod(t)
		api := rapid.SampledFrom([]string{"", "10.43.0.9"}).Draw(t, "api")
		before := home.DeepCopy()
		w, err := Wrap(home, "home-id", api)
		if err != nil {
			t.Fatal(err)
		}
		again, err := Wrap(home, "home-id", api)
		if err != nil || !equality.Semantic.DeepEqual(w, again) {
			t.Fatalf("another time it is %+v (%v)", again, err)
		}
		if !equality.Semantic.DeepEqual(home, before) {
			t.Fatal("home's pod, which is in a cache, was changed")
		}
		sent := w.Template().DeepCopy()
		if sent.Spec.ServiceAccountName != "default" || ptr.Deref(sent.Spec.AutomountServiceAccountToken, true) {
			t.Fatalf("account %q, mounted: %v", sent.Spec.ServiceAccountName, sent.Spec.AutomountServiceAccountToken)
		}
		for _, list := range [][]corev1.Container{sent.Spec.InitContainers, sent.Spec.Containers} {
			for i := range list {
				for _, e := range list[i].Env {
					if e.ValueFrom != nil && strings.HasPrefix(e.ValueFrom.FieldRef.FieldPath, "spec.") {
						t.Fatalf("the provider would fill in %s", e.ValueFrom.FieldRef.FieldPath)
					}
				}
				list[i].Env = nil
			}
		}
		text, err := json.Marshal(sent)
		if err != nil {
			t.Fatal(err)
		}
		for _, of := range []string{homeNode, homeAccount, `"serviceAccountToken"`} {
			if strings.Contains(string(text), of) {
				t.Fatalf("%s is sent: %s", of, text)
			}
		}
		// Each token has one key of the Secret, by which its volume takes it.
		for _, token := range Tokens(home) {
			if !strings.Contains(string(text), fmt.Sprintf(`{"name":%q,"items":[{"key":%q,`, TokenSecret(home.UID), token.Key)) {
				t.Fatalf("nothing takes %s: %s", token.Key, text)
			}
		}
	})
}

// Whatever the provider reports of a pod that has ended at home, its status stays.
func TestAnEndIsFinal(t *testing.T) {
	phases := []corev1.PodPhase{"", corev1.PodPending, corev1.PodRunning, corev1.PodSucceeded, corev1.PodFailed}
	rapid.Check(t, func(t *rapid.T) {
		home := anyPod(t)
		home.Status = translatetest.Running().Status
		home.Status.Phase = rapid.SampledFrom([]corev1.PodPhase{corev1.PodSucceeded, corev1.PodFailed}).Draw(t, "ended")
		away := Away{Finished: rapid.SampledFrom([]corev1.PodPhase{"", corev1.PodSucceeded, corev1.PodFailed}).Draw(t, "finished"),
			Trouble: rapid.SampledFrom([]string{"", "quota"}).Draw(t, "trouble")}
		if rapid.Bool().Draw(t, "pod") {
			away.Pod = translatetest.Running()
			away.Pod.Status.Phase = rapid.SampledFrom(phases).Draw(t, "phase")
		}
		phase := rapid.SampledFrom([]corev1.PodPhase{"", corev1.PodSucceeded, corev1.PodFailed}).Draw(t, "phase of the end")
		for what, st := range map[string]corev1.PodStatus{"status": Status(home, away, view), "end": Ended(home, phase), "refusal": Refused(home, "no"),
			"last state": WithEnd(home, away.Pod).Status} {
			if !equality.Semantic.DeepEqual(st, home.Status) {
				t.Fatalf("%s: %+v, was %+v", what, st, home.Status)
			}
		}
	})
}
