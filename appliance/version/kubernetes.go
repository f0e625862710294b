package version

import (
	"fmt"
	"strings"
)

// LinkedKubernetes is set when linking, for a binary without Kubernetes (see test/programs/slim).
var LinkedKubernetes = ""

// Kubernetes returns the version of the Kubernetes in this binary, empty if unknown.
func Kubernetes() string { return KubernetesOf(Parts()) }

// KubernetesOf returns the version of Kubernetes among the parts of a binary, empty if there is none.
func KubernetesOf(parts []Part) string {
	for _, p := range parts {
		if p.Name == partKubernetes {
			return p.Version
		}
	}
	return ""
}

const partKubernetes = "Kubernetes"

// Minor returns the minor version of a Kubernetes version such as v1.35.0+k3s3.
func Minor(v string) (int, error) {
	var major, minor int
	if _, err := fmt.Sscanf(strings.TrimPrefix(v, "v"), "%d.%d", &major, &minor); err != nil || major != 1 {
		return 0, fmt.Errorf("version: %q is not a version of Kubernetes", v)
	}
	return minor, nil
}

// CanRead returns why a program with Kubernetes ours cannot use a datastore written by Kubernetes theirs, of the
// version rivulet; nil if it can.
func CanRead(ours, theirs, rivulet string) error {
	their, err := Minor(theirs)
	if err != nil {
		return fmt.Errorf("its manifest says %q for the version of Kubernetes; take another file", theirs)
	}
	our, err := Minor(ours)
	if err != nil {
		return fmt.Errorf("this rivulet does not know its version of Kubernetes (%q); use one that was built with make build", ours)
	}
	if their > our {
		return fmt.Errorf("it is of Kubernetes %s, this rivulet has %s, and a database is never taken back to an older one; use rivulet %s or newer", theirs, ours, rivulet)
	}
	return nil
}
