package replacement

import (
	"errors"
	"net/http"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Refused reports whether the API server does not take an object, rather than being unable to.
func Refused(err error) bool { return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) }

// forNow are words of refusals of objects that may be let in as they are.
var forNow = []string{"quota", "try again", "service account", "serviceaccount", "not yet ready", "PriorityClass with name rivulet-"}

// ForGood reports whether an API server will not take an object as it is: by a policy, by Pod Security, or because it is
// invalid. Refusals of the client (rights, limits of a peer) name no object.
func ForGood(err error) bool {
	var said apierrors.APIStatus
	if !errors.As(err, &said) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return false
	}
	st := said.Status()
	return (st.Code == http.StatusForbidden || st.Code == http.StatusUnprocessableEntity) && st.Details != nil && st.Details.Name != "" &&
		!slices.ContainsFunc(forNow, func(words string) bool { return strings.Contains(st.Message, words) })
}
