package pod

import (
	"context"
	"fmt"
	"time"

	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"rivulet/offload/consumer/pod/translate"
	"rivulet/offload/consumer/pod/twin"
	"rivulet/offload/policy"
)

// A pod's service account is one of home. Each token that a pod's volumes need is requested at home, bound to the home
// pod, so that it is void as soon as that pod is gone. The tokens are stored in one Secret in the twin, from which the
// away pod's volumes take them:
//
// 	home pod: projected.sources[].serviceAccountToken{audience, expirationSeconds, path}
// 	away pod: projected.sources[].secret{rivulet-token-<uid>, token-<n> at path}
//
// The Secret is written before the wrapper and removed after it: a kubelet that does not find a mount retries with
// pauses of up to two minutes. So the wrapper cannot own it, and it is removed with the home pod (depart, sweep). It is
// renewed after 80 % of a token's life, as by a kubelet; that time, in an annotation, is the only memory. The
// provider's administrators can read it, as they can read the pod's memory.

// renewAnnotation is when the tokens are to be renewed (RFC 3339).
const renewAnnotation = "rivulet.dev/renew-at"

// mintRetry is the pause after home has refused a token.
const mintRetry = 30 * time.Second

// mint requests the tokens at home. The error has the cure if it is the user's.
func mint(ctx context.Context, client kubernetes.Interface, cluster string, home *corev1.Pod) (*corev1.Secret, error) {
	wanted := translate.Tokens(home)
	if len(wanted) == 0 {
		return nil, nil
	}
	account := home.Spec.ServiceAccountName
	if account == "" {
		account = "default"
	}
	s := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Name:        translate.TokenSecret(home.UID),
			Labels:      map[string]string{policy.OriginLabel: cluster, policy.HomeUIDLabel: string(home.UID)},
			Annotations: map[string]string{policy.HomePodAnnotation: home.Name},
		},
		Type: corev1.SecretTypeOpaque, Data: map[string][]byte{},
	}
	now := time.Now()
	var renew time.Time
	for _, t := range wanted {
		spec := authv1.TokenRequestSpec{ExpirationSeconds: t.Seconds,
			BoundObjectRef: &authv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: home.Name, UID: home.UID}}
		if t.Audience != "" {
			spec.Audiences = []string{t.Audience}
		}
		got, err := client.CoreV1().ServiceAccounts(home.Namespace).CreateToken(ctx, account, &authv1.TokenRequest{Spec: spec}, metav1.CreateOptions{})
		if err != nil {
			return nil, fmt.Errorf("token of service account %s: %w", account, err)
		}
		s.Data[t.Key] = []byte(got.Status.Token)
		if at := renewAt(now, got.Status.ExpirationTimestamp.Time); renew.IsZero() || at.Before(renew) {
			renew = at
		}
	}
	s.Annotations[renewAnnotation] = renew.UTC().Format(time.RFC3339)
	return s, nil
}

// renewAt is after 80 % of a token's life, at most a day after now.
func renewAt(now, expires time.Time) time.Time {
	return now.Add(min(expires.Sub(now)*4/5, 24*time.Hour))
}

// due is when the Secret has to be renewed; the zero time is at once.
func due(s *corev1.Secret, wanted []translate.Token) time.Time {
	at, err := time.Parse(time.RFC3339, s.Annotations[renewAnnotation])
	if err != nil {
		return time.Time{}
	}
	for _, t := range wanted {
		if _, ok := s.Data[t.Key]; !ok {
			return time.Time{}
		}
	}
	return at
}

// sendTokens ensures that the tokens of a pod exist before it is sent.
func (c *Controller) sendTokens(ctx context.Context, t *twin.Twin, home *corev1.Pod) error {
	wanted := translate.Tokens(home)
	if len(wanted) == 0 {
		return nil
	}
	if have := t.Tokens(home.UID); have != nil && time.Until(due(have, wanted)) > 0 {
		return nil // of an earlier attempt
	}
	s, err := mint(ctx, c.cfg.Home.Client, c.cfg.Home.ID, home)
	if err != nil {
		return err
	}
	return c.twinError(ctx, t, t.PutTokens(ctx, s))
}

// keepTokens ensures that the tokens of a pod that was sent exist and are fresh.
func (c *Controller) keepTokens(ctx context.Context, t *twin.Twin, home *corev1.Pod) error {
	wanted := translate.Tokens(home)
	if len(wanted) == 0 {
		return nil
	}
	if have := t.Tokens(home.UID); have != nil {
		if left := time.Until(due(have, wanted)); left > 0 {
			c.queue.AddAfter(keyOf(home), left)
			return nil
		}
	}
	s, err := mint(ctx, c.cfg.Home.Client, c.cfg.Home.ID, home)
	if err != nil {
		// The pod runs on, as at home, with a warning like a kubelet's.
		c.cfg.Home.Recorder.Eventf(home, corev1.EventTypeWarning, "TokenNotRenewed", "%v", err)
		c.queue.AddAfter(keyOf(home), mintRetry)
		return nil
	}
	return c.twinError(ctx, t, t.PutTokens(ctx, s))
}

// sweepTokens removes the Secrets of earlier pods of this name, once nothing uses them. home is the pod with that name,
// or nil.
func (c *Controller) sweepTokens(ctx context.Context, t *twin.Twin, k types.NamespacedName, home *corev1.Pod) error {
	for _, s := range t.TokensOf(k.Name) {
		uid := s.Labels[policy.HomeUIDLabel]
		if home != nil && uid == string(home.UID) ||
			len(t.WrappersOf(types.UID(uid))) > 0 || len(t.PodsOf(types.UID(uid))) > 0 {
			continue
		}
		err := confirmGone(ctx, c.cfg.Home.Client, t.Home, k.Name, uid)
		if err == nil {
			err = t.RemoveTokens(ctx, s)
		}
		if err != nil {
			return c.twinError(ctx, t, err)
		}
	}
	return nil
}
