package translate

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// Token is one token of a pod, with its key in the Secret.
type Token struct {
	Key, Audience string
	Seconds       *int64
}

// readable is the mode of a token's file if that of its volume excludes the user for whom a kubelet at home makes it.
const readable = 0o444

// redirectTokens makes the volumes take their tokens from the Secret and returns its content. Volumes with the same
// request share a token. A kubelet gives the file of a token to the user of the pod's containers, if it is the same for
// all, whatever the volume's mode, and that of a Secret to root: so that user may read it by its mode. With a group
// (fsGroup) both are the group's.
func redirectTokens(s *corev1.PodSpec, secret string) []Token {
	volumes, owned := s.Volumes, oneUser(s) && (s.SecurityContext == nil || s.SecurityContext.FSGroup == nil)
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
		var mode *int32
		if owned && ptr.Deref(volumes[i].Projected.DefaultMode, corev1.ProjectedVolumeSourceDefaultMode)&0o004 == 0 {
			mode = ptr.To[int32](readable)
		}
		for j := range volumes[i].Projected.Sources {
			s := &volumes[i].Projected.Sources[j]
			if s.ServiceAccountToken == nil {
				continue
			}
			*s = corev1.VolumeProjection{Secret: &corev1.SecretProjection{
				LocalObjectReference: corev1.LocalObjectReference{Name: secret},
				Items:                []corev1.KeyToPath{{Key: key(s.ServiceAccountToken), Path: s.ServiceAccountToken.Path, Mode: mode}},
			}}
		}
	}
	return all
}

// Tokens lists the tokens that a pod of home needs.
func Tokens(home *corev1.Pod) []Token {
	return redirectTokens(home.Spec.DeepCopy(), "")
}

// oneUser reports whether all containers run as the same user by the spec.
func oneUser(s *corev1.PodSpec) bool {
	var user *int64
	for _, list := range [][]corev1.Container{s.InitContainers, s.Containers} {
		for i := range list {
			is := (*int64)(nil)
			if s.SecurityContext != nil {
				is = s.SecurityContext.RunAsUser
			}
			if own := list[i].SecurityContext; own != nil && own.RunAsUser != nil {
				is = own.RunAsUser
			}
			if is == nil || user != nil && *user != *is {
				return false
			}
			user = is
		}
	}
	return user != nil
}

// TokenSecret is the name of the Secret in the twin with the tokens of a home pod.
func TokenSecret(uid types.UID) string { return "rivulet-token-" + string(uid) }
