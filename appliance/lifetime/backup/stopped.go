package backup

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"rivulet/appliance/state/bolt"
	"rivulet/appliance/state/identity"
)

// Stopped is the source of a device without a running supervisor; none can start until done is called. The caller sets
// the versions in the manifest.
func Stopped(state string) (src Source, done func(), err error) {
	path := filepath.Join(state, storeName)
	if _, err := os.Stat(path); err != nil {
		return src, nil, fmt.Errorf("backup: there is nothing to save in %s (%w); run as root, or name the folder with --state", state, err)
	}
	st, err := bolt.Open(path)
	if err != nil {
		return src, nil, err
	}
	defer func() {
		if err != nil {
			st.Close()
		}
	}()
	id, err := identity.Load(st)
	if err != nil {
		return src, nil, err
	}
	node, err := st.NodeName()
	if err != nil {
		return src, nil, err
	}
	src.Paths = DefaultPaths(state)
	src.Manifest = Manifest{Name: node, Node: node, ID: string(id.ID()), Arch: runtime.GOARCH, Created: time.Now().UTC().Truncate(time.Second)}
	src.CopyStore = func(w io.Writer) error {
		_, err := st.WriteTo(w)
		return err
	}
	return src, func() { st.Close() }, nil
}
