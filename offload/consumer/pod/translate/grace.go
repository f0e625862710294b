package translate

import "k8s.io/utils/ptr"

// Sooner is the grace period to send for an away pod: home's, if it is shorter than the away pod's. The provider may
// have lowered that one (docs/design/tenancy.md), and refuses a deletion that asks for more. It is never 0, which would
// remove the pod before its containers.
func Sooner(grace *int64, away int64) *int64 {
	if grace == nil || max(*grace, 1) >= away {
		return nil
	}
	return ptr.To(max(*grace, 1))
}
