package gatewaypod

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// nobody is the gateway's user if the namespace does not prescribe one.
const nobody int64 = 65532

// OpenShift assigns each namespace a range of users and one of groups, in annotations. Its admission refuses others,
// and sets the first ones on a pod without any.
const (
	userRange      = "openshift.io/sa.scc.uid-range"
	groupRange     = "openshift.io/sa.scc.supplemental-groups"
	openShiftGroup = "security.openshift.io"
)

// identity is the gateway's user: the first of the namespace's ranges. If these cannot be read, it is left to a cluster
// that sets one, otherwise it is nobody.
func (g *Gateway) identity(ctx context.Context) (*corev1.PodSecurityContext, error) {
	ns, err := g.campus.CoreV1().Namespaces().Get(ctx, g.cfg.Namespace, metav1.GetOptions{})
	switch {
	case apierrors.IsForbidden(err):
		groups, err := g.campus.Discovery().ServerGroups()
		if err != nil {
			return nil, fmt.Errorf("gateway: what the campus serves: %w", err)
		}
		for _, group := range groups.Groups {
			if group.Name == openShiftGroup {
				return runAs(nil, nil), nil
			}
		}
		return runAs(ptr.To(nobody), ptr.To(nobody)), nil
	case err != nil:
		return nil, fmt.Errorf("gateway: namespace %s: %w", g.cfg.Namespace, err)
	}
	return identityIn(ns.Annotations), nil
}

// identityIn is that of a namespace with the annotations. It is pure.
func identityIn(annotations map[string]string) *corev1.PodSecurityContext {
	user, ok := first(annotations[userRange])
	if !ok {
		return runAs(ptr.To(nobody), ptr.To(nobody))
	}
	group, ok := first(annotations[groupRange])
	if !ok {
		group = user // the default there
	}
	return runAs(&user, &group)
}

func runAs(user, group *int64) *corev1.PodSecurityContext {
	return &corev1.PodSecurityContext{RunAsNonRoot: ptr.To(true), RunAsUser: user, RunAsGroup: group, FSGroup: group,
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}}
}

// first parses "1000680000/10000" (first and size) and "1000680000-1000690000"; of several ranges, separated by commas,
// the first counts. Root is not accepted.
func first(ranges string) (int64, bool) {
	one, _, _ := strings.Cut(ranges, ",")
	if at := strings.IndexAny(one, "/-"); at >= 0 {
		one = one[:at]
	}
	n, err := strconv.ParseInt(strings.TrimSpace(one), 10, 64)
	return n, err == nil && n > 0
}
