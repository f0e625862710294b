package twin

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"rivulet/offload/consumer/pod/translate"
	"rivulet/offload/policy"
	"rivulet/offload/target"
)

// TokensOf lists the Secrets with the tokens of pods of that name at home.
func (t *Twin) TokensOf(name string) (out []*corev1.Secret) {
	objs, _ := t.secrets.GetIndexer().ByIndex(byName, name)
	for _, o := range objs {
		if s := o.(*corev1.Secret); s.Name == translate.TokenSecret(types.UID(s.Labels[policy.HomeUIDLabel])) {
			out = append(out, s)
		}
	}
	return out
}

// PutTokens writes the Secret.
func (t *Twin) PutTokens(ctx context.Context, s *corev1.Secret) error {
	failed := func(err error) error {
		if err == nil {
			return nil
		}
		return fmt.Errorf("offload: token for the away pod: %w", err)
	}
	secrets := t.client.CoreV1().Secrets(t.Name)
	if t.Tokens(types.UID(s.Labels[policy.HomeUIDLabel])) == nil {
		_, err := secrets.Create(ctx, s, metav1.CreateOptions{FieldManager: policy.FieldManager})
		if !apierrors.IsAlreadyExists(err) {
			return failed(err)
		}
	}
	// Not from the cache, which holds no data.
	live, err := secrets.Get(ctx, s.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return target.ErrNotYet
	case err != nil:
		return failed(err)
	case live.Labels[policy.HomeUIDLabel] != s.Labels[policy.HomeUIDLabel]:
		return fmt.Errorf("offload: Secret %s in %s is not ours; delete it there", s.Name, t.Name)
	}
	s.ResourceVersion, s.OwnerReferences = live.ResourceVersion, live.OwnerReferences
	_, err = secrets.Update(ctx, s, metav1.UpdateOptions{FieldManager: policy.FieldManager})
	return failed(err)
}

// RemoveTokens deletes exactly the given Secret.
func (t *Twin) RemoveTokens(ctx context.Context, s *corev1.Secret) error {
	err := t.client.CoreV1().Secrets(t.Name).Delete(ctx, s.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &s.UID}})
	if apierrors.IsConflict(err) {
		return nil // replaced in the meantime
	}
	return IgnoreGone(err)
}
