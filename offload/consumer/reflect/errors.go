package reflect

import (
	"errors"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// lost reports whether the error says that the twin has gone, is going, or does
// not let us in. It is asked for again then.
func lost(err error) bool {
	if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) || apierrors.IsUnauthorized(err) {
		return true
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	if apierrors.IsNotFound(err) {
		d := status.Status().Details
		return d != nil && d.Kind == "namespaces"
	}
	// Refusals by RBAC and by quota or admission have the same code; only the
	// words of the API server's authorizer tell them apart.
	return apierrors.IsForbidden(err) && strings.Contains(status.Status().Message, "cannot ")
}

// refused reports whether the target will not take the object as it is.
func refused(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsRequestEntityTooLargeError(err) || apierrors.IsForbidden(err) && !lost(err)
}
