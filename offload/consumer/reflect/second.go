package reflect

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// second is a further object that is reflected of one, named by the prefix and its name.
type second[T any] struct {
	prefix string
	// make turns the twin's version of the object into the second one; false if there is none.
	make func(home, twin T) bool
	bare bool // as kind.bare
}

// secondName is the name of the second object of the one at home.
func secondName(prefix, home string) string {
	if name := prefix + home; len(name) <= validation.DNS1035LabelMaxLength {
		return name
	}
	sum := sha256.Sum256([]byte(home))
	return prefix + hex.EncodeToString(sum[:16])
}

// firstOf finds the object at home of a second one, and which second it is.
func (k *kindReflector[T]) firstOf(name string) (source T, is *second[T]) {
	for i := range k.seconds {
		if !strings.HasPrefix(name, k.seconds[i].prefix) {
			continue
		}
		for _, o := range k.home.GetStore().List() {
			if o := o.(T); secondName(k.seconds[i].prefix, o.GetName()) == name {
				return o, &k.seconds[i]
			}
		}
	}
	return source, nil
}
