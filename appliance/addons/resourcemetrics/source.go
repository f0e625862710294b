package resourcemetrics

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

const (
	// fresh is how long a summary is valid: a kubelet measures about as often.
	fresh = 10 * time.Second
	// patience is how long a kubelet may take.
	patience = 8 * time.Second
)

// fetch reads the summary of a node's kubelet.
type fetch func(ctx context.Context, node string) (*stats.Summary, error)

// summaries fetches through the API server, which reaches every node's kubelet, virtual nodes' included.
func summaries(client kubernetes.Interface) fetch {
	return func(ctx context.Context, node string) (*stats.Summary, error) {
		raw, err := client.CoreV1().RESTClient().Get().Resource("nodes").Name(node).SubResource("proxy").Suffix("stats/summary").
			Param("only_cpu_and_memory", "true").SetHeader("Accept", "application/json").DoRaw(ctx)
		if err != nil {
			return nil, err
		}
		var s stats.Summary
		if err := json.Unmarshal(raw, &s); err != nil {
			return nil, fmt.Errorf("what the kubelet of %s says: %w", node, err)
		}
		return &s, nil
	}
}

// list returns the metadata of the pods or nodes that selectors select; kind is kindPods or kindNodes.
type list func(ctx context.Context, kind, namespace string, o metav1.ListOptions) ([]metav1.PartialObjectMetadata, error)

// objects lists from the API server's cache, and of each object only what is needed.
func objects(client metadata.Interface) list {
	return func(ctx context.Context, kind, namespace string, o metav1.ListOptions) ([]metav1.PartialObjectMetadata, error) {
		o.ResourceVersion = "0"
		l, err := client.Resource(corev1.SchemeGroupVersion.WithResource(kind)).Namespace(namespace).List(ctx, o)
		if err != nil {
			return nil, err
		}
		return l.Items, nil
	}
}

// clients returns a client with all types, and a list of metadata.
func clients(api *rest.Config) (kubernetes.Interface, list, error) {
	client, err := kubernetes.NewForConfig(api)
	if err != nil {
		return nil, nil, fmt.Errorf("metrics: %w", err)
	}
	light, err := metadata.NewForConfig(api)
	if err != nil {
		return nil, nil, fmt.Errorf("metrics: %w", err)
	}
	return client, objects(light), nil
}

// source caches use by node. Concurrent callers cause one request per node.
type source struct {
	objects list
	fetch   fetch
	log     *slog.Logger
	now     func() time.Time

	mu    sync.Mutex
	nodes map[string]*usage
}

// usage is what one node used at the last request.
type usage struct {
	mu   sync.Mutex // held during the request
	at   time.Time
	node *measured
	pods map[podKey]pod
	err  error
}

type podKey struct{ namespace, name, uid string }

func newSource(l list, f fetch, log *slog.Logger) *source {
	return &source{objects: l, fetch: f, log: log, now: time.Now, nodes: map[string]*usage{}}
}

// query returns what nodes use, now or some seconds ago. A node that does not answer is nil.
func (s *source) query(ctx context.Context, nodes []string) map[string]*usage {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var wg sync.WaitGroup
	answers := make([]*usage, len(nodes))
	for i, name := range nodes {
		u := s.slot(name)
		wg.Go(func() {
			u.mu.Lock()
			defer u.mu.Unlock()
			if u.at.IsZero() || s.now().Sub(u.at) >= fresh {
				s.refresh(ctx, name, u)
			}
			answers[i] = &usage{node: u.node, pods: u.pods, err: u.err}
		})
	}
	wg.Wait()
	out := map[string]*usage{}
	for i, name := range nodes {
		if answers[i].err == nil {
			out[name] = answers[i]
		}
	}
	s.forget(nodes)
	return out
}

func (s *source) refresh(ctx context.Context, name string, u *usage) {
	summary, err := s.fetch(ctx, name)
	if ctx.Err() != nil && err != nil {
		// The caller cancelled: that is no result for the node.
		u.node, u.pods, u.err = nil, nil, err
		return
	}
	u.at, u.err = s.now(), err
	if err != nil {
		u.node, u.pods = nil, nil
		s.log.Debug("no resource metrics of a node", "node", name, "err", err)
		return
	}
	u.node, u.pods = read(summary)
}

func (s *source) slot(node string) *usage {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.nodes[node]
	if u == nil {
		u = &usage{}
		s.nodes[node] = u
	}
	return u
}

// forget drops nodes without a recent query.
func (s *source) forget(asked []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.nodes) <= 2*len(asked)+1 {
		return
	}
	keep := map[string]*usage{}
	for _, name := range asked {
		keep[name] = s.nodes[name]
	}
	s.nodes = keep
}
