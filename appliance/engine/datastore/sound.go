package datastore

import (
	"bytes"
	"encoding/json"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
)

// The first bytes of values that Kubernetes keeps and that are not JSON: protobuf, what a provider
// has encrypted, and CBOR, which a later Kubernetes may write.
var (
	inProtobuf = []byte("k8s\x00")
	encrypted  = []byte("k8s:enc:")
	inCBOR     = []byte{0xd9, 0xd9, 0xf7}
)

// sound reports whether what an object consists of can be read. SQLite looks at the structure
// of its pages and not at what they hold, and one object that is not sound keeps the API
// server from listing all of its kind. Of kinds that are not known, and of keys that are not
// Kubernetes', nothing is said.
func sound(key string, value []byte) bool {
	switch {
	case !strings.HasPrefix(key, "/registry/"), len(value) == 0, bytes.HasPrefix(value, encrypted), bytes.HasPrefix(value, inCBOR):
		return true
	case !bytes.HasPrefix(value, inProtobuf):
		return json.Valid(value)
	}
	_, _, err := scheme.Codecs.UniversalDeserializer().Decode(value, nil, nil)
	return err == nil || runtime.IsNotRegisteredError(err)
}
