package tenancy

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"rivulet/fabric/peer"
	"rivulet/test/harness/await"
)

// However many write at once, what is stored and what was let in stay within the bound;
// what is deleted makes room again, and one consumer takes nothing of another's part.
func TestStoreUnderConcurrency(t *testing.T) {
	var there sync.Map // what each has stored, *atomic.Int64
	of := func(id peer.ID) *atomic.Int64 {
		v, _ := there.LoadOrStore(id, new(atomic.Int64))
		return v.(*atomic.Int64)
	}
	s := newStore(0, func(_ context.Context, id peer.ID) (int64, error) { return of(id).Load(), nil })
	const object = 1 << 20
	flood := func(id peer.ID) {
		var all sync.WaitGroup
		for range 120 {
			all.Go(func() {
				settle, err := s.admit(t.Context(), id, object)
				if err != nil {
					return
				}
				of(id).Add(object)
				settle(object)
			})
		}
		all.Wait()
	}
	flood(alice)
	if n := of(alice).Load(); n > s.bound || n < s.bound-object {
		t.Errorf("%d MiB are stored, %d MiB may be", n>>20, s.bound>>20)
	}
	const carol, dave peer.ID = "carolccccccccccccccccccccccccccc", "daveddddddddddddddddddddddddddddd"
	flood(bob) // now all there is is taken
	flood(carol)
	flood(dave)
	for _, id := range []peer.ID{carol, dave} {
		if n := of(id).Load(); n < s.all/4-object {
			t.Errorf("who comes late stores %d MiB, want an equal part", n>>20)
		}
	}
	clock := time.Now()
	now = func() time.Time { return clock }
	defer func() { now = time.Now }()
	clock = clock.Add(time.Minute)
	of(alice).Store(0)
	if _, err := s.admit(t.Context(), alice, object); err != nil {
		t.Errorf("after all was deleted: %v", err)
	}
}

// What a consumer stores is bounded by bytes, whatever the kind and the way: objects that
// are made, and small patches that make new versions of large ones.
func testBytesAreBounded(t *testing.T, p *provider) {
	ctx := t.Context()
	twin := p.twinOf(t, alice, "bytes")
	c, _ := p.consumer(t, alice, nil)
	config := func(i int) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("c", i)}, Data: map[string]string{"x": strings.Repeat("x", 1<<20-1000)}}
	}
	make := func(i int) error {
		p.visitors.only(nil) // the rate of bytes is another bound
		_, err := c.CoreV1().ConfigMaps(twin).Create(ctx, config(i), metav1.CreateOptions{})
		return err
	}
	await.True(t, time.Minute, "alice's rights", func() bool { return make(0) == nil })
	made := 1
	var refused error
	for i := 1; i < 30; i++ {
		if err := make(i); err == nil {
			made++
		} else {
			refused = err
		}
	}
	if most := minStore >> 20; made > most || made < most-2 {
		t.Errorf("%d MiB are stored, want %d at most", made, most)
	}
	if !apierrors.IsForbidden(refused) || !strings.Contains(refused.Error(), "delete some") {
		t.Errorf("refused with %v, want a cure", refused)
	}
	// Another consumer has its own room.
	other := p.twinOf(t, bob, "bytes")
	b, _ := p.consumer(t, bob, nil)
	await.True(t, time.Minute, "bob's rights", func() bool {
		_, err := b.CoreV1().ConfigMaps(other).Create(ctx, config(0), metav1.CreateOptions{})
		return err == nil
	})
	if err := c.CoreV1().ConfigMaps(twin).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	await.True(t, time.Minute, "room again after all is deleted", func() bool { return make(0) == nil })

	// A patch of some bytes makes a version of a megabyte.
	p.visitors.only(nil)
	patches, begun := 0, time.Now()
	for i := range 40 {
		patch, _ := json.Marshal(map[string]any{"metadata": map[string]any{"labels": map[string]string{"n": fmt.Sprint(i)}}})
		r, _ := http.NewRequestWithContext(ctx, http.MethodPatch, p.url+prefix+"/api/v1/namespaces/"+twin+"/configmaps/c0", strings.NewReader(string(patch)))
		r.Header.Set(who, string(alice))
		r.Header.Set("Content-Type", string(types.MergePatchType))
		r.Header.Set("Accept", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1")
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode == http.StatusOK {
			patches++
		}
	}
	if most := minStore>>20 + 2 + int(time.Since(begun).Seconds()*byteRate)>>20; patches > most || patches == 0 {
		t.Errorf("%d versions of a megabyte in a row, want %d at most", patches, most)
	}
	p.visitors.only(nil)
	for _, as := range []peer.ID{alice, bob} {
		p.ask(t, as, http.MethodDelete, "/v1/namespaces/bytes")
	}
}

// The lists that are measured are those of everything that a consumer may make.
func TestWritten(t *testing.T) {
	got := strings.Join(written(), " ")
	for _, want := range []string{"/api/v1/namespaces/%s/pods", "/api/v1/namespaces/%s/configmaps", "/apis/apps/v1/namespaces/%s/replicasets", "/apis/discovery.k8s.io/v1/namespaces/%s/endpointslices"} {
		if !strings.Contains(got, want) {
			t.Errorf("%s is not measured: %s", want, got)
		}
	}
	if strings.Contains(got, "exec") || strings.Contains(got, "events") {
		t.Errorf("measured are %s", got)
	}
}
