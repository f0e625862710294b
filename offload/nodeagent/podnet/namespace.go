package podnet

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"
)

// ErrGone: the interface is gone, or its other end.
var ErrGone = errors.New("podnet: the pod's network has gone")

// namespaces is where containerd stores the network namespaces of pods.
const namespaces = "/var/run/netns"

// Namespace opens the network namespace of the other end of veth.
func Namespace(veth string) (*os.File, error) {
	l, err := netlink.LinkByName(veth)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil, ErrGone
	}
	if err != nil {
		return nil, fmt.Errorf("podnet: %s: %w", veth, err)
	}
	entries, err := os.ReadDir(namespaces)
	if err != nil {
		return nil, fmt.Errorf("podnet: %w", err)
	}
	for _, e := range entries {
		f, err := os.Open(filepath.Join(namespaces, e.Name()))
		if err != nil {
			continue // just gone
		}
		if id, err := netlink.GetNetNsIdByFd(int(f.Fd())); err == nil && id >= 0 && id == l.Attrs().NetNsID {
			return f, nil
		}
		f.Close()
	}
	return nil, ErrGone
}
