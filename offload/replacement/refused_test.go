package replacement

import (
	"errors"
	"net/http"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// byPolicy is the answer of an API server whose admission policy refuses a pod.
func byPolicy(name, message string) error {
	err := apierrors.NewForbidden(corev1.Resource("pods"), name, errors.New("ValidatingAdmissionPolicy 'rivulet-twin-pods' denied request: "+message))
	err.ErrStatus.Code, err.ErrStatus.Reason = http.StatusUnprocessableEntity, metav1.StatusReasonInvalid
	return err
}

func TestForGood(t *testing.T) {
	pods := corev1.Resource("pods")
	for what, c := range map[string]struct {
		err  error
		want bool
	}{
		"a policy":              {byPolicy("p", "spec.hostUsers: not lent"), true},
		"a policy that comes":   {byPolicy("p", "a policy of this cluster that completes pods is not in force; try again"), false},
		"Pod Security":          {apierrors.NewForbidden(pods, "p", errors.New(`violates PodSecurity "baseline:latest": seLinuxOptions`)), true},
		"a LimitRange":          {apierrors.NewForbidden(pods, "p", errors.New("maximum cpu usage per Container is 1, but limit is 2")), true},
		"invalid":               {apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Pod").GroupKind(), "p", nil), true},
		"a quota":               {apierrors.NewForbidden(pods, "p", errors.New("exceeded quota: rivulet")), false},
		"rights":                {apierrors.NewForbidden(pods, "", errors.New(`User "x" cannot create resource "pods"`)), false},
		"an account that comes": {apierrors.NewForbidden(pods, "p", errors.New("error looking up service account a/default")), false},
		"a peer's own bound":    {&apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden, Message: "delete some"}}, false},
		"too many":              {apierrors.NewTooManyRequests("p", 1), false},
		"the link":              {errors.New("broken"), false},
		"nothing":               {nil, false},
	} {
		if got := ForGood(c.err); got != c.want {
			t.Errorf("%s: %v, want %v", what, got, c.want)
		}
	}
}
