package twin

import (
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// seen is an informer that shows what the test lets it show.
type seen struct {
	cache.SharedIndexInformer
	index cache.Indexer
	ready bool
}

func newSeen() *seen {
	return &seen{index: cache.NewIndexer(cache.MetaNamespaceKeyFunc, Indexers)}
}

func (s *seen) HasSynced() bool { return s.ready }

func (s *seen) GetIndexer() cache.Indexer { return s.index }

func (s *seen) GetStore() cache.Store { return s.index }

func (s *seen) show(objs ...any) { s.ready = true; _ = s.index.Replace(objs, "") }

// shown is a twin of namespace lab, with what the test lets its informers show.
type shown struct {
	twin                      *Twin
	pods, sets, jobs, secrets *seen
}

func newShown(client kubernetes.Interface) shown {
	s := shown{nil, newSeen(), newSeen(), newSeen(), newSeen()}
	s.twin = Over(Config{Home: "lab", Name: "lab-a", Client: client}, s.pods, s.sets, s.jobs, s.secrets)
	return s
}
