package bolt

import (
	"fmt"
	"io"

	"go.etcd.io/bbolt"
)

// WriteTo writes a consistent copy of the database; concurrent writes do not wait and are not in it.
func (s *Store) WriteTo(w io.Writer) (n int64, err error) {
	err = s.db.View(func(tx *bbolt.Tx) error {
		n, err = tx.WriteTo(w)
		return err
	})
	if err != nil {
		return n, fmt.Errorf("store: copy %s: %w", s.path, err)
	}
	return n, nil
}
