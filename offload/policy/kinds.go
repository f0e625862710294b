package policy

import (
	"fmt"
	"slices"
	"strings"
)

// Kinds are the reflected ones, which annotation ReflectAnnotation of a namespace may name.
var Kinds = []string{KindService, KindConfigMap, KindSecret, NetworkPolicyKind, IngressKind, KindClaim}

// KindService brings its EndpointSlices along.
const KindService = "Service"

// Kinds that pods refer to by name.
const (
	KindConfigMap = "ConfigMap"
	KindSecret    = "Secret"
)

// Kinds that not every target accepts. Ingresses follow only if they are opted in: they open an application on another
// LAN.
const (
	NetworkPolicyKind = "NetworkPolicy"
	IngressKind       = "Ingress"
)

// KindClaim is that of claims: they are not copied, but get their volume where the pod runs (package volume).
const KindClaim = "PersistentVolumeClaim"

// Modes of a kind in a namespace, and of one object.
const (
	ReflectOff   = "off"    // nothing of the kind; for an object: not this one
	ReflectOptIn = "opt-in" // only objects that are themselves annotated on
	ReflectOn    = "on"     // all objects that are not annotated off
	// ReflectUsed is the default of Secrets and ConfigMaps: those that pods on the target refer to, and those annotated
	// on.
	ReflectUsed = "used"
)

// Object names an object of home.
type Object struct{ Kind, Namespace, Name string }

// Reference is an object that a pod refers to. A pod does not wait for an optional one.
type Reference struct {
	Object
	Optional bool
}

// StaysHomeError is why an object that a pod refers to does not follow it, although it exists at home. Its text ends in a
// cure.
type StaysHomeError struct {
	Object
	Why, Cure string
}

func (e *StaysHomeError) Error() string {
	return fmt.Sprintf("offload: %s %s, which this pod refers to, does not leave home: %s; %s, or keep the pod at home (label %s=%s in its template)",
		e.Kind, e.Name, e.Why, e.Cure, NamespaceLabel, Off)
}

// Mode returns how a kind is reflected.
func (n Namespace) Mode(kind string) string {
	if n.When == Services {
		switch kind {
		case IngressKind, KindClaim:
			return ReflectOff
		case KindSecret, KindConfigMap: // pods of before it was so may be there still
			return ReflectUsed
		}
	}
	for entry := range strings.SplitSeq(n.Reflect, ",") {
		if k, mode, ok := strings.Cut(entry, "="); ok && k == kind {
			return mode
		}
	}
	switch kind {
	case IngressKind:
		return ReflectOptIn
	case KindSecret, KindConfigMap:
		return ReflectUsed
	}
	return ReflectOn
}

// parseReflect checks the annotation, "Secret=opt-in,ConfigMap=off", and returns it
// without spaces.
func parseReflect(text string) (string, error) {
	var kept []string
	for entry := range strings.SplitSeq(text, ",") {
		entry = strings.TrimSpace(entry)
		if entry == "" {
			continue
		}
		kind, mode, ok := strings.Cut(entry, "=")
		if !ok || !slices.Contains(Kinds, kind) || !slices.Contains([]string{ReflectOff, ReflectOptIn, ReflectOn}, mode) {
			return "", fmt.Errorf("annotation %s: %q is not understood and all of it is ignored; use KIND=off, opt-in or on, with KIND one of %s",
				ReflectAnnotation, entry, strings.Join(Kinds, ", "))
		}
		kept = append(kept, entry)
	}
	return strings.Join(kept, ","), nil
}
