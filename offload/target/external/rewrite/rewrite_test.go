package rewrite

import (
	"encoding/json"
	"maps"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"
	"pgregory.net/rapid"
)

var (
	objectName = rapid.StringMatching(`[a-z0-9]([-a-z0-9.]{0,80}[a-z0-9])?`)
	namespace  = rapid.StringMatching(`[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?`)
	labelKey   = rapid.StringMatching(`([a-z]([-a-z0-9]{0,20}[a-z0-9])?(\.[a-z0-9]{1,9}){0,3}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,20}[A-Za-z0-9])?`)
	labelValue = rapid.StringMatching(`([A-Za-z0-9]([-A-Za-z0-9_.]{0,20}[A-Za-z0-9])?)?`)
	home       = Names{Cluster: "abcdefghijklmnop"}
)

// TestNamesAreLabelsThatTellTheirSpace: whatever things are called at home.
func TestNamesAreLabelsThatTellTheirSpace(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ns, name := namespace.Draw(t, "namespace"), objectName.Draw(t, "name")
		away := home.Away(ns, name)
		if faults := validation.IsDNS1035Label(away); len(faults) > 0 || len(away) > MaxName {
			t.Fatalf("%q (%d): %v", away, len(away), faults)
		}
		if again := home.Away(ns, name); again != away {
			t.Fatalf("%q, then %q", away, again)
		}
		if back, ok := home.Home(ns, away); ok && back != name {
			t.Fatalf("%q came back as %q", name, back)
		}
		if !home.Belongs(ns, away) || !home.Belongs(ns, away+"-x7k2m") {
			t.Fatalf("%q is not known as ours", away)
		}
		other := namespace.Filter(func(o string) bool { return o != ns }).Draw(t, "other")
		if home.Belongs(other, away) || (Names{Cluster: "another"}).Belongs(ns, away) {
			t.Fatalf("%q is taken for another's", away)
		}
	})
}

// TestNamesDoNotCollide: nearby names, of which the readable part is the same, are told apart.
func TestNamesDoNotCollide(t *testing.T) {
	seen := map[string]string{}
	near := rapid.StringMatching(`[ab][-.ab]{0,6}[ab]`)
	long := strings.Repeat("a", 60)
	rapid.Check(t, func(t *rapid.T) {
		ns, name := near.Draw(t, "namespace"), near.Draw(t, "name")
		if rapid.Bool().Draw(t, "long") {
			name = long + name
		}
		cluster := rapid.SampledFrom([]string{"one", "two"}).Draw(t, "cluster")
		from := cluster + "/" + ns + "/" + name
		away := Names{Cluster: cluster}.Away(ns, name)
		if other, ok := seen[away]; ok && other != from {
			t.Fatalf("%s and %s are both %s", other, from, away)
		}
		seen[away] = from
	})
}

func TestKeysComeBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		key := labelKey.Draw(t, "key")
		away := AwayKey(key)
		if faults := validation.IsQualifiedName(away); len(faults) > 0 {
			t.Fatalf("%q: %v", away, faults)
		}
		if back, ok := HomeKey(away); !ok || back != key {
			t.Fatalf("%q came back as %q", key, back)
		}
	})
	if AwayKey("rivulet.dev/origin") != "rivulet.dev/origin" {
		t.Error("our own key was translated")
	}
}

// TestObjectsComeBack: what was written away and is read again is what it was, and
// nobody else's selectors or names are in it.
func TestObjectsComeBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ns, name := namespace.Draw(t, "namespace"), objectName.Draw(t, "name")
		labels := rapid.MapOfN(labelKey, labelValue, 0, 5).Draw(t, "labels")
		template := tree{"metadata": tree{"labels": toTree(labels)}, "spec": tree{"containers": []any{tree{"name": "c"}}}}
		resource := rapid.SampledFrom([]string{"configmaps", "secrets", "replicasets", "jobs"}).Draw(t, "resource")
		o := tree{"metadata": tree{"name": name, "namespace": ns, "labels": toTree(labels), "annotations": tree{"note": "it"}}}
		if wraps(resource) {
			o["spec"] = tree{"selector": tree{"matchLabels": tree{"rivulet.dev/home-uid": "u"}}, "template": template}
		}
		before := copied(o)
		s := space{names: home, home: ns, shared: "campus"}
		s.away(resource, o, true)
		if s.home == "campus" {
			return
		}
		if text(at(o, "metadata"), "namespace") != "campus" || !s.mine(resource, o) {
			t.Fatalf("not ours: %v", o)
		}
		if (space{names: home, home: ns + "x", shared: "campus"}).mine(resource, o) || (space{names: Names{"another"}, home: ns, shared: "campus"}).mine(resource, o) {
			t.Fatalf("taken for another's: %v", o)
		}
		for key := range at(o, "metadata", "labels") {
			if _, given := labels[key]; given {
				t.Fatalf("label %s can be selected by others", key)
			}
		}
		if wraps(resource) && text(at(o, "spec", "selector", "matchLabels"), SpaceLabel) == "" {
			t.Fatalf("the selector may catch others' pods: %v", o)
		}
		s.back(resource, o)
		if at(o, "metadata", "labels") == nil {
			need(o, "metadata", "labels")
		}
		if !reflect.DeepEqual(o, before) {
			t.Fatalf("came back as\n%v\nfrom\n%v", o, before)
		}
	})
}

// TestReferencesAreTranslatedEverywhere: whichever field of a pod names an object.
func TestReferencesAreTranslatedEverywhere(t *testing.T) {
	const raw = `{"metadata":{"name":"w"},"spec":{"selector":{},"template":{"metadata":{"labels":{"app":"x"}},"spec":{
		"imagePullSecrets":[{"name":"REF"}],
		"volumes":[{"configMap":{"name":"REF"}},{"secret":{"secretName":"REF"}},{"persistentVolumeClaim":{"claimName":"REF"}},
			{"projected":{"sources":[{"configMap":{"name":"REF"}},{"secret":{"name":"REF"}},{"downwardAPI":{"items":[{"fieldRef":{"fieldPath":"metadata.labels"}}]}}]}}],
		"initContainers":[{"envFrom":[{"configMapRef":{"name":"REF"}},{"secretRef":{"name":"REF"}}]}],
		"containers":[{"env":[{"valueFrom":{"configMapKeyRef":{"name":"REF"}}},{"valueFrom":{"secretKeyRef":{"name":"REF"}}},
			{"valueFrom":{"fieldRef":{"fieldPath":"metadata.labels['app']"}}}]}]}}}}`
	o, err := parse([]byte(raw))
	if err != nil {
		t.Fatal(err)
	}
	s := space{names: home, home: "lab", shared: "campus"}
	s.away("replicasets", o, true)
	out, _ := json.Marshal(o)
	text := string(out)
	if strings.Contains(text, `"REF"`) || len(regexp.MustCompile(home.Away("lab", "REF")).FindAllString(text, -1)) != 10 {
		t.Errorf("references left: %s", text)
	}
	for _, want := range []string{"metadata.labels['away.rivulet.dev/app']", "metadata.annotations['" + labelsAnnotation + "']"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s in %s", want, text)
		}
	}
	// What was read and is written again is translated once.
	s.back("replicasets", o)
	s.away("replicasets", o, false)
	if again, _ := json.Marshal(o); strings.Count(string(again), `"`+home.Away("lab", "REF")+`"`) != 10 {
		t.Errorf("translated twice: %s", again)
	}
}

func TestEventsAreOfOneSpace(t *testing.T) {
	s := space{names: home, home: "lab", shared: "campus"}
	set := home.Away("lab", "web-0")
	o := tree{"metadata": tree{"namespace": "campus"}, "message": `in campus/x: pods "` + set + `-abcde" is forbidden`,
		"involvedObject": tree{"kind": "ReplicaSet", "name": set, "namespace": "campus"}}
	if !s.event(o) || text(at(o, "involvedObject"), "name") != "web-0" || strings.Contains(text(o, "message"), "campus") {
		t.Errorf("%v", o)
	}
	for _, foreign := range []string{"web-0", "web-0-abcde", home.Away("other", "web-0"), (Names{"another"}).Away("lab", "web-0") + "-abcde"} {
		if s.event(tree{"involvedObject": tree{"kind": "Pod", "name": foreign}}) {
			t.Errorf("%s is not ours", foreign)
		}
	}
}

func toTree(m map[string]string) tree {
	out := tree{}
	for k, v := range maps.All(m) {
		out[k] = v
	}
	return out
}

func copied(o tree) tree {
	raw, _ := json.Marshal(o)
	out, _ := parse(raw)
	return out
}
