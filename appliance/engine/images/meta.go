package images

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	"go.etcd.io/bbolt"

	"rivulet/appliance/state/boltcheck"
	"rivulet/offload/policy"
)

// FromContainerd returns the images of containerd's own database of one namespace,
// which knows those that came a moment ago. The layout is version 1 of containerd's
// schema. containerd must not run. A database that is not there has no images.
func FromContainerd(meta, namespace string) ([]Image, error) {
	if _, err := os.Stat(meta); errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	db, err := boltcheck.Open(meta)
	if err != nil {
		return nil, fmt.Errorf("images: %s: %w", meta, err)
	}
	defer db.Close()
	var out []Image
	err = db.View(func(tx *bbolt.Tx) error {
		b := tx.Bucket([]byte("v1"))
		for _, name := range []string{namespace, "images"} {
			if b == nil {
				return nil
			}
			b = b.Bucket([]byte(name))
		}
		if b == nil {
			return nil
		}
		return b.ForEachBucket(func(name []byte) error {
			target := b.Bucket(name).Bucket([]byte("target"))
			if target == nil || strings.HasPrefix(string(name), "sha256:") {
				return nil // a mere digest is made anew with its image
			}
			d, err := digest.Parse(string(target.Get([]byte("digest"))))
			if err != nil {
				return nil //nolint:nilerr // it could not be used by containerd either
			}
			labels := b.Bucket(name).Bucket([]byte("labels"))
			has := func(label string) bool {
				key, value, _ := strings.Cut(label, "=")
				return labels != nil && string(labels.Get([]byte(key))) == value
			}
			out = append(out, Image{string(name), string(target.Get([]byte("mediatype"))), d, has(policy.ShareLabel + "=true"), kept(has)})
			return nil
		})
	})
	return out, err
}

// Merge returns the images of both lists; where both have a name, newer's counts.
func Merge(older, newer []Image) []Image {
	out := slices.Clone(newer)
	for _, i := range older {
		if !slices.ContainsFunc(newer, func(n Image) bool { return n.Name == i.Name }) {
			out = append(out, i)
		}
	}
	slices.SortFunc(out, func(a, b Image) int { return strings.Compare(a.Name, b.Name) })
	return out
}
