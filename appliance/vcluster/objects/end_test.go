package objects

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"
	ktesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"rivulet/appliance/addons/customresource"
	"rivulet/appliance/vcluster"
)

// deleted counts deletions of virtual clusters.
type deleted struct {
	Clusters
	n int
}

func (d *deleted) Delete(context.Context, string) error { d.n++; return nil }

// TestAVirtualClusterGoesByWhatTheDatastoreHas: a power cut may take back what the watch was told.
func TestAVirtualClusterGoesByWhatTheDatastoreHas(t *testing.T) {
	now := metav1.NewTime(time.Now().Truncate(time.Second))
	o := &VirtualCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "t", Name: "ann", UID: "1", Finalizers: []string{Finalizer}, DeletionTimestamp: &now}}
	for what, change := range map[string]func(*VirtualCluster){
		"not deleted":  func(o *VirtualCluster) { o.DeletionTimestamp = nil },
		"another one":  func(o *VirtualCluster) { o.UID = "2" },
		"not there":    func(o *VirtualCluster) { o.Name = "ben" },
		"not readable": nil,
		"as it was":    func(*VirtualCluster) {},
	} {
		live := *o
		if change != nil {
			change(&live)
		}
		u, err := toAPI(&live)
		if err != nil {
			t.Fatal(err)
		}
		dyn := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{Resource: Kind + "List"}, u)
		if change == nil {
			dyn.PrependReactor("get", "virtualclusters", func(ktesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("the disk fails") })
		}
		dyn.PrependReactor("update", "*", func(ktesting.Action) (bool, runtime.Object, error) {
			return true, nil, errors.New("no status is written")
		})
		all := &deleted{}
		c := &controller{Config: Config{Clusters: all, Log: slog.New(slog.DiscardHandler)}, Objects: customresource.Objects{Dynamic: dyn, Poke: func() {}},
			written: map[string]time.Time{}, busy: map[string]bool{}, failed: map[string]error{}}
		_ = c.end(t.Context(), o, ptr.To(vcluster.View{}))
		c.work.Wait()
		if want := map[bool]int{true: 1}[what == "as it was"]; all.n != want {
			t.Errorf("%s: %d deletions, want %d", what, all.n, want)
		}
	}
}
