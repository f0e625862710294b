package certs

import (
	"bytes"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// protobuf is the prefix of objects stored by the API server.
var protobuf = []byte("k8s\x00")

// ahead is how far in the future a lease may be: clocks of several devices differ.
const ahead = time.Minute

// leaseOfTheFuture reports whether a stored Lease was renewed later than now. The node controller ignores earlier
// renewals, so its node would be NotReady until that time.
func leaseOfTheFuture(value []byte, now time.Time) bool {
	raw, ok := bytes.CutPrefix(value, protobuf)
	if !ok {
		return false
	}
	var u runtime.Unknown
	if u.Unmarshal(raw) != nil || u.Kind != "Lease" {
		return false
	}
	var l coordinationv1.Lease
	if l.Unmarshal(u.Raw) != nil || l.Spec.RenewTime == nil {
		return false
	}
	return l.Spec.RenewTime.After(now.Add(ahead))
}
