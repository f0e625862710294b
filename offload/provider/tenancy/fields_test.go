package tenancy

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/yaml"

	"rivulet/test/harness/tree"
)

// refusedFields are those of the types that pods.yaml has a list for which are not in it, and why.
var refusedFields = map[string]map[string]string{
	"PodSpec": {
		"hostNetwork": "the host's", "hostPID": "the host's", "hostIPC": "the host's", "hostUsers": "namespaces of users are the kernel's newest doors",
		"resourceClaims": "devices of this cluster", "workloadRef": "gangs of pods that the scheduler would hold room for",
	},
	"Affinity":           {"podAffinity": "enforced against pods of others", "podAntiAffinity": "enforced against pods of others"},
	"PodSecurityContext": {"windowsOptions": "no Windows"},
	"Container":          {},
	"SecurityContext":    {"windowsOptions": "no Windows"},
	"ContainerPort":      {"hostPort": "the host's"},
	"Volume": {
		"hostPath": "the host's", "gcePersistentDisk": "", "awsElasticBlockStore": "", "gitRepo": "", "nfs": "", "iscsi": "", "glusterfs": "", "rbd": "", "flexVolume": "", "cinder": "",
		"cephfs": "", "flocker": "", "fc": "", "azureFile": "", "vsphereVolume": "", "quobyte": "", "azureDisk": "", "photonPersistentDisk": "", "portworxVolume": "", "scaleIO": "",
		"storageos": "", "csi": "",
	},
	"VolumeProjection": {"serviceAccountToken": "this cluster's", "clusterTrustBundle": "this cluster's", "podCertificate": "this cluster's"},
}

// Each field that Kubernetes knows in what a consumer may write is judged: the table of docs/design/tenancy.md says what it reaches of
// others, and what bounds that. A field of a type with a list in pods.yaml is in that list, or refused with a reason. One that is new
// fails here, and is refused by the API server if its type has a list.
func TestEveryFieldOfATenantIsJudged(t *testing.T) {
	lists, table := fieldLists(t), judged(t)
	types := append(within(reflect.TypeFor[corev1.PodSpec](), reflect.TypeFor[corev1.PersistentVolumeClaimSpec](), reflect.TypeFor[corev1.ServiceSpec](),
		reflect.TypeFor[discoveryv1.EndpointSlice](), reflect.TypeFor[networkingv1.NetworkPolicySpec](), reflect.TypeFor[networkingv1.IngressSpec](),
		reflect.TypeFor[batchv1.JobSpec](), reflect.TypeFor[appsv1.ReplicaSetSpec](), reflect.TypeFor[corev1.ConfigMap](), reflect.TypeFor[corev1.Secret]()),
		reflect.TypeFor[metav1.ObjectMeta]())
	if len(rules()) != 13 {
		t.Errorf("consumers have %d rules: do they make another kind? Then its fields are judged here", len(rules()))
	}
	all := map[string]map[string]bool{}
	for _, typ := range types {
		name := typ.Name()
		if name == "EphemeralContainer" { // is a Container that names its target
			name = "Container"
		}
		if all[name] == nil {
			all[name] = map[string]bool{}
		}
		maps.Copy(all[name], jsonFields(typ))
	}
	for name, have := range all {
		if slices.Contains([]string{"EndpointSlice", "ConfigMap", "Secret"}, name) { // as a whole
			maps.DeleteFunc(have, func(field string, _ bool) bool {
				return slices.Contains([]string{"apiVersion", "kind", "metadata"}, field)
			})
		}
		list, listed := lists[name]
		for field := range have {
			_, refused := refusedFields[name][field]
			if slices.Contains(table[name], field) == refused || listed && slices.Contains(list, field) == refused {
				t.Errorf("%s.%s is new, or judged twice: may tenants have it, and what does it reach of others?", name, field)
			}
		}
		for _, field := range slices.Concat(list, table[name], slices.Collect(maps.Keys(refusedFields[name]))) {
			if !have[field] {
				t.Errorf("Kubernetes has no %s.%s", name, field)
			}
		}
	}
	for _, name := range slices.Concat(slices.Collect(maps.Keys(lists)), slices.Collect(maps.Keys(table)), slices.Collect(maps.Keys(refusedFields))) {
		if all[name] == nil {
			t.Errorf("there is no %s in what a consumer writes", name)
		}
	}
}

// judged are the fields in the table of the design page, by type; each is there once.
func judged(t *testing.T) map[string][]string {
	t.Helper()
	page, err := os.ReadFile(tree.Path("docs/design/tenancy.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, text, found := strings.Cut(string(page), "\n| fields | reach | bound |\n|---|---|---|\n")
	if !found {
		t.Fatal("tenancy.md has no table of fields")
	}
	text, _, _ = strings.Cut(text, "\n\n")
	out := map[string][]string{}
	for _, line := range strings.Split(strings.TrimSpace(text), "\n") {
		cells := strings.Split(strings.Trim(line, "| "), " | ")
		if len(cells) != 3 || cells[1] == "" || cells[2] == "" {
			t.Errorf("the line %q lacks a reach or a bound", line)
		}
		for _, part := range strings.Split(cells[0], "; ") {
			name, fields, _ := strings.Cut(part, " ")
			name = strings.Trim(name, "`")
			for _, field := range strings.Split(fields, ", ") {
				if slices.Contains(out[name], field) {
					t.Errorf("%s.%s is judged twice", name, field)
				}
				out[name] = append(out[name], field)
			}
		}
	}
	return out
}

// fieldLists are the variables of policy rivulet-twin-pods that are called like a type.
func fieldLists(t *testing.T) map[string][]string {
	t.Helper()
	documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(podAdmission), 4096)
	for {
		var p admissionv1.ValidatingAdmissionPolicy
		if err := documents.Decode(&p); errors.Is(err, io.EOF) {
			t.Fatal("there is no policy rivulet-twin-pods")
		} else if err != nil {
			t.Fatal(err)
		}
		if p.Name != "rivulet-twin-pods" || p.Kind != "ValidatingAdmissionPolicy" {
			continue
		}
		lists := map[string][]string{}
		for _, v := range p.Spec.Variables {
			if v.Name[0] < 'A' || v.Name[0] > 'Z' {
				continue
			}
			for _, quoted := range regexp.MustCompile(`'\w+'`).FindAllString(v.Expression, -1) {
				lists[v.Name] = append(lists[v.Name], strings.Trim(quoted, "'"))
			}
		}
		return lists
	}
}

// within are the struct types of values of the types, themselves included, without what is only in
// fields that are refused.
func within(types ...reflect.Type) (out []reflect.Type) {
	seen := map[reflect.Type]bool{ // judged by their own policies, or as a whole
		reflect.TypeFor[resource.Quantity](): true, reflect.TypeFor[intstr.IntOrString](): true, reflect.TypeFor[metav1.ObjectMeta](): true, reflect.TypeFor[metav1.LabelSelector](): true,
	}
	var walk func(reflect.Type)
	var fields func(string, reflect.Type)
	fields = func(owner string, t reflect.Type) {
		for i := range t.NumField() {
			f := t.Field(i)
			name, rest, _ := strings.Cut(f.Tag.Get("json"), ",")
			if name == "" && strings.Contains(rest, "inline") {
				fields(owner, f.Type)
			} else if _, refused := refusedFields[owner][name]; !refused {
				walk(f.Type)
			}
		}
	}
	walk = func(t reflect.Type) {
		switch t.Kind() {
		case reflect.Pointer, reflect.Slice:
			walk(t.Elem())
		case reflect.Map:
			walk(t.Key())
			walk(t.Elem())
		case reflect.Struct:
			if !seen[t] {
				seen[t] = true
				fields(t.Name(), t)
				out = append(out, t)
			}
		}
	}
	for _, typ := range types {
		walk(typ)
	}
	return out
}

// jsonFields are the names of the fields as in YAML, those of inlined structs included.
func jsonFields(t reflect.Type) map[string]bool {
	out := map[string]bool{}
	for i := range t.NumField() {
		f := t.Field(i)
		name, rest, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" && strings.Contains(rest, "inline") {
			maps.Copy(out, jsonFields(f.Type))
			continue
		}
		out[name] = true
	}
	return out
}
