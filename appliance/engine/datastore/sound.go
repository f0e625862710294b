package datastore

import (
	"bytes"
	"encoding/json"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
)

// The prefixes of Kubernetes' values that are not JSON: protobuf, encrypted by a provider, and CBOR, which later
// versions may write.
var (
	inProtobuf = []byte("k8s\x00")
	encrypted  = []byte("k8s:enc:")
	inCBOR     = []byte{0xd9, 0xd9, 0xf7}
)

// sound reports whether an object's value can be parsed. SQLite checks only the structure of its pages, and one unsound
// object prevents the API server from listing its kind. Unknown kinds and keys are reported as sound.
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
