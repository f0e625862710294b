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

// FromContainerd returns the images of one namespace in containerd's database, recent ones included. The layout is
// version 1 of containerd's schema. containerd must not run. A missing database has no images.
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
				return nil // created with its image
			}
			d, err := digest.Parse(string(target.Get([]byte("digest"))))
			if err != nil {
				return nil //nolint:nilerr // containerd could not use it either
			}
			labels := b.Bucket(name).Bucket([]byte("labels"))
			has := func(label string) bool {
				key, value, _ := strings.Cut(label, "=")
				return labels != nil && string(labels.Get([]byte(key))) == value
			}
			provided := ""
			if labels != nil {
				provided = string(labels.Get([]byte(policy.ProvidedLabel)))
			}
			out = append(out, Image{string(name), string(target.Get([]byte("mediatype"))), d, has(policy.ShareLabel + "=true"), kept(has), provided})
			return nil
		})
	})
	return out, err
}

// Merge returns the images of both lists; newer takes precedence.
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
