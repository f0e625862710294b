package replacement

import (
	"errors"
	"net/http"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Refused reports whether the API server refuses an object, rather than failing.
func Refused(err error) bool { return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) }

// forNow are words of refusals that may end without a change of the object.
var forNow = []string{"quota", "try again", "service account", "serviceaccount", "not yet ready", "PriorityClass with name rivulet-"}

// ForGood reports whether an API server will never accept an object as it is: because of a policy, of Pod Security, or
// because it is invalid. Refusals of the client (rights, limits of a peer) do not name an object.
func ForGood(err error) bool {
	var said apierrors.APIStatus
	if !errors.As(err, &said) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return false
	}
	st := said.Status()
	return (st.Code == http.StatusForbidden || st.Code == http.StatusUnprocessableEntity) && st.Details != nil && st.Details.Name != "" &&
		!slices.ContainsFunc(forNow, func(words string) bool { return strings.Contains(st.Message, words) })
}
