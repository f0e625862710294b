package peerobjects

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"rivulet/fabric/peer"
)

// TestOnlyAnEndDeletesAnObject: the object of a cluster without a record stays with its spec, and says what to do, until a
// revocation or a denial is stored.
func TestOnlyAnEndDeletesAnObject(t *testing.T) {
	for what, end := range map[string]func(*fakeFabric){
		"a revocation": func(f *fakeFabric) { f.gone = []peer.ID{idOf('a')} },
		"a denial": func(f *fakeFabric) {
			f.peers[idOf('a')] = View{View: peer.View{Record: peer.Record{ID: idOf('a'), Name: "b"}, State: peer.Denied}}
		},
	} {
		t.Run(what, func(t *testing.T) {
			off := false
			written := &Peer{ObjectMeta: metav1.ObjectMeta{Name: "b", Generation: 2, Labels: map[string]string{IDLabel: string(idOf('a'))}, Finalizers: []string{Finalizer}},
				Spec: Spec{Provide: &off}, Status: Status{ObservedGeneration: 2, ID: string(idOf('a')), Name: "b", State: "Connected"}}
			u, err := toAPI(written)
			if err != nil {
				t.Fatal(err)
			}
			client := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{Resource: "PeerList"}, u).Resource(Resource)
			f := &fakeFabric{peers: map[peer.ID]View{}}
			m := &mirror{Config: Config{Fabric: f, Peers: f.views, Log: slog.New(slog.DiscardHandler)}, client: client, store: cache.NewStore(cache.MetaNamespaceKeyFunc),
				recorder: record.NewFakeRecorder(10), shaped: map[string]Status{}, poke: func() {}, requests: map[string]*asking{}}
			look := func() *Peer {
				t.Helper()
				var now *unstructured.Unstructured
				if now, err = client.Get(t.Context(), "b", metav1.GetOptions{}); err == nil {
					err = m.store.Replace([]any{now}, "")
				}
				if err == nil {
					err = m.sync(t.Context())
				}
				if err == nil {
					now, err = client.Get(t.Context(), "b", metav1.GetOptions{})
				}
				if apierrors.IsNotFound(err) {
					return nil
				}
				var p *Peer
				if err == nil {
					p, err = fromAPI(now)
				}
				if err != nil {
					t.Fatal(err)
				}
				return p
			}
			for range 2 {
				p := look()
				if p == nil || p.Spec.Provide == nil || *p.Spec.Provide {
					t.Fatalf("a record that is missing has taken the object, or its spec: %+v", p)
				}
				cure := fmt.Sprintf("rivulet peer %s; or, if it is none for good: kubectl delete peer b", idOf('a'))
				if c := p.Status.Conditions; len(c) != 1 || c[0].Reason != "NoPeer" || !strings.HasSuffix(c[0].Message, cure) || p.Status.State != "" {
					t.Errorf("status %+v", p.Status)
				}
				if p.Status.ObservedGeneration != 0 {
					t.Error("its spec counts as applied: the record of a later peering would overwrite it")
				}
			}
			end(f)
			if p := look(); p != nil {
				t.Errorf("the object stays: %+v", p)
			}
		})
	}
}
