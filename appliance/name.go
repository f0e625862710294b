package appliance

import (
	"fmt"

	"rivulet/appliance/host"
	"rivulet/appliance/identity"
)

// nameStore keeps the node's name.
type nameStore interface {
	NodeName() (string, error)
	PutNodeName(string) error
}

// nameNode returns the name of this device's node: the one of the first start,
// whatever the host is called since, because pods and volumes hang on it and a
// second Node object would leave the first one behind for good.
func nameNode(st nameStore, given string, hostname func() (string, error), id identity.Identity) (string, error) {
	name, err := st.NodeName()
	if err != nil || name != "" {
		return name, err
	}
	if name = given; name == "" {
		h, err := hostname()
		if err != nil {
			return "", fmt.Errorf("appliance: the host's name cannot be read: %w; give one with --name", err)
		}
		name = orDefault(host.Name(h), "rivulet-"+id.ID().Short())
	}
	return name, st.PutNodeName(name)
}

func orDefault(s, fallback string) string {
	if s == "" {
		return fallback
	}
	return s
}
