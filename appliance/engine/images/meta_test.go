package images

import (
	"errors"
	"path/filepath"
	"slices"
	"testing"

	"github.com/opencontainers/go-digest"
	"go.etcd.io/bbolt"

	"rivulet/offload/policy"
)

// metaDB writes images as containerd does.
func metaDB(t *testing.T, path string, list []Image) {
	t.Helper()
	db, err := bbolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	err = db.Update(func(tx *bbolt.Tx) error {
		b, err := tx.CreateBucketIfNotExists([]byte("v1"))
		for _, name := range []string{"k8s.io", "images"} {
			if err == nil {
				b, err = b.CreateBucketIfNotExists([]byte(name))
			}
		}
		for _, i := range list {
			if err != nil {
				break
			}
			var image, target *bbolt.Bucket
			if image, err = b.CreateBucketIfNotExists([]byte(i.Name)); err != nil {
				break
			}
			if target, err = image.CreateBucketIfNotExists([]byte("target")); err != nil {
				break
			}
			if err = target.Put([]byte("digest"), []byte(i.Digest)); err == nil {
				err = target.Put([]byte("mediatype"), []byte(i.Type))
			}
			labels, e := image.CreateBucketIfNotExists([]byte("labels"))
			if err = errors.Join(err, e); i.Shared && err == nil {
				err = labels.Put([]byte(policy.ShareLabel), []byte("true"))
			}
			if i.Kept && err == nil {
				err = labels.Put([]byte("io.cri-containerd.pinned"), []byte("pinned"))
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestFromContainerd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "meta.db")
	if got, err := FromContainerd(path, "k8s.io"); err != nil || got != nil {
		t.Errorf("no database: %v, %v", got, err)
	}
	metaDB(t, path, nil)
	if got, err := FromContainerd(path, "k8s.io"); err != nil || got != nil {
		t.Errorf("no image: %v, %v", got, err)
	}
	want := []Image{
		{"a/b:1", "application/vnd.oci.image.manifest.v1+json", digest.FromString("1"), true, false, ""},
		{"a/c:2", "application/vnd.oci.image.index.v1+json", digest.FromString("2"), false, true, ""},
	}
	bad := Image{Name: "a/d:3", Type: "x", Digest: "nonsense"}
	metaDB(t, path, append(slices.Clone(want), bad, Image{Name: "sha256:" + want[0].Digest.Encoded(), Type: want[0].Type, Digest: want[0].Digest}))
	if got, err := FromContainerd(path, "k8s.io"); err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := FromContainerd(path, "other"); err != nil || got != nil {
		t.Errorf("another namespace: %v, %v", got, err)
	}
}

func TestMerge(t *testing.T) {
	one, two, three := Image{Name: "a", Digest: "1"}, Image{Name: "a", Digest: "2"}, Image{Name: "b", Digest: "3"}
	if got := Merge([]Image{one, three}, []Image{two}); !slices.Equal(got, []Image{two, three}) {
		t.Errorf("%v", got)
	}
}
