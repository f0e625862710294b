package tenancy

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// refusedFields are those of the types that pods.yaml has a list for which are not in it,
// and why.
var refusedFields = map[string]map[string]string{
	"PodSpec": {
		"hostNetwork": "the host's", "hostPID": "the host's", "hostIPC": "the host's", "hostUsers": "namespaces of users are the kernel's newest doors",
		"resourceClaims": "devices of this cluster", "workloadRef": "gangs of pods that the scheduler would hold room for",
	},
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

// allowedWhole are the types inside a pod that tenants may use with every field they have
// now. What a newer Kubernetes adds to them is to be judged here.
var allowedWhole = map[string]string{
	"Affinity":                          "nodeAffinity podAffinity podAntiAffinity",
	"AppArmorProfile":                   "localhostProfile type", // the type is validated
	"Capabilities":                      "add drop",              // validated, and by Pod Security
	"ConfigMapEnvSource":                "name optional",
	"ConfigMapKeySelector":              "key name optional",
	"ConfigMapProjection":               "items name optional",
	"ConfigMapVolumeSource":             "defaultMode items name optional",
	"ContainerResizePolicy":             "resourceName restartPolicy",
	"ContainerRestartRule":              "action exitCodes",
	"ContainerRestartRuleOnExitCodes":   "operator values",
	"DownwardAPIProjection":             "items",
	"DownwardAPIVolumeFile":             "fieldRef mode path resourceFieldRef",
	"DownwardAPIVolumeSource":           "defaultMode items",
	"EmptyDirVolumeSource":              "medium sizeLimit",
	"EnvFromSource":                     "configMapRef prefix secretRef",
	"EnvVar":                            "name value valueFrom",
	"EnvVarSource":                      "configMapKeyRef fieldRef fileKeyRef resourceFieldRef secretKeyRef",
	"EphemeralVolumeSource":             "volumeClaimTemplate",
	"ExecAction":                        "command",
	"FileKeySelector":                   "key optional path volumeName",
	"GRPCAction":                        "port service",
	"HTTPGetAction":                     "host httpHeaders path port scheme", // host: refused by Pod Security
	"HTTPHeader":                        "name value",
	"HostAlias":                         "hostnames ip",
	"ImageVolumeSource":                 "pullPolicy reference", // the reference: images.yaml
	"KeyToPath":                         "key mode path",
	"Lifecycle":                         "postStart preStop stopSignal",
	"LifecycleHandler":                  "exec httpGet sleep tcpSocket",
	"LocalObjectReference":              "name",
	"NodeAffinity":                      "preferredDuringSchedulingIgnoredDuringExecution requiredDuringSchedulingIgnoredDuringExecution",
	"NodeSelector":                      "nodeSelectorTerms",
	"NodeSelectorRequirement":           "key operator values",
	"NodeSelectorTerm":                  "matchExpressions matchFields",
	"ObjectFieldSelector":               "apiVersion fieldPath",
	"PersistentVolumeClaimSpec":         "accessModes dataSource dataSourceRef resources selector storageClassName volumeAttributesClassName volumeMode volumeName", // rivulet-twin-claims
	"PersistentVolumeClaimTemplate":     "metadata spec",
	"PersistentVolumeClaimVolumeSource": "claimName readOnly",
	"PodAffinity":                       "preferredDuringSchedulingIgnoredDuringExecution requiredDuringSchedulingIgnoredDuringExecution",
	"PodAffinityTerm":                   "labelSelector matchLabelKeys mismatchLabelKeys namespaceSelector namespaces topologyKey",
	"PodAntiAffinity":                   "preferredDuringSchedulingIgnoredDuringExecution requiredDuringSchedulingIgnoredDuringExecution",
	"PodDNSConfig":                      "nameservers options searches",
	"PodDNSConfigOption":                "name value",
	"PodOS":                             "name",
	"PodReadinessGate":                  "conditionType",
	"PodSchedulingGate":                 "name",
	"PreferredSchedulingTerm":           "preference weight",
	"Probe":                             "exec failureThreshold grpc httpGet initialDelaySeconds periodSeconds successThreshold tcpSocket terminationGracePeriodSeconds timeoutSeconds",
	"ProjectedVolumeSource":             "defaultMode sources",
	"ResourceClaim":                     "name request", // of a claim of the pod, and there are none
	"ResourceFieldSelector":             "containerName divisor resource",
	"ResourceRequirements":              "claims limits requests",
	"SELinuxOptions":                    "level role type user",  // by Pod Security
	"SeccompProfile":                    "localhostProfile type", // the type is validated
	"SecretEnvSource":                   "name optional",
	"SecretKeySelector":                 "key name optional",
	"SecretProjection":                  "items name optional",
	"SecretVolumeSource":                "defaultMode items optional secretName",
	"SleepAction":                       "seconds",
	"Sysctl":                            "name value", // by Pod Security
	"TCPSocketAction":                   "host port",  // host: refused by Pod Security
	"Toleration":                        "effect key operator tolerationSeconds value",
	"TopologySpreadConstraint":          "labelSelector matchLabelKeys maxSkew minDomains nodeAffinityPolicy nodeTaintsPolicy topologyKey whenUnsatisfiable",
	"TypedLocalObjectReference":         "apiGroup kind name",
	"TypedObjectReference":              "apiGroup kind name namespace",
	"VolumeDevice":                      "devicePath name",
	"VolumeMount":                       "mountPath mountPropagation name readOnly recursiveReadOnly subPath subPathExpr",
	"VolumeResourceRequirements":        "limits requests",
	"WeightedPodAffinityTerm":           "podAffinityTerm weight",
}

// Each field that Kubernetes knows in a pod is judged: it is in a list of pods.yaml, or
// refused with a reason, or part of what is allowed as a whole. One that is new fails here,
// and is refused by the API server if its type has a list.
func TestEveryFieldOfATenantsPodIsJudged(t *testing.T) {
	lists := fieldLists(t)
	seen := map[string]bool{}
	for _, typ := range within(reflect.TypeFor[corev1.PodSpec]()) {
		name := typ.Name()
		if name == "EphemeralContainer" { // is a Container that names its target
			name = "Container"
		}
		seen[name] = true
		have := jsonFields(typ)
		whole, isWhole := allowedWhole[name]
		list, listed := lists[name]
		switch {
		case listed && isWhole:
			t.Errorf("%s has a list and is allowed as a whole", name)
		case isWhole:
			if got := strings.Join(slices.Sorted(maps.Keys(have)), " "); got != whole {
				t.Errorf("%s has the fields %q, those judged are %q", name, got, whole)
			}
		case listed:
			for field := range have {
				_, refused := refusedFields[name][field]
				if slices.Contains(list, field) == refused {
					t.Errorf("%s.%s is new, or judged twice: may tenants have it?", name, field)
				}
			}
			for field := range refusedFields[name] {
				if !have[field] {
					t.Errorf("Kubernetes has no %s.%s", name, field)
				}
			}
		default:
			t.Errorf("%s is new: %v", name, slices.Sorted(maps.Keys(have)))
		}
	}
	for name, list := range lists {
		all := map[string]bool{}
		for _, typ := range within(reflect.TypeFor[corev1.PodSpec]()) {
			if typ.Name() == name || name == "Container" && typ.Name() == "EphemeralContainer" {
				maps.Copy(all, jsonFields(typ))
			}
		}
		for _, field := range list {
			if !all[field] {
				t.Errorf("pods.yaml allows %s.%s, which Kubernetes does not have", name, field)
			}
		}
	}
	for name := range allowedWhole {
		if !seen[name] {
			t.Errorf("there is no %s in a pod", name)
		}
	}
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

// within are the struct types of a value of typ, itself included, without what is only in
// fields that are refused.
func within(typ reflect.Type) (out []reflect.Type) {
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
	walk(typ)
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
