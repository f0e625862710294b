package datastore

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"rivulet/appliance/state/durable"
	"rivulet/appliance/state/paths"
	"rivulet/appliance/version"
)

// ErrNewer is in the error for data that a newer Kubernetes may have written.
var ErrNewer = errors.New("the data are newer than this program")

// writer is who may have written a datastore, in a file beside it: the newest minor version of Kubernetes that opened it,
// and the first Rivulet that had it.
type writer struct {
	Kubernetes string `json:"kubernetes"`
	Rivulet    string `json:"rivulet"`
}

// ours is this program.
func ours() writer { return writer{version.Kubernetes(), version.Version} }

// claim records w in the file before it opens the datastore, and returns ErrNewer if a newer one has. A datastore without
// the file may be opened by any.
func (w writer) claim(file string) error {
	last, err := readWriter(file)
	if err == nil {
		err = w.follows(last)
	}
	if err != nil || w.Kubernetes == "" {
		return err
	}
	was, err := version.Minor(last.Kubernetes)
	if is, ierr := version.Minor(w.Kubernetes); err == nil && ierr == nil && is == was {
		return nil
	}
	raw, err := json.Marshal(w)
	if err == nil {
		err = durable.Cure(os.MkdirAll(filepath.Dir(file), 0o700))
	}
	if err == nil {
		err = durable.Write(file, append(raw, '\n'), 0o600)
	}
	if err != nil {
		return fmt.Errorf("datastore: %w", err)
	}
	return nil
}

// follows returns ErrNewer if the last writer was newer than w.
func (w writer) follows(last writer) error {
	if last == (writer{}) {
		return nil
	}
	if err := version.CanRead(w.Kubernetes, last.Kubernetes, last.Rivulet); err != nil {
		return fmt.Errorf("datastore: %w: %w: sudo rivulet upgrade FILE", ErrNewer, err)
	}
	return nil
}

// readWriter returns the zero value if there is no file.
func readWriter(file string) (w writer, err error) {
	raw, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return w, nil
	}
	if err == nil {
		err = json.Unmarshal(raw, &w)
	}
	if err == nil {
		_, err = version.Minor(w.Kubernetes)
	}
	if err != nil {
		return w, fmt.Errorf("datastore: %w: which version has written them is not known: %s: %w; if it was none newer than this one: sudo rm %s", ErrNewer, file, err, file)
	}
	return w, nil
}

// Readable returns ErrNewer if this program cannot use the cluster's data in a state folder.
func Readable(state string) error {
	last, err := readWriter(paths.Writer(state))
	if err != nil {
		return err
	}
	return ours().follows(last)
}

// Kubernetes returns the version that has written the cluster's data in a state folder; empty if that is not known.
func Kubernetes(state string) string {
	w, _ := readWriter(paths.Writer(state)) // the engine's start has the error
	return w.Kubernetes
}
