package rewrite

import (
	"strings"
)

// references are the fields of a pod's spec with the name of another object of the namespace: the path to the object,
// and its key.
var references = []struct{ path, key string }{
	{"volumes.configMap", "name"},
	{"volumes.secret", "secretName"},
	{"volumes.projected.sources.configMap", "name"},
	{"volumes.projected.sources.secret", "name"},
	{"volumes.persistentVolumeClaim", "claimName"},
	{"imagePullSecrets", "name"},
}

var inContainer = []struct{ path, key string }{
	{"env.valueFrom.configMapKeyRef", "name"},
	{"env.valueFrom.secretKeyRef", "name"},
	{"envFrom.configMapRef", "name"},
	{"envFrom.secretRef", "name"},
}

var containerLists = []string{"initContainers", "containers", "ephemeralContainers"}

// podSpec translates a pod's references to other objects and to its own labels.
func podSpec(spec tree, name func(string) string) {
	for _, r := range references {
		every(spec, r.path, func(o tree) { rename(o, r.key, name) })
	}
	for _, list := range containerLists {
		each(spec, list, func(c tree) { container(c, name) })
	}
	every(spec, "volumes.downwardAPI.items.fieldRef", ownField)
	every(spec, "volumes.projected.sources.downwardAPI.items.fieldRef", ownField)
}

func container(c tree, name func(string) string) {
	for _, r := range inContainer {
		every(c, r.path, func(o tree) { rename(o, r.key, name) })
	}
	every(c, "env.valueFrom.fieldRef", ownField)
}

func rename(o tree, key string, name func(string) string) {
	if old := text(o, key); old != "" {
		o[key] = name(old)
	}
}

// ownField redirects a pod's reference to its own labels, whose keys are translated.
func ownField(ref tree) {
	switch field := text(ref, "fieldPath"); {
	case field == "metadata.labels":
		ref["fieldPath"] = "metadata.annotations['" + labelsAnnotation + "']"
	case strings.HasPrefix(field, "metadata.labels['") && strings.HasSuffix(field, "']"):
		key := strings.TrimSuffix(strings.TrimPrefix(field, "metadata.labels['"), "']")
		if _, done := HomeKey(key); !done {
			ref["fieldPath"] = "metadata.labels['" + AwayKey(key) + "']"
		}
	}
}
