package host

import (
	"cmp"
	"fmt"
)

// NameStore stores the node's name.
type NameStore interface {
	NodeName() (string, error)
	PutNodeName(string) error
}

// NodeName returns the name of this device's node. It is set at the first start, to given, the hostname or the
// fallback, and later changes of the hostname do not change it: pods and volumes depend on it, and a second Node object
// would leave the first one behind for ever.
func NodeName(st NameStore, given string, hostname func() (string, error), fallback string) (string, error) {
	name, err := st.NodeName()
	if err != nil || name != "" {
		return name, err
	}
	if name = given; name == "" {
		h, err := hostname()
		if err != nil {
			return "", fmt.Errorf("host: the host's name cannot be read: %w; give one with --name", err)
		}
		name = cmp.Or(Name(h), fallback)
	}
	return name, st.PutNodeName(name)
}
