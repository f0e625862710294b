package reflect

import (
	"errors"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// lost reports whether the error means that the twin is gone, is being deleted or denies access. It is requested again
// then.
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
	// RBAC refuses with the same code as quota and admission; only the authorizer's text differs.
	return apierrors.IsForbidden(err) && strings.Contains(status.Status().Message, "cannot ")
}

// refused reports whether the target does not accept the object as it is.
func refused(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsRequestEntityTooLargeError(err) || apierrors.IsForbidden(err) && !lost(err)
}
