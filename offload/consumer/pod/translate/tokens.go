package translate

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
)

// Token is one token of a pod, with its key in the Secret.
type Token struct {
	Key, Audience string
	Seconds       *int64
}

// redirectTokens makes the volumes take their tokens from the Secret and returns its content. Volumes with the same
// request share a token.
func redirectTokens(volumes []corev1.Volume, secret string) []Token {
	var all []Token
	key := func(p *corev1.ServiceAccountTokenProjection) string {
		for _, t := range all {
			if t.Audience == p.Audience && equality.Semantic.DeepEqual(t.Seconds, p.ExpirationSeconds) {
				return t.Key
			}
		}
		all = append(all, Token{"token-" + strconv.Itoa(len(all)), p.Audience, p.ExpirationSeconds})
		return all[len(all)-1].Key
	}
	for i := range volumes {
		if volumes[i].Projected == nil {
			continue
		}
		for j := range volumes[i].Projected.Sources {
			s := &volumes[i].Projected.Sources[j]
			if s.ServiceAccountToken == nil {
				continue
			}
			*s = corev1.VolumeProjection{Secret: &corev1.SecretProjection{
				LocalObjectReference: corev1.LocalObjectReference{Name: secret},
				Items:                []corev1.KeyToPath{{Key: key(s.ServiceAccountToken), Path: s.ServiceAccountToken.Path}},
			}}
		}
	}
	return all
}

// Tokens lists the tokens that a pod of home needs.
func Tokens(home *corev1.Pod) []Token {
	return redirectTokens(home.Spec.DeepCopy().Volumes, "")
}

// TokenSecret is the name of the Secret in the twin with the tokens of a home pod.
func TokenSecret(uid types.UID) string { return "rivulet-token-" + string(uid) }
